//! A worker that pushes, picks, settles, hangs and crashes, and records the answers that it receives.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fetchq_client_tests::{Server, Session, state_of};
use tokio_postgres::Error;

use super::Dice;
use super::ledger::{Binding, Hold, Ledger};

/// A worker. When its session ends, the worker opens a new one.
pub struct Worker {
    number: usize,
    binding: Binding,
    ledger: Arc<Ledger>,
    dice: Dice,
    /// The number of its session, and the sessions that can be terminated.
    life: usize,
    pids: Arc<Mutex<BTreeMap<i32, usize>>>,
    turn: usize,
}

impl Worker {
    pub fn new(number: usize, ledger: Arc<Ledger>, pids: Arc<Mutex<BTreeMap<i32, usize>>>) -> Self {
        Self {
            number,
            binding: Binding::of(number),
            ledger,
            dice: Dice::new(number as u64 + 1),
            life: 0,
            pids,
            turn: 0,
        }
    }

    pub async fn run(mut self, server: Server) {
        while !self.ledger.ended.load(Ordering::Relaxed) {
            let Ok(mut session) = server.try_connect("postgres").await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            self.life = self.ledger.lives.fetch_add(1, Ordering::Relaxed);
            let pid = self.work(&mut session).await;
            // For any cause of the end, its leases may be released.
            self.ledger.doom(self.life);
            if let Some(pid) = pid {
                self.pids.lock().unwrap().remove(&pid);
            }
        }
    }

    /// Works until something ends the session; returns its process ID.
    async fn work(&mut self, session: &mut Session) -> Option<i32> {
        let binding = self.binding.word();
        let name = self.number;
        let begin = format!(
            "set fetchq.worker = 'w{name}'; set fetchq.session_leases = '{binding}'; set fetchq.direct = {}",
            if name % 4 == 3 { "off" } else { "on" }
        );
        session.batch_execute(&begin).await.ok()?;
        let row = session
            .query_one("select pg_backend_pid()", &[])
            .await
            .ok()?;
        let pid: i32 = row.get(0);
        self.pids.lock().unwrap().insert(pid, self.life);
        while !self.ledger.ended.load(Ordering::Relaxed) {
            match self.turn(session).await {
                Ok(true) => {}
                // The worker crashes.
                Ok(false) => break,
                Err(e) => {
                    let state = state_of(&e);
                    // The session was terminated, or the server stops or is starting.
                    let is_expected = e.is_closed()
                        || state.starts_with("57P")
                        || state.starts_with("08")
                        || e.code().is_none();
                    assert!(is_expected, "worker {name}: {e:?}");
                    break;
                }
            }
        }
        Some(pid)
    }

    /// Pushes, picks, and settles what it picked. Returns false when it crashes.
    async fn turn(&mut self, session: &mut Session) -> Result<bool, Error> {
        self.turn += 1;
        for i in 0..self.dice.roll(3) {
            let subject = format!("{}-{}-{i}", self.number, self.turn);
            // It is recorded first, because another worker may pick it before the answer arrives.
            self.ledger.with(&subject, |_| ());
            let delay = self.dice.roll(3) as f64 * 0.1;
            session
                .query_one(
                    "select fetchq.doc_push('q', $1, 0, 0, now() + make_interval(secs => $2), '{}')",
                    &[&subject, &delay],
                )
                .await?;
            self.ledger
                .with(&subject, |document| document.is_pushed = true);
        }
        let duration = match self.binding {
            Binding::Off => "1.5 s",
            Binding::Return | Binding::Keep => "1 hour",
        };
        let limit = 1 + self.dice.roll(3) as i32;
        let picked = session
            .query(
                &format!(
                    "select subject, lease, (extract(epoch from next_iteration) * 1000000)::int8,
                         (extract(epoch from now()) * 1000000)::int8
                     from fetchq.doc_pick('q', 0, $1, interval '{duration}')"
                ),
                &[&limit],
            )
            .await?;
        let mut held: Vec<(String, i64)> = Vec::new();
        for row in &picked {
            let (subject, lease): (String, i64) = (row.get(0), row.get(1));
            let hold = Hold {
                lease,
                at: row.get(3),
                until: row.get(2),
                binding: self.binding,
                life: self.life,
            };
            self.ledger.picked(&subject, hold);
            held.push((subject, lease));
        }
        if let Some((_, lease)) = held.first() {
            assert!(held.iter().all(|(_, other)| other == lease));
            assert!(
                self.ledger.leases.lock().unwrap().insert(*lease),
                "lease {lease} was granted twice"
            );
        } else {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (subject, lease) in held {
            if self.dice.roll(100) < 5 {
                return Ok(false);
            }
            if self.dice.roll(20) == 0 && self.binding == Binding::Off {
                // The worker hangs for longer than its lease duration.
                tokio::time::sleep(Duration::from_millis(1700)).await;
            }
            if self.dice.roll(10) == 0 {
                self.extend(session, &subject, lease).await?;
            }
            self.settle(session, &subject, lease).await?;
        }
        Ok(true)
    }

    async fn extend(
        &mut self,
        session: &mut Session,
        subject: &str,
        lease: i64,
    ) -> Result<(), Error> {
        let extended = session
            .query_one(
                "select (extract(epoch from lease_ends) * 1000000)::int8, stop
                 from fetchq.doc_extend('q', $1, interval '2 s', $2)",
                &[&subject, &lease],
            )
            .await;
        match extended {
            Ok(row) => match row.get::<_, Option<i64>>(0) {
                Some(until) => self.ledger.with(subject, |document| {
                    let hold = document.hold.as_mut();
                    let hold = hold.filter(|hold| hold.lease == lease);
                    match hold {
                        Some(hold) => hold.until = until,
                        None => assert!(document.may_be_cancelled, "{subject}: {document:?}"),
                    }
                }),
                None => assert!(
                    row.get::<_, bool>(1),
                    "the worker of a cancelled document must be asked to stop"
                ),
            },
            Err(e) if state_of(&e) == "55000" => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Settles a document, and records an effect in the same transaction.
    async fn settle(
        &mut self,
        session: &mut Session,
        subject: &str,
        lease: i64,
    ) -> Result<(), Error> {
        let (call, is_last) = match self.dice.roll(100) {
            0..20 => ("doc_reject('q', $1, 'no luck', '{}', null, $2)", false),
            20..28 => ("doc_reschedule('q', $1, now(), null, $2)", false),
            28..34 => ("doc_snooze('q', $1, now(), $2)", false),
            34..40 => ("doc_kill('q', $1, null, $2)", true),
            40..55 => ("doc_drop('q', $1, $2)", true),
            _ => ("doc_complete('q', $1, null, $2)", true),
        };
        self.ledger.gives_back(subject, lease);
        let transaction = session.transaction().await?;
        if is_last {
            transaction
                .execute("insert into effects values ($1, $2)", &[&subject, &lease])
                .await?;
        }
        let settled = transaction
            .query_one(&format!("select fetchq.{call}"), &[&subject, &lease])
            .await;
        match settled {
            Ok(row) => {
                assert_eq!(row.get::<_, i32>(0), 1, "{call} of {subject}");
                transaction.commit().await?;
                if is_last {
                    self.ledger.settled(subject, lease);
                }
            }
            Err(e) if state_of(&e) == "55000" => {
                self.ledger.refused.fetch_add(1, Ordering::Relaxed);
                transaction.rollback().await?;
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }
}
