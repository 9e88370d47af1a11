//! Making and dropping the indexes of a queue: `queue_create_indexes` and
//! `queue_drop_indexes`.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::spi;
use crate::store::bounds::keys_setup;
use crate::store::queues::queue;
use crate::store::queues::queue_tables;
use crate::store::queues::triggers;

/// Makes the indexes and the ready trigger of a queue where they are missing. Fails with
/// `Error::UnknownQueue`.
pub fn create(name: &QueueName) -> Result<()> {
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
pub fn drop(name: &QueueName) -> Result<()> {
    queue::lock_now(name)?;
    queue_tables::drop_indexes(name);
    Ok(())
}
