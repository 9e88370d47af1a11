-- The schedules that a deployment declares. Not hot.

create function fetchq.schedules_sync(
    owner text, schedules jsonb,
    out name text, out action text
)
returns setof record
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedules_sync_wrapper';
comment on function fetchq.schedules_sync(text, jsonb) is
    'Makes the schedules of an owner, such as an application, match a JSON array: creates, changes, keeps and drops them, all or none';
