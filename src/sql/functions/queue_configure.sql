-- All settings of a queue as one JSON object, and what new queues start with. Not hot. Intervals are
-- written in the same style, whatever that of the session is.

create function fetchq.queue_configure(queue text, settings jsonb, out all_settings jsonb)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
set intervalstyle = postgres
as 'MODULE_PATHNAME', 'queue_configure_wrapper';
comment on function fetchq.queue_configure(text, jsonb) is
    'Changes the settings of a queue that are named, null resetting one to its default, and returns all of them';

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
    'Pauses a queue, so that nothing can be picked from it; false when it is paused already';

create function fetchq.queue_resume(queue text, out was_resumed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_resume_wrapper';
comment on function fetchq.queue_resume(text) is
    'Resumes a paused queue; false when it is not paused';

create function fetchq.queue_default_is_valid(setting text, value jsonb, out is_valid boolean)
language c immutable parallel unsafe
set search_path = pg_catalog, pg_temp
set intervalstyle = postgres
as 'MODULE_PATHNAME', 'queue_default_is_valid_wrapper';
comment on function fetchq.queue_default_is_valid(text, jsonb) is
    'Constraint of fetchq.queue_defaults: true, or an error that says what is wrong with the setting';

alter table fetchq.queue_defaults
add constraint queue_defaults_valid check (fetchq.queue_default_is_valid(setting, value));
