//! What an earlier run of `fetchq move` has left, and removing it.
use fetchq_domain::names::QueueName;
use serde_json::Value;

use crate::check;
use crate::clean as remove;
use crate::failure::{Failure, Result};
use crate::records::{self, Record};
use crate::say::list;
use crate::server::{Server, Side};
use crate::stream::Names;

/// What an earlier run has left.
pub enum Left {
    Nothing,
    /// Something that is to be removed.
    Unfinished(Vec<String>),
    /// A switch that is committed.
    Committed(Record),
}

/// Locks the queues against other runs, and finds what an earlier one has left.
pub async fn look_back(
    old: &Server,
    watch: &Server,
    new: &Server,
    queues: &[QueueName],
) -> Result<Left> {
    records::lock(old, records::Session::Main, queues).await?;
    records::lock(watch, records::Session::Watch, queues).await?;
    records::lock(new, records::Session::Main, queues).await?;
    require_finished_others(old, new, queues).await?;
    let here = records::find(old, queues).await?;
    let there = records::find(new, queues).await?;
    require_same_target(old, new, &here).await?;
    let is_switched = |id: &str| {
        here.iter()
            .any(|record| record.id == id && record.state == records::SWITCHED)
    };
    for record in &there {
        if record.state == records::DONE || is_switched(&record.id) {
            return Ok(Left::Committed(record.clone()));
        }
    }
    // The record of the new server is removed before that of the old one only when nothing was
    // committed, or last of all.
    if let Some(record) = here.iter().find(|record| record.state == records::SWITCHED) {
        return Ok(Left::Committed(record.clone()));
    }
    for record in here.iter().chain(&there) {
        records::require_same(record, queues)?;
    }
    let mut ids: Vec<String> = here
        .into_iter()
        .chain(there)
        .map(|record| record.id)
        .collect();
    ids.sort();
    ids.dedup();
    Ok(match ids.is_empty() {
        true => Left::Nothing,
        false => Left::Unfinished(ids),
    })
}

/// Refuses another new server than that of the unfinished move, which has tables and a subscription.
async fn require_same_target(old: &Server, new: &Server, here: &[Record]) -> Result<()> {
    let identity = check::identity_of(new).await?;
    let other = here.iter().find(|record| {
        let target = record.detail.get("to").and_then(Value::as_str);
        target.is_some_and(|target| target != identity)
    });
    match other {
        None => Ok(()),
        Some(record) => Err(Failure::new(format!(
            "{}: an unfinished move of {} goes to another server than that of --to",
            old.name(),
            list(record.queues.iter().map(String::as_str)),
        ))
        .with_hint(format!(
            "Run it with --to as that server, or with --abort. If that server is gone for good and the queues \
             are here: drop the schema fetchq_move, the publications and the replication slot {} here.",
            Names::of(&record.id).slot
        ))),
    }
}

/// Refuses to begin while a move in which one of the servers had the other part is not finished. Its
/// records would later say that this one is.
async fn require_finished_others(old: &Server, new: &Server, queues: &[QueueName]) -> Result<()> {
    for (server, option) in [(old, "--to"), (new, "--from")] {
        if let Some(record) = records::find_others(server, queues).await?.first() {
            return Err(Failure::new(format!(
                "{}: an earlier move of {} is not finished; there it is {}",
                server.name(),
                list(record.queues.iter().map(String::as_str)),
                record.state
            ))
            .with_hint(format!(
                "Run that move again first, with {option} as this server."
            )));
        }
    }
    Ok(())
}

/// Removes everything that an unfinished move has made.
pub async fn clean(old: &Server, new: &Server, id: &str, queues: &[QueueName]) -> Result<()> {
    require_started(old, new, id).await?;
    let subscription = remove::subscription(new, &Names::of(id)).await?;
    let subscription = match subscription {
        Some(oid) => Some(oid),
        None => records::find(old, queues)
            .await?
            .iter()
            .find(|record| record.id == id)
            .and_then(|record| record.number("subscription")),
    };
    remove::new_server(new, id, queues).await?;
    remove::old_server(old, id, subscription).await
}

/// Refuses to go on where the old server has the queues after all: the commit of the switch is lost there.
///
/// The queues live on the new server then, and on the old one too.
pub async fn require_given_away(old: &Server, id: &str) -> Result<()> {
    match records::state(old, id).await?.as_deref() {
        Some(records::STARTED) => Err(Failure::new(format!(
            "{} has the queues, and {} has them too: the old server has lost the commit of the switch, as a standby \
             can that did not have it yet",
            old.name(),
            Side::New.name()
        ))
        .with_hint(
            "Compare them. Then drop the queues on the old server (fetchq.queue_drop), record there where they live \
             (fetchq.queue_place_set), drop its schema fetchq_move, and run this command again.",
        )),
        _ => Ok(()),
    }
}

/// Refuses to remove documents of the new server that may be the only ones. The record of the old server
/// says that it still has the queues; without it this may be another server, or it was restored.
async fn require_started(old: &Server, new: &Server, id: &str) -> Result<()> {
    if records::state(new, id).await?.as_deref() != Some(records::READY) {
        return Ok(());
    }
    if records::state(old, id).await?.as_deref() == Some(records::STARTED) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} has the documents of a move, and {} has no record of it",
        new.name(),
        old.name()
    ))
    .with_hint(
        "Is --from the server that the move began on? Nothing is removed. If that server was restored \
         and has the queues, drop the schema fetchq_move and the tables of the queues on the new server.",
    ))
}
