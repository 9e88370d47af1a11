//! Random interleavings of workers, which come and go, with maintenance by clients in transactions of
//! any age.

use fetchq_client_tests::{Session, counters_are_exact};

use super::{by_clients, complete, lease, sessions_are};

/// A reproducible sequence of numbers.
struct Random(u64);

impl Random {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A worker, and the leases that it has.
struct Worker {
    session: Session,
    leased: Vec<String>,
}

const STEPS: usize = 400;
const WORKERS: usize = 4;

/// What clients do that run maintenance, or clean up by hand what nobody needs.
const CHORES: [&str; 7] = [
    "begin",
    "begin isolation level repeatable read",
    "select count(*) from pg_stat_activity",
    "select fetchq.mnt_run('q', 100)",
    "select fetchq.mnt()",
    "commit",
    "delete from fetchq.worker_sessions w where not exists (
         select from fetchq_data.q__docs d where d.status = 2 and d.worker_session = w.id)",
];

#[tokio::test]
async fn no_interleaving_ends_a_lease_of_a_session_that_runs() {
    let seed = 20_240_229;
    let mut random = Random(seed);
    let (_cluster, server, mut look) = by_clients("bound_random").await;
    look.sql("select fetchq.doc_push('q', 'more' || i) from generate_series(1, 500) i")
        .await;
    let cron = server.connect("postgres").await;
    let mut in_transaction = false;
    let mut workers: Vec<Worker> = Vec::new();
    for step in 0..STEPS {
        match random.below(10) {
            0 | 1 if workers.len() < WORKERS => workers.push(Worker {
                session: server.connect("postgres").await,
                leased: Vec::new(),
            }),
            2 if !workers.is_empty() => {
                workers.swap_remove(random.below(workers.len()));
            }
            3 | 4 if !workers.is_empty() => {
                let at = random.below(workers.len());
                let binding = ["return", "keep"][random.below(2)];
                let leased = lease(&workers[at].session, "q", binding).await;
                workers[at].leased.push(leased);
            }
            5 if !workers.is_empty() => {
                let at = random.below(workers.len());
                if let Some(leased) = workers[at].leased.pop() {
                    complete(&workers[at].session, "q", &leased).await;
                }
            }
            _ => {
                let chore = CHORES[random.below(CHORES.len())];
                match chore {
                    // Later, somebody may have leased with the row that nobody needed.
                    _ if chore.starts_with("delete") && in_transaction => continue,
                    _ if chore.starts_with("begin") && in_transaction => continue,
                    _ if chore.starts_with("begin") => in_transaction = true,
                    "commit" => in_transaction = false,
                    _ => {}
                }
                // A transaction that keeps a snapshot may fail, as every other one.
                if cron.batch_execute(chore).await.is_err() {
                    cron.sql("rollback").await;
                    in_transaction = false;
                }
            }
        }
        for worker in &workers {
            for leased in &worker.leased {
                let (subject, lease) = leased.split_once('|').unwrap();
                let sql = format!(
                    "select status, lease from fetchq_data.q__docs where subject = '{subject}'"
                );
                let now = look.rows(&sql).await;
                assert_eq!(now, [format!("2|{lease}")], "seed {seed}, step {step}");
            }
        }
    }
    cron.sql("rollback").await;
    drop(workers);
    sessions_are(&look, 2).await;
    look.sql("select fetchq.mnt_run('q', 1000)").await;
    let left = look
        .rows("select subject, binding from fetchq.leases")
        .await;
    assert!(left.is_empty(), "seed {seed}: {left:?}");
    counters_are_exact(&mut look, "q").await;
}
