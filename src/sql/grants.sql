-- PUBLIC has no rights on fetchq. docs/guides/security.md says what to grant to a role that works
-- with queues. Functions run with the rights of the caller, so the rights on the tables decide. The
-- functions below are for the owner only.
revoke all on schema fetchq, fetchq_data from public;
revoke all on function fetchq.background_worker_wake() from public;
revoke all on function fetchq.destroy_with_terrible_consequences() from public;
revoke all on function fetchq.schedule_run(int, timestamptz) from public;
revoke all on function fetchq.utils_ts_retain(text, text, text, timestamptz, timestamptz) from public;

-- When the extension is committed, the launcher starts a background worker for this database.
select fetchq.background_worker_wake();
