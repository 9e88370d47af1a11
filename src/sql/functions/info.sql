-- Versions and traces. Not hot.

create function fetchq.info(
    out version text, out extension_version text, out library_version text,
    out is_preloaded boolean, out has_background_worker boolean, out has_shared_memory boolean
)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'info_wrapper';
comment on function fetchq.info() is
    'The version that fetchq 4 clients compare, the installed versions, and which parts are active';

create function fetchq.trace(subject text, direction text default 'ASC')
returns table (
    step int, created_at timestamptz, queue varchar, type varchar, info varchar, details jsonb
)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'trace_wrapper';
comment on function fetchq.trace(text, text) is
    'The documents, the errors and the history of a subject in all queues';
