-- What only update scripts call. It is not in the install script: build.rs puts it into the update
-- scripts, which drop it again.

create function fetchq_upgrade.run_outside_extension(sql text) returns void
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'run_outside_extension_wrapper';
