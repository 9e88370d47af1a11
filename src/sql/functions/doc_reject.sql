create function fetchq.doc_reject(queue text, subject text, message text, details jsonb, ref_id text default null, lease bigint default null, delay interval default null, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reject_wrapper';
comment on function fetchq.doc_reject(text, text, text, jsonb, text, bigint, interval) is 'Gives an active document back after a failure: retried after the delay, or by the policy of the queue, or when its lease would have ended; killed after its last attempt';

create function fetchq.log_error(queue text, subject text, message text, details jsonb, ref_id text default null, out queued_logs boolean)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'log_error_wrapper';
comment on function fetchq.log_error(text, text, text, jsonb, text) is 'Adds a line to the log of a queue';

create function fetchq.doc_snooze(queue text, subject text, next_iteration timestamptz default pg_catalog.now(), lease bigint default null, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_snooze_wrapper';
comment on function fetchq.doc_snooze(text, text, timestamptz, bigint) is 'Hands an active document back until a time, as if it had not been picked: the attempt does not count';
