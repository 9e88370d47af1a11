-- All settings of a queue as one JSON object. Not hot. Intervals are
-- written in the same style, whatever that of the session is.

create function fetchq.queue_configure(queue text, settings jsonb, out all_settings jsonb)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
set intervalstyle = postgres
as 'MODULE_PATHNAME', 'queue_configure_wrapper';
comment on function fetchq.queue_configure(text, jsonb) is
    'Changes the named settings of a queue, where null switches a setting off, and returns all settings';

create function fetchq.queue_settings(queue text, out all_settings jsonb)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
set intervalstyle = postgres
as 'MODULE_PATHNAME', 'queue_settings_wrapper';
comment on function fetchq.queue_settings(text) is
    'All settings of a queue';

create function fetchq.queue_pause(queue text, out was_paused boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_pause_wrapper';
comment on function fetchq.queue_pause(text) is
    'Pauses a queue, so that nothing can be picked from it; returns false if it is already paused';

create function fetchq.queue_resume(queue text, out was_resumed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_resume_wrapper';
comment on function fetchq.queue_resume(text) is
    'Resumes a paused queue; returns false if it is not paused';
