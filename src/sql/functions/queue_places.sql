-- Queues that live on another server. Not hot.

create function fetchq.queue_place_set(queue text, place text, out was_set boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_place_set_wrapper';
comment on function fetchq.queue_place_set(text, text) is
    'Records the other server on which a queue lives, for the error that every call that names it here raises; NULL removes the record';
