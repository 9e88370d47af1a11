//! The logical replication of the tables: publications and slot on the old server, the subscription on
//! the new one.
use std::time::{Duration, Instant};

use fetchq_domain::names::QueueName;

use crate::failure::{Failure, Result};
use crate::rest::Queue;
use crate::say::say;
use crate::server::{Server, literal};

/// The objects of a move have its id in their names.
pub struct Names {
    /// The documents, logs and snapshots.
    pub publication: String,
    /// The histories.
    pub histories: String,
    /// The replication slot.
    pub slot: String,
    /// The subscription.
    pub subscription: String,
}

impl Names {
    /// The names for the move of this id.
    pub fn of(id: &str) -> Self {
        Self {
            publication: format!("fetchq_move_{id}"),
            histories: format!("fetchq_move_{id}_history"),
            slot: format!("fetchq_move_{id}"),
            subscription: format!("fetchq_move_{id}"),
        }
    }
}

/// A queue and whether it has a history.
pub struct Published {
    pub name: QueueName,
    pub has_history: bool,
}

/// The tables of the queues, as a list for a statement.
fn tables(queues: &[Published], suffixes: &[&str]) -> String {
    let all = queues
        .iter()
        .flat_map(|queue| suffixes.iter().map(|suffix| queue.name.qualified(suffix)));
    all.collect::<Vec<String>>().join(", only ")
}

const CREATE_SLOT: &str = "select pg_create_logical_replication_slot($1::text, 'pgoutput')::text";

/// Makes the publications, and then the slot: what is read from a slot has to know its publications.
///
/// Rows of a history are never changed, and only retention removes them, which the new server does
/// itself. So its publication has no updates and deletes, for which the table would need a key.
/// `other` is another session of the old server.
pub async fn publish(
    old: &Server,
    other: &Server,
    names: &Names,
    queues: &[Published],
) -> Result<()> {
    let sql = format!(
        "create publication {} for table only {}",
        names.publication,
        tables(queues, &["docs", "logs", "metrics"])
    );
    old.run(&sql).await?;
    let kept: Vec<Published> = queues
        .iter()
        .filter(|queue| queue.has_history)
        .map(|queue| Published {
            name: queue.name.clone(),
            has_history: true,
        })
        .collect();
    if !kept.is_empty() {
        let sql = format!(
            "create publication {} for table only {} with (publish = 'insert, truncate')",
            names.histories,
            tables(&kept, &["history"])
        );
        old.run(&sql).await?;
    }
    make_slot(old, other, names).await
}

const OLDEST: &str = "select s.who from (
        select format('session %s of %s', a.pid, a.usename) as who, a.xact_start as since
        from pg_stat_activity a where a.backend_xid is not null and a.pid <> pg_backend_pid()
        union all
        select format('prepared transaction \"%s\"', p.gid), p.prepared from pg_prepared_xacts p) s
    order by s.since limit 1";

/// Makes the slot. It begins when all transactions have ended that run now, in all databases.
async fn make_slot(old: &Server, other: &Server, names: &Names) -> Result<()> {
    say("making a replication slot");
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&names.slot];
    let made = old.rows(CREATE_SLOT, &params);
    let mut made = std::pin::pin!(made);
    loop {
        tokio::select! {
            done = &mut made => return done.map(|_| ()),
            () = tokio::time::sleep(REPORT_EVERY) => {
                if let Some(row) = other.first(OLDEST, &[]).await? {
                    let who: String = row.get(0);
                    say(&format!("the slot waits for transactions that were there before; the oldest: {who}"));
                }
            }
        }
    }
}

// The statement has the connection string.
const KEEP_QUIET: &str = "set log_statement = none;
    set log_min_error_statement = panic;
    set log_min_duration_statement = -1;
    set log_min_duration_sample = -1;
    set log_transaction_sample_rate = 0;
    set track_activities = off;
    set pgaudit.log = 'none';
    set pg_stat_statements.track_utility = off";

