-- Run once by the image's entrypoint, in $POSTGRES_DB.
CREATE EXTENSION fetchq;
