-- The entrypoint of the image runs this once, in $POSTGRES_DB.
CREATE EXTENSION fetchq;
