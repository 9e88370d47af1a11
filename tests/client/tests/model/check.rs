//! The checks. They compare picks with the documents in the heap, which they read without any
//! index, and so without anything that fetchq derives from the documents.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fetchq_client_tests::{compare_counters, leaves_out};
use tokio_postgres::SimpleQueryMessage;

use super::dice::Dice;
use super::step::{CREATE, SESSIONS, WORKERS, pick_sql};
use super::world::{Block, Result, World, Wrong};

/// A pending document, as stored in the heap.
#[derive(Clone, Debug)]
struct Doc {
    subject: String,
    ctid: String,
    version: i32,
    key: Key,
}

/// The order of picking; times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Negated, because the highest priority is picked first.
    priority: i64,
    at: i64,
    attempts: i64,
    seq: i64,
}

/// Pending documents, due or not, read from the heap.
const PENDING: &str =
    "select subject, ctid, version, -priority::bigint, us(next_iteration), attempts, seq
    from fetchq_data.q__docs where status + 0 = 1 and lock_upgrade is null";

fn rows(messages: &[SimpleQueryMessage]) -> impl Iterator<Item = Vec<&str>> {
    messages.iter().filter_map(|m| match m {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|i| row.get(i).unwrap_or("")).collect())
        }
        _ => None,
    })
}

fn pending(messages: &[SimpleQueryMessage]) -> Vec<Doc> {
    let number = |text: &str| text.parse::<i64>().expect("a number");
    rows(messages)
        .map(|row| Doc {
            subject: row[0].to_owned(),
            ctid: row[1].to_owned(),
            version: number(row[2]) as i32,
            key: Key {
                priority: number(row[3]),
                at: number(row[4]),
                attempts: number(row[5]),
                seq: number(row[6]),
            },
        })
        .collect()
}

impl World {
    /// A pick in a history. A watched pick must return, in order and without a gap, the documents
    /// that its session can see and that are not locked.
    pub async fn pick(
        &mut self,
        who: usize,
        version: i32,
        limit: u32,
        lease: &str,
        watched: bool,
    ) -> Result<()> {
        let pick = format!("select us(now()); {}", pick_sql(version, limit, lease));
        // The documents that are not locked. They cannot be read while the table is locked. The rows do not say
        // which of them have a late lease.
        let free = match watched && !self.has_late_leases() {
            true => self.free(version).await,
            false => None,
        };
        let Some(free) = free else {
            return self.sql(who, &pick).await.map(|_| ());
        };
        let seen = if self.is_idle(who) {
            free.clone()
        } else {
            // The session may see its own changes, or have an older snapshot.
            let see = format!("{PENDING} and version + 0 = {version}");
            match self.sql(who, &see).await? {
                Some(messages) => pending(&messages),
                None => return Ok(()),
            }
        };
        let exact = self.is_idle(who);
        let Some(messages) = self.sql(who, &pick).await? else {
            return Ok(());
        };
        let (now, picked) = picked(&messages);
        judge(&pick, limit, now, &picked, &seen, &free, exact)
    }

    async fn free(&self, version: i32) -> Option<Vec<Doc>> {
        let sql = format!(
            "set lock_timeout = '15ms'; {PENDING} and version + 0 = {version} for update skip locked;
             set lock_timeout = '10s'"
        );
        let messages = self.observer.simple_query(&sql).await.ok()?;
        Some(pending(&messages))
    }

    /// What the documents and the ready floors look like, for a report.
    async fn state(&self) -> String {
        let mut report = String::new();
        for sql in [
            "select pg_current_wal_lsn(), clock_timestamp()",
            "select subject, ctid, xmin, xmax, version, priority, status, next_iteration, seq, ordering_key, lock_upgrade
             from fetchq_data.q__docs order by version, priority desc, next_iteration limit 300",
            "select * from fetchq.ready_floors('q')",
            "select * from fetchq.ordering_keys",
            "select task, next_iteration, attempts, payload from fetchq.jobs where queue = 'q'",
            "select pid, backend_type, state, xact_start, query from pg_stat_activity where datname = current_database()",
        ] {
            let messages = self.observer.simple_query(sql).await;
            let found = messages.as_deref().map(|m| rows(m).map(|row| row.join(" ")).collect::<Vec<_>>());
            report.push_str(&format!("{sql}:\n{found:#?}\n"));
        }
        report
    }

