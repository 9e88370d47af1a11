//! Documents are inserted while a ready floor is being advanced.
//! Their index entries may appear behind the scan, and must be found nevertheless.
//! An open snapshot keeps many dead entries, so that a scan from the start of the index is slow
//! enough to overlap with an insert.

use std::collections::HashSet;
use std::time::Duration;

use fetchq_client_tests::{Server, Session};
use tokio::sync::mpsc;

const WRITERS: usize = 3;
/// The number of advances that must overlap with an insert before the test ends.
const MET: i64 = 10;

async fn advances_discarded(session: &Session) -> Option<i64> {
    let exists = "select to_regproc('fetchq.ready_stats') is not null";
    if session.text(exists).await != "t" {
        return None;
    }
    let sql = "select advances_discarded from fetchq.ready_stats() where slots > 0";
    let rows = session.column(sql).await;
    rows.first().map(|n| n.parse().expect("a number"))
}

/// Writes one document for each request, in one of several ways.
async fn write(
    session: Session,
    number: usize,
    mut told: mpsc::Receiver<(String, u64)>,
    done: mpsc::Sender<()>,
) {
    while let Some((subject, delay)) = told.recv().await {
        tokio::time::sleep(Duration::from_micros(delay)).await;
        // All of them are before the last document that was alive: '2020-01-02'.
        let at = format!(
            "timestamptz '2020-01-01' + {} * interval '1 ms'",
            delay % 20_000
        );
        let columns = "subject, status, next_iteration";
        session
            .sql(&match number {
                0 => format!("select fetchq.doc_push('q', '{subject}', 0, 0, {at}, '{{}}')"),
                1 => format!("insert into fetchq_data.q__docs ({columns}) values ('{subject}', 1, {at})"),
                // The transaction ends a moment later.
                _ => format!(
                    "begin; select fetchq.doc_push('q', '{subject}', '{{}}', {at}); select pg_sleep(0.002); commit"
                ),
            })
            .await;
        done.send(()).await.expect("the test receives the answer");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inserts_while_a_floor_is_advanced() {
    let db = Server::of_suite().database("floor_race").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q');
             alter table fetchq_data.q__docs set (autovacuum_enabled = off);
             insert into fetchq_data.q__docs (subject, status, next_iteration)
             select 'dead' || i, 1, timestamptz '2020-01-01' + i * interval '1 ms' from generate_series(1, 20000) i",
        )
        .await;
    let holder = db.connect().await;
    holder
        .sql("begin isolation level repeatable read; select count(*) from fetchq.queues")
        .await;
    session.sql("delete from fetchq_data.q__docs").await;

    let before = advances_discarded(&session).await;
    let (done, mut all_done) = mpsc::channel(WRITERS);
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let (tell, told) = mpsc::channel(1);
        tokio::spawn(write(db.connect().await, number, told, done.clone()));
        writers.push(tell);
    }
    let mut random = 88_172_645_463_325_252_u64;
    let mut met = 0;
    for round in 0.. {
        // A document at the very start lowers the floor to it, and is dropped.
        session
            .sql("select fetchq.doc_push('q', 'first', '{}', '-infinity'); select fetchq.doc_drop('q', subject) from fetchq.doc_pick('q') d")
            .await;
        let mut expected = HashSet::new();
        for (number, tell) in writers.iter().enumerate() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let subject = format!("d{round}-{number}");
            expected.insert(subject.clone());
            tell.send((subject, random % 6000)).await.expect("a writer");
        }
        // A pick that finds nothing advances the floor over all dead entries.
        let mut came = HashSet::new();
        let mut left = WRITERS;
        while left > 0 {
            take(&session, &mut came).await;
            while all_done.try_recv().is_ok() {
                left -= 1;
            }
        }
        while take(&session, &mut came).await {}
        assert_eq!(came, expected, "round {round}");
        if let (Some(before), Some(now)) = (before, advances_discarded(&session).await) {
            met = now - before;
        }
        // Without the preloaded library there are no floors.
        if round >= 30 && (before.is_none() || met >= MET) {
            break;
        }
        assert!(
            round < 2000,
            "only {met} advances overlapped with an insert"
        );
    }
    drop(writers);
    let misses = "select count(*) from fetchq.ready_stats() where floor_misses > 0";
    if before.is_some() {
        assert_eq!(session.text(misses).await, "0", "floor_misses");
    }
    holder.sql("commit").await;
    db.remove().await;
}

/// Picks once, one document or several; returns whether it picked anything.
async fn take(session: &Session, came: &mut HashSet<String>) -> bool {
    let limit = 1 + came.len() % 3;
    let picked = session
        .column(&format!(
            "select subject from fetchq.doc_pick('q', {limit})"
        ))
        .await;
    for subject in &picked {
        assert!(came.insert(subject.clone()), "{subject} was picked twice");
    }
    !picked.is_empty()
}
