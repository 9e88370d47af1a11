//! Removing what a move has made: everything after one that failed, publications, slot and records
//! after one that is done.
use std::time::{Duration, Instant};

use fetchq_domain::names::QueueName;

use crate::failure::{Failure, Result};
use crate::finish::unsubscribe;
use crate::records;
use crate::rest;
use crate::server::Server;
use crate::stage;
use crate::stream::Names;

const SUBSCRIPTION: &str = "select oid::bigint from pg_subscription where subname = $1::text
    and subdbid = (select oid from pg_database where datname = current_database())";

/// The OID of the subscription, if there is one.
pub async fn subscription(new: &Server, names: &Names) -> Result<Option<i64>> {
    let row = new.first(SUBSCRIPTION, &[&names.subscription]).await?;
    Ok(row.map(|row| row.get(0)))
}

/// Removes what an unfinished move has left on the new server: the subscription, the tables and the
/// record.
pub async fn new_server(new: &Server, id: &str, queues: &[QueueName]) -> Result<()> {
    new.run("begin").await?;
    let cleaned = async {
        unsubscribe(new, &Names::of(id)).await?;
        // The tables and the record were made together. Without it, tables of these names are not of this move.
        if records::state(new, id).await?.is_some() {
            stage::drop_tables(new, queues).await?;
            stage::remove_places(new, id).await?;
            rest::remove_direct(id, new).await?;
        }
        new.run("commit").await
    };
    if let Err(failure) = cleaned.await {
        new.roll_back().await;
        return Err(failure);
    }
    records::remove(new, id).await
}

/// Removes what a move has left on the old server: publications, slots and the record.
pub async fn old_server(old: &Server, id: &str, subscription: Option<i64>) -> Result<()> {
    let names = Names::of(id);
    for publication in [&names.publication, &names.histories] {
        old.run(&format!("drop publication if exists {publication}"))
            .await?;
    }
    drop_slots(old, &names, subscription).await?;
    records::remove(old, id).await
}

// $2: the beginning of the names of the slots with which tables are copied; NULL for none.
const SLOTS: &str = "select slot_name::text, active_pid from pg_replication_slots
    where slot_name = $1::text or slot_name::text like $2::text";

const DROP_SLOT: &str = "select pg_drop_replication_slot(slot_name) from pg_replication_slots
    where slot_name = $1::text and not active";

const END: &str = "select pg_terminate_backend($1::int)";

/// How long a walsender that has lost its client may go on.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The slots of the tables that are being copied have the OID of the subscription in their names.
fn copy_slots(subscription: Option<i64>) -> Option<String> {
    subscription.map(|oid| format!("pg\\_{oid}\\_sync\\_%"))
}

async fn drop_slots(old: &Server, names: &Names, subscription: Option<i64>) -> Result<()> {
    let began = Instant::now();
    let pattern = copy_slots(subscription);
    loop {
        let rows = old.rows(SLOTS, &[&names.slot, &pattern]).await?;
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            let (slot, pid): (String, Option<i32>) = (row.get(0), row.get(1));
            match pid {
                // The subscription is gone, and nothing else reads this slot.
                Some(pid) => {
                    old.rows(END, &[&pid]).await?;
                }
                None => {
                    old.rows(DROP_SLOT, &[&slot]).await?;
                }
            }
        }
        if began.elapsed() > MAX_WAIT {
            return Err(Failure::new(format!(
                "{}: the replication slot {} is still in use",
                old.name(),
                names.slot
            ))
            .with_hint("Run the command with --abort later, or drop the slot: it keeps WAL."));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_of_other_subscriptions_are_left_alone() {
        assert_eq!(
            copy_slots(Some(123)).as_deref(),
            Some("pg\\_123\\_sync\\_%")
        );
        assert_eq!(copy_slots(None), None);
    }
}
