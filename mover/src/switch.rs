//! The switch: the queues are locked on the old server, the new one gets the rest, and the commit of
//! the old server decides.
use std::time::Duration;

use fetchq_domain::names::QueueName;
use serde_json::json;

use crate::check::{left_behind, read_queues};
use crate::failure::{Failure, Result};
use crate::names::{table_names, texts};
use crate::pause::{self, summary};
use crate::records;
use crate::rest::{self, Queue};
use crate::say::say;
use crate::server::Server;
use crate::stage::{self, Staged};
use crate::step::{Step, Stops};
use crate::strangers;
use crate::stream::{self, Names};

/// What a switch needs.
pub struct Switch<'a> {
    /// The session that locks the queues.
    pub old: &'a Server,
    /// Another session of the old server.
    pub watch: &'a Server,
    pub new: &'a Server,
    pub id: &'a str,
    pub queues: &'a [Queue],
    pub names: &'a [QueueName],
    /// What was made on the new server.
    pub staged: &'a Staged,
    pub objects: &'a Names,
    pub place: &'a str,
    pub lock_timeout: u32,
    pub pause_limit: Duration,
    pub stops: Stops,
}

// A deadlock ends this transaction and not that of a worker. If this process stands still or its machine
// is gone, the server ends the transaction, and the queues work on. What is committed must not be lost.
const LIMITS: &str = "set local deadlock_timeout = '250ms';
    select set_config('synchronous_commit', case
        when current_setting('synchronous_commit') in ('off', 'local') then 'on'
        else current_setting('synchronous_commit') end, true)";

// A lease that is only in the shared memory of the old server would be lost. This allows no more of them.
const WRITE_LEASES: &str =
    "select fetchq.leases_write(queue)::text from unnest($1::text[]) as queue order by queue";

// The locks are taken in the order in which maintenance takes them: jobs, registry, schedules, tables.
// With the lock of the registry no counters are packed, no setting is changed, and no schedule is made.
const LOCK_JOBS: &str =
    "select from fetchq.jobs where queue = any ($1::text[]) order by id for update";

const LOCK_QUEUES: &str =
    "select from fetchq.queues where name = any ($1::text[]) order by id for update";

const LOCK_SCHEDULES: &str =
    "select from fetchq.schedules where queue = any ($1::text[]) order by name for update";

// A counter can be increased without a lock of the registry.
const LOCK_METRICS: &str =
    "select from fetchq.metrics where queue = any ($1::text[]) order by queue, metric for update";

// Rows can be added to these without any lock of the queue.
const LOCK_LOGS: &str =
    "lock table fetchq.metrics_writes, fetchq.stop_requests in share row exclusive mode";

const PID: &str = "select pg_backend_pid()";

// A prepared transaction has the number 0.
const BLOCKERS: &str = "select string_agg(case b.pid when 0 then 'a prepared transaction' else
        format('session %s (%s, %s)', b.pid, coalesce(a.usename::text, a.backend_type),
            coalesce(a.state, 'background')) end, ', ')
    from unnest(pg_blocking_pids($1::int)) as b (pid) left join pg_stat_activity a on a.pid = b.pid";

/// After this time a line says for whom the lock waits.
const PATIENCE: Duration = Duration::from_millis(500);

const EXISTING: &str = "select c.relname::text from pg_class c
    where c.relnamespace = 'fetchq_data'::regnamespace and c.relkind = 'r'
        and c.relname = any ($1::text[]) order by array_position($1::text[], c.relname::text)";

