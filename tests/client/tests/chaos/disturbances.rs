//! Documents are cancelled and sessions are terminated while the workers work, and an operator changes
//! the tables.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fetchq_client_tests::{Server, Session, state_of};

use super::Dice;
use super::ledger::Ledger;

/// Cancels a document now and then, in any state.
pub async fn cancel(server: Server, ledger: Arc<Ledger>) {
    let mut dice = Dice::new(7);
    let mut session: Option<Session> = None;
    while !ledger.ended.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let Some(open) = &session else {
            session = server.try_connect("postgres").await.ok();
            continue;
        };
        let subject = {
            let mut documents = ledger.documents.lock().unwrap();
            let open = documents
                .iter_mut()
                .filter(|(_, d)| d.is_pushed && d.settled_by.is_none() && !d.is_cancelled);
            let open: Vec<_> = open.collect();
            if open.is_empty() {
                continue;
            }
            let at = dice.roll(open.len() as u64) as usize;
            let (subject, document) = open.into_iter().nth(at).expect("an open document");
            document.may_be_cancelled = true;
            subject.clone()
        };
        let answer = open
            .query_one(
                "select was_cancelled, (extract(epoch from clock_timestamp()) * 1000000)::int8
                 from fetchq.doc_cancel('q', $1)",
                &[&subject],
            )
            .await;
        match answer {
            Ok(row) if row.get(0) => ledger.with(&subject, |document| {
                assert!(
                    document.settled_by.is_none(),
                    "{subject} was cancelled after it was settled: {document:?}"
                );
                document.is_cancelled = true;
                document.cancelled_at = row.get(1);
                document.hold = None;
            }),
            Ok(_) => {}
            Err(_) => session = None,
        }
    }
}

/// Terminates the session of a worker every second.
pub async fn kill(server: Server, ledger: Arc<Ledger>, pids: Arc<Mutex<BTreeMap<i32, usize>>>) {
    let mut dice = Dice::new(3);
    let mut session: Option<Session> = None;
    while !ledger.ended.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(1000)).await;
        let Some(open) = &session else {
            session = server.try_connect("postgres").await.ok();
            continue;
        };
        let victim = {
            let pids = pids.lock().unwrap();
            let at = dice.roll(pids.len().max(1) as u64) as usize;
            pids.iter().nth(at).map(|(pid, life)| (*pid, *life))
        };
        if let Some((pid, life)) = victim {
            ledger.doom(life);
            let killed = open.query("select pg_terminate_backend($1)", &[&pid]).await;
            if killed.is_err() {
                session = None;
            }
        }
    }
}

/// Terminates the process that writes late leases, which starts again.
pub async fn terminate_background_worker(server: Server, ledger: Arc<Ledger>) {
    let mut session: Option<Session> = None;
    for turn in 0_u64.. {
        if ledger.ended.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(300 + 400 * (turn % 5))).await;
        let Some(open) = &session else {
            session = server.try_connect("postgres").await.ok();
            continue;
        };
        let sql = "select pg_terminate_backend(pid) from pg_stat_activity
            where backend_type = 'fetchq background worker'";
        if open.batch_execute(sql).await.is_err() {
            session = None;
        }
    }
}

/// What an operator does to the tables of a queue while it is used. The last two are cancelled
/// half-way.
pub const DDL: [&str; 11] = [
    "vacuum full fetchq_data.q__docs",
    "cluster fetchq_data.q__docs using q__docs_pkey",
    "reindex table concurrently fetchq_data.q__docs",
    "reindex index fetchq_data.q__docs_pick_idx",
    "alter table fetchq_data.q__docs alter column payload set storage external",
    "alter table fetchq_data.q__docs set (fillfactor = 90)",
    "vacuum (analyze) fetchq_data.q__docs",
    "vacuum full fetchq.jobs",
    "vacuum full fetchq.queues",
    "create index concurrently operators_idx on fetchq_data.q__docs (created_at)",
    "reindex table concurrently fetchq_data.q__docs",
];

/// How many statements at the end of `DDL` are cancelled.
const CANCELLED: usize = 2;

/// Runs the statements of `DDL` all the time. Returns how many have succeeded.
pub async fn operate(server: Server, ledger: Arc<Ledger>) -> usize {
    let mut session: Option<Session> = None;
    let mut done = 0;
    for turn in 0.. {
        if ledger.ended.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Some(open) = &session else {
            session = server.try_connect("postgres").await.ok();
            continue;
        };
        let at = turn % DDL.len();
        // A short timeout cancels a statement while it waits, or while it works.
        let timeout = match at {
            _ if at < DDL.len() - CANCELLED => 0,
            _ => 1 + turn % 40,
        };
        // A statement that was cancelled leaves an index behind that is not valid.
        let mut is_closed = false;
        for statement in [
            &format!("set statement_timeout = {timeout}"),
            DDL[at],
            "set statement_timeout = 0",
            "drop index if exists fetchq_data.operators_idx",
        ] {
            match open.batch_execute(statement).await {
                Ok(()) => done += 1,
                Err(e) if e.is_closed() || e.code().is_none() => {
                    is_closed = true;
                    break;
                }
                Err(e) => {
                    let state = state_of(&e);
                    let is_expected = state == "57014" || state.starts_with("57P");
                    assert!(is_expected, "{statement}: {e:?}");
                }
            }
        }
        if is_closed {
            session = None;
        }
    }
    done
}

/// A queue with a trigger that fails for one document, and takes long for all.
pub const MISBEHAVING_TRIGGER: &str = "
    select fetchq.queue_create('bad');
    create function misbehave() returns trigger language plpgsql as $$
    begin
        perform pg_sleep(0.2);
        if new.subject = 'bad' then
            raise exception 'no';
        end if;
        return new;
    end $$;
    insert into fetchq_data.bad__docs (subject, next_iteration)
        select unnest(array['bad', 'slow 1', 'slow 2', 'slow 3']), now() + interval '1 s';
    create trigger misbehave before update on fetchq_data.bad__docs
        for each row execute function misbehave()";