    async fn number(&self, sql: &str) -> i64 {
        self.observer.text(sql).await.parse().expect("a number")
    }

    /// The end of a history: all transactions end. Then picks alone must return every document,
    /// once and in order.
    pub async fn end(&mut self, seed: u64) -> Result<()> {
        let mut dice = Dice::new(seed);
        for who in 0..SESSIONS {
            // The snapshot may stay, because it locks nothing.
            if self.workers[who].block != Block::Closed && (who < WORKERS || dice.percent(50)) {
                let end = *dice.one(&["commit", "rollback"]);
                self.sql(who, end).await?;
            }
        }
        self.finish_prepared(|_| dice.percent(50)).await;
        if self
            .number("select count(*) from fetchq.queues where name = 'q'")
            .await
            == 0
        {
            self.observer.sql(CREATE).await;
        }
        self.queue_is_back();
        self.write_leases().await;

        self.all_come(&mut dice).await?;
        self.all_due_come(&mut dice).await?;
        self.write_leases().await;
        self.places().await?;
        self.counters(&mut dice).await?;
        // Reading all shared memory takes a while.
        if dice.percent(15) {
            self.engine_is_content().await?;
        }
        self.clean(&mut dice).await;
        Ok(())
    }

    /// Picks until the queue returns no document.
    async fn all_come(&mut self, dice: &mut Dice) -> Result<()> {
        let messages = self.observer.simple_query(PENDING).await.expect("the heap");
        let mut left: HashMap<i32, Vec<Doc>> = HashMap::new();
        for doc in pending(&messages) {
            left.entry(doc.version).or_default().push(doc);
        }
        let soon = self.number("select us(now() + interval '60 ms')").await;
        let mut versions: Vec<i32> = left.keys().copied().collect();
        versions.sort();
        // A version without documents is polled, too.
        versions.push(3);
        for version in versions {
            let mut left = left.remove(&version).unwrap_or_default();
            loop {
                let limit = *dice.one(&[1, 2, 10, 100]);
                let who = dice.roll(WORKERS);
                let pick = format!("select us(now()); {}", pick_sql(version, limit, "1h"));
                let messages = self.idle_sql(who, &pick).await?;
                let (now, picked) = picked(&messages);
                if let Err(Wrong(what)) = judge(&pick, limit, now, &picked, &left, &left, true) {
                    let state = self.state().await;
                    let again = self.idle_sql(who, &pick).await?;
                    return Err(Wrong(format!(
                        "{what}\ns{who} picked then: {:?}\n{state}",
                        self::picked(&again)
                    )));
                }
                left.retain(|doc| !picked.contains(&doc.subject));
                if picked.is_empty() {
                    // Documents that are due in a moment must be returned without maintenance.
                    match left
                        .iter()
                        .map(|doc| doc.key.at)
                        .filter(|at| *at <= soon)
                        .min()
                    {
                        Some(at) => {
                            let wait = u64::try_from(at - now).unwrap_or(0) + 200;
                            tokio::time::sleep(Duration::from_micros(wait)).await;
                        }
                        None => break,
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks planned documents that are due, and expired leases.
    async fn all_due_come(&mut self, dice: &mut Dice) -> Result<()> {
        self.write_leases().await;
        let due = "select count(*) from fetchq_data.q__docs where lock_upgrade is null
            and (status + 0 = 0 and next_iteration <= to_timestamp(0) + $now
                or status + 0 = 2 and next_iteration < to_timestamp(0) + $now)";
        // Maintenance reads the queue just before documents become due, and must find them later.
        let soon =
            "select coalesce(min(us(next_iteration)) - us(now()), 0) from fetchq_data.q__docs
            where lock_upgrade is null and status + 0 in (0, 2)
                and next_iteration > now() and next_iteration < now() + interval '60 ms'";
        let wait = self.number(soon).await;
        if wait > 0 {
            let who = dice.roll(WORKERS);
            self.sql(who, "select fetchq.mnt_run('q', 1000)").await?;
            tokio::time::sleep(Duration::from_micros(wait as u64 + 200)).await;
        }
        let now = self.number("select us(now())").await;
        let due = due.replace("$now", &format!("{now} * interval '1 us'"));
        let mut turns = 0;
        loop {
            let limit = *dice.one(&[1, 3, 1000]);
            let who = dice.roll(WORKERS);
            let run = format!(
                "select activated_count + rescheduled_count + killed_count from fetchq.mnt_run('q', {limit})"
            );
            let messages = self.idle_sql(who, &run).await?;
            let moved: i64 = rows(&messages)
                .map(|row| row[0].parse::<i64>().expect("a count"))
                .sum();
            let left = self.number(&due).await;
            if moved == 0 && left > 0 {
                let what = self
                    .observer
                    .rows(&due.replacen("count(*)", "subject, status, next_iteration, attempts", 1))
                    .await;
                return Err(Wrong(format!(
                    "s{who}: {run} found nothing, although {what:?} are due"
                )));
            }
            if moved == 0 {
                break;
            }
            turns += 1;
            assert!(turns < 10_000, "{left} documents remain due");
        }
        self.all_come(dice).await
    }

    /// Checks which documents of an ordering key may run.
    async fn places(&mut self) -> Result<()> {
        let is_strict = !self.raw && !self.altered;
        if !is_strict {
            // Triggers may have been off. The recount repairs that.
            self.observer
                .sql(
                    "update fetchq.jobs set next_iteration = '2020-01-01' where queue = 'q' and task = 'cmp';
                     select fetchq.mnt()",
                )
                .await;
        }
        let wrong = self
            .observer
            .column(&format!("select wrong_places({is_strict})"))
            .await;
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(Wrong(format!("the places of keys: {wrong:?}"))),
        }
    }

    async fn counters(&mut self, dice: &mut Dice) -> Result<()> {
        if self.raw {
            if !dice.percent(25) {
                return Ok(());
            }
            self.observer.sql("select fetchq.mnt()").await;
        }
        if dice.percent(30) {
            self.observer.sql("select fetchq.metric_log_pack()").await;
        }
        compare_counters(&mut self.observer, "q")
            .await
            .map(|_| ())
            .map_err(Wrong)
    }

    /// Checks that the safety net has found no document that a floor had hidden.
    pub async fn engine_is_content(&mut self) -> Result<()> {
        if let (Some(before), Some(after)) = (self.engine, self.read_engine().await)
            && after.floor_misses != before.floor_misses
        {
            self.engine = Some(after);
            return Err(Wrong(format!(
                "floor_misses went from {} to {}: the safety net found a document that a floor had hidden, in a queue of this or another database",
                before.floor_misses, after.floor_misses
            )));
        }
        Ok(())
    }

    /// Prepares the start of the next history: dead entries and floors stay, documents stay, or
    /// nothing stays.
    async fn clean(&mut self, dice: &mut Dice) {
        let documents = self
            .number("select count(*) from fetchq_data.q__docs")
            .await;
        let how = match dice.roll(20) {
            0 => 0,
            roll if documents > 400 => 1 + roll % 2,
            roll => 1 + roll % 5,
        };
        let sql = match how {
            0 => "select fetchq.queue_truncate('q', true)",
            1 => "delete from fetchq_data.q__docs",
            2 => {
                "select fetchq.doc_drop('q', subject) from (select subject from fetchq_data.q__docs where status = 2) d; delete from fetchq_data.q__docs"
            }
            3 => {
                "select fetchq.doc_reschedule('q', subject, '2020-01-02') from (select subject from fetchq_data.q__docs where status = 2) d"
            }
            4 => {
                "select fetchq.doc_reject('q', subject, 'why', '{}') from (select subject from fetchq_data.q__docs where status = 2) d"
            }
            _ => "select",
        };
        let mut sql = sql.to_owned();
        // An operator who disabled triggers or dropped indexes restores both.
        // Disabling triggers alone leaves the queue without floors.
        if self.altered {
            sql.push_str(
                "; alter table fetchq_data.q__docs enable trigger all; select fetchq.queue_create_indexes('q')",
            );
            if self.has("ready_stats") && dice.percent(80) {
                sql.push_str(
                    "; alter table fetchq_data.q__docs enable always trigger fetchq_ready",
                );
                self.altered = false;
            }
        }
        if self.raw || how == 1 || how == 2 {
            sql.push_str("; select fetchq.metric_reset('q')");
        }
        self.observer.sql(&sql).await;
        self.raw = false;
    }
}

impl World {
    /// Checks that each index of the documents contains all of them.
    pub async fn indexes_are_sound(&self) {
        if leaves_out("amcheck") {
            return;
        }
        self.observer
            .sql(
                "create extension if not exists amcheck;
                 select bt_index_check(i.indexrelid, true) from pg_index i
                 where i.indrelid = 'fetchq_data.q__docs'::regclass",
            )
            .await;
    }
}

/// `now()` of the pick, and the subjects that it returned.
fn picked(messages: &[SimpleQueryMessage]) -> (i64, Vec<String>) {
    let mut rows = rows(messages);
    let now = rows.next().expect("the time")[0].parse().expect("a number");
    (now, rows.map(|row| row[0].to_owned()).collect())
}

/// Checks the result of a pick. `seen` are the documents that its session can see, `free` those
/// that are not locked; `exact` when these are the same.
fn judge(
    pick: &str,
    limit: u32,
    now: i64,
    picked: &[String],
    seen: &[Doc],
    free: &[Doc],
    exact: bool,
) -> Result<()> {
    let wrong = |what: String| {
        let mut due: Vec<&Doc> = seen.iter().filter(|doc| doc.key.at <= now).collect();
        due.sort_by_key(|doc| doc.key);
        let shown: Vec<String> = due
            .iter()
            .take(limit as usize + 3)
            .map(|doc| format!("{} {:?}", doc.subject, doc.key))
            .collect();
        Err(Wrong(format!(
            "{pick}\n{what}\npicked: {picked:?}\n{} could be seen and were due at {now}; the first: {shown:#?}",
            due.len()
        )))
    };
    if picked.len() > limit as usize {
        return wrong("too many".to_owned());
    }
    let seen_by_subject: HashMap<&str, &Doc> =
        seen.iter().map(|doc| (doc.subject.as_str(), doc)).collect();
    let free: HashMap<&str, &str> = free
        .iter()
        .map(|doc| (doc.subject.as_str(), doc.ctid.as_str()))
        .collect();
    let mut came: HashSet<&str> = HashSet::new();
    let mut keys: Vec<Key> = Vec::new();
    for subject in picked {
        if !came.insert(subject) {
            return wrong(format!("{subject} was picked twice"));
        }
        let Some(doc) = seen_by_subject.get(subject.as_str()) else {
            return wrong(format!("{subject} cannot be picked"));
        };
        if doc.key.at > now {
            return wrong(format!("{subject} is not due"));
        }
        if exact && !free.contains_key(subject.as_str()) {
            return wrong(format!("{subject} is locked by another session"));
        }
        keys.push(doc.key);
    }
    if !keys.is_sorted() {
        return wrong("the order is wrong".to_owned());
    }
    let full = picked.len() == limit as usize;
    for doc in seen.iter().filter(|doc| doc.key.at <= now) {
        let missed = !came.contains(doc.subject.as_str())
            && (!full || keys.last().is_some_and(|last| doc.key < *last))
            && free.get(doc.subject.as_str()) == Some(&doc.ctid.as_str());
        if missed {
            return wrong(format!("{} was not picked", doc.subject));
        }
    }
    Ok(())
}