impl Switch<'_> {
    /// Begins the transaction that locks the queues, and does everything but its commit.
    ///
    /// Returns how many documents move. After an error the transaction is rolled back, and the queues work
    /// on.
    pub async fn prepare(&self) -> Result<i64> {
        let prepared = self.prepare_in_transaction().await;
        if prepared.is_err() {
            self.old.roll_back().await;
        }
        prepared
    }

    async fn prepare_in_transaction(&self) -> Result<i64> {
        let locked_at = crate::say::now_ms();
        self.lock().await?;
        self.require_unchanged().await?;
        self.stops.before(Step::CatchUp).await;
        say("locked: the new server gets what was committed before");
        stream::wait_for_all(self.watch, self.objects).await?;
        self.stops.before(Step::Verify).await;
        say("the new server has caught up: comparing the documents");
        let documents = self.verify().await?;
        self.stops.before(Step::Rest).await;
        say("the documents are the same: copying the rest");
        self.store_rest(documents, locked_at).await?;
        Ok(documents)
    }

    async fn lock(&self) -> Result<()> {
        let names = texts(self.names);
        let old = self.old;
        old.run("begin").await?;
        old.run(LIMITS).await?;
        old.run(&limits(self.lock_timeout, self.pause_limit))
            .await?;
        for sql in [LOCK_JOBS, LOCK_QUEUES, LOCK_SCHEDULES, WRITE_LEASES] {
            old.rows(sql, &[&names]).await?;
        }
        let tables = old.texts(EXISTING, &[&table_names(self.names)]).await?;
        let tables: Vec<String> = tables
            .iter()
            .map(|table| format!("fetchq_data.\"{table}\""))
            .collect();
        let lock = format!(
            "lock table only {} in access exclusive mode",
            tables.join(", only ")
        );
        self.run_and_watch(&lock).await?;
        old.rows(LOCK_METRICS, &[&names]).await?;
        old.run(LOCK_LOGS).await
    }

    /// Runs a statement that may wait for others, and says for whom.
    async fn run_and_watch(&self, sql: &str) -> Result<()> {
        let pid: i32 = self.old.one(PID, &[]).await?.get(0);
        let done = self.old.run(sql);
        let mut done = std::pin::pin!(done);
        tokio::select! {
            done = &mut done => return done,
            () = tokio::time::sleep(PATIENCE) => {}
        }
        if let Ok(Some(row)) = self.watch.first(BLOCKERS, &[&pid]).await
            && let Some(who) = row.get::<_, Option<String>>(0)
        {
            say(&format!("the lock waits for: {who}"));
        }
        done.await
    }

    /// What was checked before can have changed until the lock.
    async fn require_unchanged(&self) -> Result<()> {
        for (queue, shape) in self.queues.iter().zip(&self.staged.shapes) {
            let name = queue.name.as_str();
            match stage::shape(self.old, queue).await? {
                None => {
                    return Err(Failure::new(format!(
                        "queue \"{name}\" was dropped on the old server meanwhile"
                    )));
                }
                Some(now) if now != *shape => {
                    return Err(Failure::new(format!(
                        "settings of queue \"{name}\" that shape its tables were changed meanwhile: {now}, not {shape}"
                    ))
                    .with_hint("Run the command again."));
                }
                Some(_) => {}
            }
        }
        strangers::require_none(self.old, self.names).await?;
        if let Some(source) = left_behind(self.old, self.names).await?.first() {
            return Err(Failure::new(format!(
                "a queue that stays would lose its dead-letter queue: {source}"
            ))
            .with_hint("Move it too (--queue), or give it another dead-letter queue."));
        }
        match read_queues(self.new, self.names).await?.first() {
            Some(queue) => Err(Failure::new(format!(
                "somebody has made queue \"{}\" on the new server meanwhile",
                queue.name.as_str()
            ))),
            None => Ok(()),
        }
    }

    /// Compares the documents of both servers. Returns how many there are.
    async fn verify(&self) -> Result<i64> {
        let mut documents = 0;
        for name in self.names {
            let sql = summary(name);
            let (here, there) = tokio::join!(self.old.one(&sql, &[]), self.new.one(&sql, &[]));
            let (here, there) = (here?, there?);
            let (one, other): (String, String) = (here.get(1), there.get(1));
            if one != other {
                return Err(Failure::new(format!(
                    "the documents of queue \"{}\" differ: {one} on the old server, {other} on the new one",
                    name.as_str()
                ))
                .with_hint("This is a mistake in the replication: its log may say more. The queues stay where they are."));
            }
            documents += here.get::<_, i64>(0);
        }
        Ok(documents)
    }

    /// Copies what is in no replicated table, drops the queues on the old server (not committed), and
    /// commits on the new one that it has everything.
    async fn store_rest(&self, documents: i64, locked_at: i64) -> Result<()> {
        let new = self.new;
        new.run("begin").await?;
        let stored = self.store_in_transaction(documents, locked_at).await;
        if stored.is_err() {
            new.roll_back().await;
        }
        stored
    }

    async fn store_in_transaction(&self, documents: i64, locked_at: i64) -> Result<()> {
        let (old, new) = (self.old, self.new);
        records::remove_rows(new, self.id).await?;
        let rows = rest::copy(self.id, self.queues, old, new).await?;
        rest::remove_direct(self.id, new).await?;
        rest::copy_direct(self.queues, &self.staged.queues, old, new).await?;
        self.rehearse().await?;
        let detail = json!({
            "documents": documents, "locked_at": locked_at, "place": self.place, "rows": rows,
        });
        records::set(new, self.id, records::READY, &detail).await?;
        self.give_away().await?;
        self.stops.before(Step::Ready).await;
        // Waits for a synchronous standby as well: it has everything that was replicated before.
        new.run(SURELY).await?;
        new.run("commit").await
    }

    /// Registers the queues and takes it back: what would fail after the commit fails now.
    async fn rehearse(&self) -> Result<()> {
        self.new.run("savepoint rehearsal").await?;
        self.register_and_define().await.map_err(|failure| {
            Failure::new(format!(
                "the new server could not register the queues: {failure}"
            ))
        })?;
        self.new.run("rollback to savepoint rehearsal").await
    }

    async fn register_and_define(&self) -> Result<()> {
        rest::register(self.id, &self.staged.queues, self.new).await?;
        for queue in &self.staged.queues {
            rest::define(self.id, queue, self.new).await?;
        }
        Ok(())
    }

    /// Drops the queues on the old server, and records where they live. The transaction is still open.
    async fn give_away(&self) -> Result<()> {
        for name in self.names {
            self.old.one(DROP, &[&name.as_str()]).await?;
            self.old
                .one(SET_PLACE, &[&name.as_str(), &self.place])
                .await?;
        }
        records::set(self.old, self.id, records::SWITCHED, &json!({})).await
    }

    /// Commits. From then on the queues live on the new server. An error says nothing: the server may
    /// have committed before the connection was lost.
    pub async fn commit(&self) -> Result<()> {
        self.stops.before(Step::Commit).await;
        self.old.run("commit").await
    }
}