/// Subscribes to the publications. `dsn` may have a password.
pub async fn subscribe(new: &Server, names: &Names, dsn: &str, has_histories: bool) -> Result<()> {
    new.run(KEEP_QUIET).await?;
    let histories = match has_histories {
        true => format!(", {}", names.histories),
        false => String::new(),
    };
    let streaming = match new.major() {
        13 => "",
        _ => ", streaming = off",
    };
    let sql = format!(
        "create subscription {} connection {} publication {}{histories}
         with (create_slot = false, slot_name = {}{streaming})",
        names.subscription,
        literal(dsn),
        names.publication,
        literal(&names.slot),
    );
    new.run(&sql).await.map_err(|failure| {
        // libpq shows a part of a string that it cannot read.
        match failure.to_string().contains("connection string") {
            true => Failure::new(format!(
                "{}: it cannot read the connection string of the old server",
                new.name()
            )),
            false => failure,
        }
        .with_hint(
            "The new server connects to the old one with the string of --from, or of --subscribe.",
        )
    })
}

const COPIED: &str =
    "select s.oid::bigint, count(r.srrelid) filter (where r.srsubstate = 'r'), count(r.srrelid)
    from pg_subscription s left join pg_subscription_rel r on r.srsubid = s.oid
    where s.subname = $1::text
        and s.subdbid = (select oid from pg_database where datname = current_database())
    group by s.oid";

const IS_RUNNING: &str = "select exists (
    select from pg_stat_subscription where subname = $1::text and pid is not null)";

/// How long the subscription may have no process.
const MAX_IDLE: Duration = Duration::from_secs(90);

