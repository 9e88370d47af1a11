//! The registry as fetchq 4 shows it, a page of documents, and the indexes of a queue.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::row_sink::RowSink;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::bounds::keys_setup;
use crate::store::queues::queue;
use crate::store::queues::queue_places;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::render;
use crate::store::queues::triggers;

const GET_CURRENT_VERSION: &str = "select current_version from fetchq.queues where name {=} $1";

/// The version of documents that a queue works on. Fails with `Error::UnknownQueue`.
pub fn current_version(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| {
        let rows = spi.once(GET_CURRENT_VERSION, &[Arg::from(name.as_str())]);
        let version = (!rows.is_empty()).then(|| rows.get(0, 1)).flatten();
        version.ok_or_else(|| queue_places::unknown(name))
    })
}

const STATUS_ALL: &str = "select id, name, is_active from fetchq.queues
    where $1 or name {=} any ($2) order by id";

const STATUS_ONE: &str = "select id, name, is_active from fetchq.queues where name {=} $1";

/// Adds a row to a result for each queue on which the caller has a right: id, name, and whether
/// it is active.
///
/// Fails as `rights::over` does.
pub fn status_of_all(out: &mut RowSink) -> Result<()> {
    rights::over(None, Right::Any, |queues| {
        spi::connect(|spi| out.extend(&spi.once(STATUS_ALL, &queues.args())));
        Ok(())
    })
}

/// Adds the row of one queue to a result; nothing when it does not exist.
pub fn status_of(name: &QueueName, out: &mut RowSink) {
    let args = [Arg::from(name.as_str())];
    spi::connect(|spi| out.extend(&spi.once(STATUS_ONE, &args)));
}

const TOP: &str = "select subject, payload, version, priority, attempts, iterations, created_at,
        last_iteration, next_iteration, lock_upgrade
    from only {docs}
    where version {=} $1
    order by priority desc, next_iteration, attempts, seq
    limit $2 offset $3";

/// Adds a page of the documents of one version to a result: up to `limit` after the first
/// `skip`, of any status, in the order of picking. Fails with `Error::UnknownQueue`.
pub fn top(name: &QueueName, version: i32, limit: i32, skip: i32, out: &mut RowSink) -> Result<()> {
    queue::id(name)?;
    let args = [
        Arg::from(version),
        Arg::from(i64::from(limit)),
        Arg::from(i64::from(skip)),
    ];
    spi::connect(|spi| out.extend(&spi.once(&render(TOP, name), &args)));
    Ok(())
}

/// Makes the indexes and the ready trigger of a queue where they are missing. Fails with
/// `Error::UnknownQueue`.
pub fn create_indexes(name: &QueueName) -> Result<()> {
    queue::lock_now(name)?;
    spi::connect(|spi| {
        queue_tables::create_indexes(spi, name);
        triggers::create_ready_trigger(spi, name);
        keys_setup::create_index(spi, name);
    });
    Ok(())
}

/// Drops every index of a queue's documents that backs no constraint. Fails with
/// `Error::UnknownQueue`.
pub fn drop_indexes(name: &QueueName) -> Result<()> {
    queue::lock_now(name)?;
    queue_tables::drop_indexes(name);
    Ok(())
}