/// The limits of this transaction that follow from the options.
fn limits(lock_timeout: u32, pause_limit: Duration) -> String {
    let limit = pause::transaction_limit(pause_limit);
    // A statement that waits for a lock has the time for that as well.
    let statement = limit + Duration::from_secs(lock_timeout.into());
    format!(
        "set local lock_timeout = '{lock_timeout}s';
        set local statement_timeout = {};
        set local idle_in_transaction_session_timeout = {}",
        statement.as_millis(),
        limit.as_millis()
    )
}

const SURELY: &str = "select set_config('synchronous_commit', case
    when current_setting('synchronous_commit') in ('off', 'local') then 'on'
    else current_setting('synchronous_commit') end, true)";

const DROP: &str = "select fetchq.queue_drop($1::text)::text";

const SET_PLACE: &str = "select fetchq.queue_place_set($1::text, $2::text)::text";

const STATES: &str = "select count(*) from fetchq.queues where name = any ($1::text[])";

/// Whether a switch whose commit got no answer is committed. `old`: a new session that has locked the
/// queues against other runs, so that the one before is decided.
pub async fn is_committed(old: &Server, id: &str, names: &[QueueName]) -> Result<bool> {
    let is_switched = records::state(old, id).await?.as_deref() == Some(records::SWITCHED);
    let left: i64 = old.one(STATES, &[&texts(names)]).await?.get(0);
    say(&match is_switched {
        true => "the old server has committed the switch".to_owned(),
        false => {
            format!("the old server has not committed the switch, and has {left} of the queues")
        }
    });
    Ok(is_switched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_may_wait_for_a_lock_and_take_as_long_as_the_comparison() {
        let sql = limits(600, Duration::from_secs(20));
        for part in [
            "lock_timeout = '600s'",
            "statement_timeout = 680000",
            "idle_in_transaction_session_timeout = 80000",
        ] {
            assert!(sql.contains(part), "{sql}");
        }
    }
}
