//! Whom the history names as the worker of a document: who had its lease, and the session that
//! cancels, pops or drops what nobody has leased.

use crate::pg::session;
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::settings;
use crate::store::documents::leases;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

/// The name of this session in the history.
pub fn session_name() -> String {
    leases::shown_name(&settings::worker_name(), &session::application())
}

/// Whom the history names as the worker of documents.
pub enum By<'a> {
    /// Nobody.
    Maintenance,
    /// This session.
    Session,
    /// Who had the lease of the document with this subject.
    Lease(&'a str),
}

// Indexes: the primary key, and the ids of the worker sessions.
static HOLDER: Statement = Statement::new(
    "select w.name from only {docs} d, fetchq.worker_sessions w
     where d.subject {=} $1 and w.id {=} {leased_by}
     limit 1",
);

impl By<'_> {
    /// The name in the history.
    pub fn name(&self, spi: &Spi, queue: &Queue) -> Option<String> {
        match self {
            By::Maintenance => None,
            By::Session => Some(session_name()),
            By::Lease(subject) => {
                let rows = queue.run(spi, &HOLDER, &[Arg::from(*subject)]);
                let holder = (!rows.is_empty()).then(|| rows.get(0, 1)).flatten();
                holder.or_else(|| Some(session_name()))
            }
        }
    }
}
