//! `fetchq move --status`: how far a move is, from the records of both servers.
use fetchq_domain::names::QueueName;

use crate::failure::Result;
use crate::records::{self, Record};
use crate::server::Server;
use crate::stream::Names;

const LAG: &str =
    "select pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint, s.active
    from pg_replication_slots s where s.slot_name = $1::text";

const COPIED: &str = "select count(*) filter (where r.srsubstate = 'r'), count(*)
    from pg_subscription_rel r join pg_subscription s on s.oid = r.srsubid
    where s.subname = $1::text
        and s.subdbid = (select oid from pg_database where datname = current_database())";

/// A line for each record of a move of these queues.
pub async fn lines(old: &Server, new: &Server, queues: &[QueueName]) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for record in records::find(old, queues).await? {
        let lag = lag(old, &record).await?;
        lines.push(format!("{}{lag}", records::describe(old.side, &record)));
    }
    for record in records::find(new, queues).await? {
        let copied = copied(new, &record).await?;
        lines.push(format!("{}{copied}", records::describe(new.side, &record)));
    }
    if lines.is_empty() {
        lines.push("no move of these queues is unfinished".to_owned());
    }
    Ok(lines)
}

async fn lag(old: &Server, record: &Record) -> Result<String> {
    let row = old.first(LAG, &[&Names::of(&record.id).slot]).await?;
    Ok(row.map_or_else(String::new, |row| {
        let what = if row.get(1) {
            "connected"
        } else {
            "not connected"
        };
        format!(
            "; the new server is {} kB behind, and {what}",
            row.get::<_, i64>(0) >> 10
        )
    }))
}

async fn copied(new: &Server, record: &Record) -> Result<String> {
    let row = new
        .one(COPIED, &[&Names::of(&record.id).subscription])
        .await?;
    let (copied, all): (i64, i64) = (row.get(0), row.get(1));
    Ok(match all {
        0 => String::new(),
        all => format!("; {copied} of {all} tables are copied"),
    })
}
