//! Every statement of the client. Parameters are texts with a cast: each driver sends them alike, no type has to be
//! registered, and no setting of the session matters.

use crate::driver::Query;

pub(crate) fn query(text: &'static str, values: impl IntoIterator<Item = Option<String>>) -> Query {
    Query {
        text,
        values: values.into_iter().collect(),
    }
}

/// The parameters of a statement, as texts.
macro_rules! q {
    ($text:expr $(, $value:expr)* $(,)?) => {
        $crate::sql::query($text, [$(Some(($value).to_string())),*])
    };
}
pub(crate) use q;

pub(crate) const PUT: &str =
    "select p.subject, p.action from fetchq.doc_put_many(null, cast(cast($1 as text) as jsonb)) p";
pub(crate) const GET: &str = "select cast(pg_catalog.to_jsonb(d) as text) from fetchq.doc_get(cast($1 as text), cast($2 as text)) d";
pub(crate) const CANCEL: &str =
    "select c.was_cancelled, c.status from fetchq.doc_cancel(cast($1 as text), cast($2 as text)) c";
pub(crate) const AWAIT: &str =
    "call fetchq.doc_await(cast($1 as text), cast($2 as text), cast(cast($3 as text) as interval))";
pub(crate) const INFO: &str =
    "select i.extension_version, i.is_preloaded, pg_catalog.pg_backend_pid() from fetchq.info() i";
pub(crate) const PID: &str = "select pg_catalog.pg_backend_pid()";
pub(crate) const CREATE: &str = "select c.was_created from fetchq.queue_create(cast($1 as text), cast(cast($2 as text) as jsonb)) c";
pub(crate) const CONFIGURE: &str = "select cast(fetchq.queue_configure(cast($1 as text), cast(cast($2 as text) as jsonb)) as text)";
pub(crate) const SCHEDULES: &str = "select s.name, s.action from fetchq.schedules_sync(cast($1 as text), cast(cast($2 as text) as jsonb)) s";
pub(crate) const NEXT: &str = "select d.subject, cast(d.payload as text), cast(d.headers as text), d.attempts,
 d.max_attempts, d.lease, cast(extract(epoch from d.lease_ends - d.picked_at) as float8),
 cast(extract(epoch from d.lease_ends) as float8), d.priority, d.last_error, cast(d.progress as text)
 from fetchq.docs_next(cast($1 as text), cast(cast($2 as text) as jsonb), cast(cast($3 as text) as int),
 cast(cast($4 as text) as interval), cast(cast($5 as text) as int), cast($6 as text), on_lost => 'warning') d";
pub(crate) const SETTLE: &str = "select s.subject, s.outcome, s.status
 from fetchq.docs_settle(cast($1 as text), cast(cast($2 as text) as jsonb), cast($3 as text)) s";
pub(crate) const EXTEND: &str =
    "select e.queue, e.subject, e.outcome, cast(extract(epoch from e.lease_ends) as float8), e.stop
 from fetchq.docs_extend(null, cast(cast($1 as text) as jsonb), cast(cast($2 as text) as interval)) e";
pub(crate) const WAIT: &str =
    "call fetchq.worker_wait(cast(cast($1 as text) as text[]), cast($2 as text),
 cast(cast($3 as text) as interval), cast(cast($4 as text) as jsonb), cast(cast($5 as text) as int),
 mark => cast(cast($6 as text) as bigint[]))";
pub(crate) const LEASES: &str = "select l.subject, l.lease from fetchq.lease_list(cast($1 as text)) l
 where l.worker = cast($2 as text) and (l.pid = cast(cast($3 as text) as int) or cast($4 as text) = 'true')";
pub(crate) const OPEN: &str =
    "select s.ready + s.active from fetchq.queue_stats(cast($1 as text)) s";
pub(crate) const DUE_NOW: &str = "select fetchq.docs_retry(cast($1 as text),
 pg_catalog.jsonb_build_object('status', 'planned'), max_docs => 1000000)";
