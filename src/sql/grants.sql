-- Nothing of fetchq is for PUBLIC. docs/security.md says what to grant to a role that
-- works with queues. Functions run with the rights of the caller, so the rights on the
-- tables decide; still, these are nobody's business but the owner's.
revoke all on schema fetchq, fetchq_data from public;
revoke all on function fetchq.background_worker_wake() from public;
revoke all on function fetchq.destroy_with_terrible_consequences() from public;
revoke all on function fetchq.schedule_run(int, timestamptz) from public;
revoke all on function fetchq.utils_ts_retain(text, text, text, timestamptz, timestamptz) from public;

-- The launcher starts a background worker for this database when the extension is committed.
select fetchq.background_worker_wake();
