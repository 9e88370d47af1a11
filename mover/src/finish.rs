//! The end of a move on the new server, from its own records alone: one transaction ends the
//! subscription, registers the queues, and records that they are live.
use serde_json::json;

use crate::failure::Result;
use crate::records;
use crate::rest::{self, Queue};
use crate::say::now_ms;
use crate::server::Server;
use crate::stream::Names;

const HAS_SUBSCRIPTION: &str = "select exists (
    select from pg_subscription where subname = $1::text
        and subdbid = (select oid from pg_database where datname = current_database()))";

/// Drops a subscription without its slot: the old server may be gone, and its slot is dropped there.
pub async fn unsubscribe(new: &Server, names: &Names) -> Result<()> {
    let name = &names.subscription;
    if !new.one(HAS_SUBSCRIPTION, &[name]).await?.get::<_, bool>(0) {
        return Ok(());
    }
    for sql in [
        format!("alter subscription {name} disable"),
        format!("alter subscription {name} set (slot_name = none)"),
        format!("drop subscription {name}"),
    ] {
        new.run(&sql).await?;
    }
    Ok(())
}

const FORGET_PLACE: &str = "delete from fetchq.queue_places where queue = $1";

const SURELY: &str = "select set_config('synchronous_commit', case
    when current_setting('synchronous_commit') in ('off', 'local') then 'on'
    else current_setting('synchronous_commit') end, true)";

/// Makes the queues live on the new server. `queues`: with their numbers there. `locked_at`: when they
/// were locked, in milliseconds since 1970.
pub async fn finish(new: &Server, id: &str, queues: &[Queue], locked_at: i64) -> Result<()> {
    new.run("begin").await?;
    let finished = finish_in_transaction(new, id, queues, locked_at).await;
    if finished.is_err() {
        new.roll_back().await;
    }
    finished
}

async fn finish_in_transaction(
    new: &Server,
    id: &str,
    queues: &[Queue],
    locked_at: i64,
) -> Result<()> {
    unsubscribe(new, &Names::of(id)).await?;
    for queue in queues {
        new.execute(FORGET_PLACE, &[&queue.name.as_str()]).await?;
    }
    rest::register(id, queues, new).await?;
    for queue in queues {
        rest::define(id, queue, new).await?;
    }
    records::remove_rows(new, id).await?;
    let paused = (now_ms() - locked_at).max(0);
    records::set(new, id, records::DONE, &json!({"paused_ms": paused})).await?;
    new.run(SURELY).await?;
    new.run("commit").await
}

const PACK: &str = "select fetchq.metric_log_pack()::text";

/// Packs the counter events that came with the queues. The counters are exact without it.
pub async fn pack(new: &Server) {
    let _ = new.rows(PACK, &[]).await;
}