/// How often a line says how far the move is.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Waits until all tables are copied. Returns the OID of the subscription.
pub async fn wait_for_copies(new: &Server, names: &Names, expected: i64) -> Result<i64> {
    let mut reported = Instant::now();
    let mut ran = Instant::now();
    loop {
        let row = new.first(COPIED, &[&names.subscription]).await?;
        let Some(row) = row else {
            return Err(Failure::new("somebody has dropped the subscription"));
        };
        let (oid, copied, all): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        if copied == all && all == expected {
            return Ok(oid);
        }
        if new.one(IS_RUNNING, &[&names.subscription]).await?.get(0) {
            ran = Instant::now();
        } else if ran.elapsed() > MAX_IDLE {
            return Err(Failure::new(format!(
                "{}: the subscription {} does not run",
                new.name(),
                names.subscription
            ))
            .with_hint("The log of that server says why."));
        }
        if reported.elapsed() > REPORT_EVERY {
            say(&format!("{copied} of {expected} tables are copied"));
            reported = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Vacuums the documents: what reads them first would otherwise write to each page, and that is the
/// comparison, while workers wait.
pub async fn vacuum(new: &Server, queues: &[Queue]) -> Result<()> {
    for queue in queues {
        let table = queue.name.qualified("docs");
        new.run(&format!("vacuum (analyze) {table}")).await?;
    }
    Ok(())
}

const LAG: &str = "select pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint,
        s.wal_status is not distinct from 'lost',
        pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0')::bigint
    from pg_replication_slots s where s.slot_name = $1::text";

/// The new server is close enough behind when it needs no longer than this for the rest, as fast as it
/// was until now, in seconds.
const CLOSE_SECONDS: f64 = 1.0;

/// After this time a longer rest is accepted: until then workers wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest rest that is accepted then, in seconds.
const LATER_SECONDS: f64 = 5.0;

/// After this time the move is given up.
const MAX_PATIENCE: Duration = Duration::from_secs(1800);

/// How long the new server needs for the rest, in seconds. `passed`: the bytes that it got in the last
/// `seconds`.
fn rest_seconds(lag: i64, passed: i64, seconds: f64) -> f64 {
    // Less than this is gone at once, whatever the speed was.
    const NOTHING: i64 = 256 << 10;
    if lag <= NOTHING {
        return 0.0;
    }
    if passed <= 0 || seconds <= 0.0 {
        return f64::INFINITY;
    }
    lag as f64 / (passed as f64 / seconds)
}

/// Waits until the new server is close behind the old one.
pub async fn wait_until_close(old: &Server, names: &Names) -> Result<()> {
    let began = Instant::now();
    let mut reported = began;
    let (mut last, mut last_at) = (None, began);
    loop {
        let (lag, position) = lag(old, names).await?;
        let passed = last.map_or(0, |last| position - last);
        let rest = rest_seconds(lag, passed, last_at.elapsed().as_secs_f64());
        let is_late = began.elapsed() > PATIENCE;
        if rest
            <= if is_late {
                LATER_SECONDS
            } else {
                CLOSE_SECONDS
            }
        {
            return Ok(());
        }
        if began.elapsed() > MAX_PATIENCE {
            return Err(Failure::new(format!(
                "the new server does not catch up: it is {} MB behind",
                lag >> 20
            ))
            .with_hint("Move the queues while less is written, or pause their producers."));
        }
        if reported.elapsed() > REPORT_EVERY {
            say(&format!("the new server is {} MB behind", lag >> 20));
            reported = Instant::now();
        }
        if last_at.elapsed() > Duration::from_secs(1) || last.is_none() {
            (last, last_at) = (Some(position), Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// How many bytes the new server is behind, and its position.
async fn lag(old: &Server, names: &Names) -> Result<(i64, i64)> {
    let row = old.first(LAG, &[&names.slot]).await?;
    let Some(row) = row else {
        return Err(Failure::new("somebody has dropped the replication slot"));
    };
    if row.get(1) {
        return Err(Failure::new(format!(
            "{}: the replication slot has lost what the new server needs",
            old.name()
        ))
        .with_hint("Raise max_slot_wal_keep_size."));
    }
    Ok((row.get(0), row.get(2)))
}

// The commit of this statement writes everything before it to the disk.
const MARK: &str = "select pg_logical_emit_message(true, 'fetchq_move', 'switch')::text";

const HAS_REACHED: &str = "select s.confirmed_flush_lsn >= $2::text::pg_lsn
    from pg_replication_slots s where s.slot_name = $1::text";

/// How long workers wait at most until the new server has what was committed before the lock.
const MAX_CATCH_UP: Duration = Duration::from_secs(20);

/// Waits until the new server has stored all that was committed on the old one until now.
pub async fn wait_for_all(old: &Server, names: &Names) -> Result<()> {
    let position: String = old.one(MARK, &[]).await?.get(0);
    let began = Instant::now();
    loop {
        let row = old.first(HAS_REACHED, &[&names.slot, &position]).await?;
        match row {
            None => return Err(Failure::new("somebody has dropped the replication slot")),
            Some(row) if row.get::<_, bool>(0) => return Ok(()),
            Some(_) => {}
        }
        if began.elapsed() > MAX_CATCH_UP {
            return Err(Failure::busy(
                "the new server has not caught up in time, and the queues work on",
            ));
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// The queues and whether they have a history, by their shapes.
pub fn published(queues: &[Queue], shapes: &[serde_json::Value]) -> Vec<Published> {
    let has_history = |shape: &serde_json::Value| {
        shape.get("history").and_then(serde_json::Value::as_bool) == Some(true)
    };
    queues
        .iter()
        .zip(shapes)
        .map(|(queue, shape)| Published {
            name: queue.name.clone(),
            has_history: has_history(shape),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_listed_for_a_statement() {
        let queues = ["a", "b"].map(|name| Published {
            name: QueueName::parse(name).unwrap(),
            has_history: false,
        });
        assert_eq!(
            tables(&queues, &["docs", "logs"]),
            "fetchq_data.\"a__docs\", only fetchq_data.\"a__logs\", \
             only fetchq_data.\"b__docs\", only fetchq_data.\"b__logs\""
        );
    }

    #[test]
    fn the_rest_is_estimated_by_the_speed_until_now() {
        assert!(rest_seconds(1000, 0, 1.0) <= 0.0);
        assert!(rest_seconds(10 << 20, 0, 1.0).is_infinite());
        let rest = rest_seconds(10 << 20, 5 << 20, 1.0);
        assert!((rest - 2.0).abs() < 0.01, "{rest}");
    }
}
