//! A worker: it waits for documents of a queue, works on them one at a time, and settles them.
//!
//!     fetchq-rust-worker QUEUE [NAME]
//!
//! DATABASE_URL names the server. LEASE is the lease duration in seconds (60). GRACE is the time
//! in seconds that a job has left after SIGTERM (25). Replace the function `job` with your own.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use postgres::{
    Client, Error as DbError, GenericClient, NoTls, Row, error::SqlState, types::ToSql,
};
use serde_json::{Value, json};

/// The work. It checks `stop` as often as it can, and ends with an error when `stop` is set.
fn job(payload: &Value, stop: &AtomicBool) -> Result<Value, Box<dyn Error>> {
    let end = Instant::now() + Duration::from_secs_f64(payload["sleep"].as_f64().unwrap_or(0.0));
    while Instant::now() < end {
        if stop.load(Relaxed) {
            return Err("stopped".into());
        }
        thread::sleep(Duration::from_millis(50));
    }
    match payload["fail"].as_str() {
        Some(why) => Err(why.into()),
        None => Ok(json!({"worked": true})),
    }
}

/// The next document, or None when none is due.
type Next = Result<Option<Row>, DbError>;

struct Worker {
    queue: String,
    name: String,
    url: String,
    lease: f64,
    grace: Duration,
    /// Set after SIGTERM or a call of worker_stop(): the worker picks no more documents.
    ending: Arc<AtomicBool>,
}

impl Worker {
    /// Extends the lease while the job runs, and stops the job when the lease is lost, or when
    /// the grace period is over.
    fn keep(
        &self,
        db: &mut Client,
        doc: (&str, i64),
        stop: &AtomicBool,
        is_done: impl Fn() -> bool,
    ) -> Result<(), DbError> {
        let (mut extended, mut told) = (Instant::now(), None);
        while !is_done() {
            thread::sleep(Duration::from_millis(20));
            if self.ending.load(Relaxed)
                && told.get_or_insert_with(Instant::now).elapsed() >= self.grace
            {
                stop.store(true, Relaxed);
            }
            if extended.elapsed().as_secs_f64() >= self.lease / 3.0 {
                extended = Instant::now();
                let sql = "select next_iteration is null, stop from fetchq.doc_extend($1, $2, make_interval(secs => $3), $4)";
                let row = db.query_one(sql, &[&self.queue, &doc.0, &self.lease, &doc.1])?;
                match (row.get(0), row.get(1)) {
                    (true, _) => stop.store(true, Relaxed), // The document was cancelled.
                    (false, true) => self.ending.store(true, Relaxed),
                    (false, false) => {}
                }
            }
        }
        Ok(())
    }

    /// Settles documents, and leases at most `max` other ones: one call, one transaction. The lease
    /// carries this worker's name, and ends when this session ends. Fails when a lease was lost.
    fn next(&self, db: &mut impl GenericClient, settlements: Value, max: i32) -> Next {
        let sql = "select subject, payload, lease from fetchq.docs_next($1, $2, $3, make_interval(secs => $4), worker => $5, binding => 'return', on_lost => 'error')";
        let values: [&(dyn ToSql + Sync); 5] =
            [&self.queue, &settlements, &max, &self.lease, &self.name];
        db.query_opt(sql, &values)
    }

    /// Settles a document, and returns the next one. The results and the settling are one
    /// transaction: both, or neither.
    fn settle(
        &self,
        db: &mut Client,
        settlement: &Value,
        max: i32,
        result: Option<&Value>,
    ) -> Next {
        let mut tx = db.transaction()?;
        if let Some(result) = result {
            tx.execute(
                "insert into results (subject, result) values ($1, $2)",
                &[&settlement["subject"].as_str(), &result],
            )?;
        }
        let next = self.next(&mut tx, json!([settlement]), max)?;
        tx.commit()?;
        Ok(next)
    }

    /// The settlement of a document that has failed. It is retried by the retry policy of the
    /// queue. PostgreSQL stores no NUL, and fetchq cuts a message that is too long.
    fn reject(&self, doc: &Row, error: &str) -> Value {
        let text = error.replace('\0', "");
        settlement(
            doc,
            json!({"action": "reject", "message": text, "details": {"worker": self.name}}),
        )
    }

    /// Works on a document, settles it, and returns the next one.
    fn work(&self, db: &mut Client, doc: &Row) -> Next {
        let (subject, payload, lease): (&str, Value, i64) = (doc.get(0), doc.get(1), doc.get(2));
        let stop = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            let job = scope.spawn(|| job(&payload, &stop).map_err(|e| e.to_string()));
            if let Err(e) = self.keep(db, (subject, lease), &stop, || job.is_finished()) {
                eprintln!("{subject}: the lease cannot be extended: {e}");
                stop.store(true, Relaxed);
            }
            job.join().unwrap_or(Err("the job panicked".into()))
        });
        let settled = match &result {
            Ok(_) => settlement(doc, json!({"action": "complete"})),
            Err(_) if stop.load(Relaxed) => unworked(doc),
            Err(error) => self.reject(doc, error),
        };
        let (result, max) = (result.as_ref().ok(), i32::from(!self.ending.load(Relaxed)));
        match self.settle(db, &settled, max, result) {
            Err(error) => eprintln!("{subject}: {}", describe(&error)),
            done => return done,
        }
        // Perhaps it was the next document that could not be leased. So settle this one alone. The
        // next call leases alone, and its error ends the worker.
        let Err(error) = self.settle(db, &settled, 0, result) else {
            return Ok(None);
        };
        // The results cannot be written, or the lease was lost, which the rejection tells.
        let rejected = self.reject(doc, &describe(&error));
        match self.settle(db, &rejected, 0, None) {
            Err(error) if is_lost(&error) => Ok(None),
            done => done,
        }
    }

    fn run(&self) -> Result<(), DbError> {
        let mut db = Client::connect(&self.url, NoTls)?;
        let started: String = db.query_one("select clock_timestamp()::text", &[])?.get(0);
        let (mut asked, mut doc) = (None::<Instant>, None);
        while !self.ending.load(Relaxed) {
            // Asks, once a second, whether worker_stop() was called for this worker.
            if asked.is_none_or(|at| at.elapsed() >= Duration::from_secs(1)) {
                asked = Some(Instant::now());
                let sql = "select fetchq.worker_stop_requested($1, $2, $3::text::timestamptz)";
                let row = db.query_one(sql, &[&self.queue, &self.name, &started])?;
                if row.get(0) {
                    break;
                }
            }
            doc = match &doc {
                Some(doc) => self.work(&mut db, doc)?,
                None => self.next(&mut db, json!([]), 1)?,
            };
            if doc.is_none() && !self.ending.load(Relaxed) {
                // The wait holds no snapshot. It is short, because a stop request is read only
                // between waits.
                db.query("call fetchq.queue_wait($1, '1 s')", &[&vec![&self.queue]])?;
            }
        }
        // Hands back the document that was leased last: the work on it has not begun.
        if let Some(doc) = doc {
            let sql = "select outcome from fetchq.docs_settle($1, $2)";
            db.query(sql, &[&self.queue, &json!([unworked(&doc)])])?;
        }
        Ok(())
    }
}

/// What is done with a document, under its lease.
fn settlement(doc: &Row, mut action: Value) -> Value {
    let (subject, lease): (&str, i64) = (doc.get(0), doc.get(2));
    (action["subject"], action["lease"]) = (json!(subject), json!(lease));
    action
}

/// Hands a document back: it is ready again at once, and the attempt does not count.
fn unworked(doc: &Row) -> Value {
    settlement(doc, json!({"action": "snooze"}))
}

/// The message of the server, or else that of the driver.
fn describe(error: &DbError) -> String {
    let told = error.as_db_error().map(|e| e.message().to_owned());
    told.unwrap_or_else(|| error.to_string())
}

/// Whether fetchq says that the lease was lost: the document was cancelled, or another worker has
/// it now. SQL of your own can raise that SQLSTATE, too, but then the routine is another one.
fn is_lost(error: &DbError) -> bool {
    let routine = error.as_db_error().and_then(|e| e.routine());
    error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) && routine == Some("fetchq")
}

fn main() -> Result<(), Box<dyn Error>> {
    let number =
        |name: &str, default: f64| env::var(name).map_or(Ok(default), |value| value.parse());
    let ending = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, ending.clone())?;
    }
    let worker = Worker {
        queue: env::args()
            .nth(1)
            .ok_or("usage: fetchq-rust-worker QUEUE [NAME]")?,
        name: env::args()
            .nth(2)
            .unwrap_or(format!("rust-{}", process::id())),
        url: env::var("DATABASE_URL")?,
        lease: number("LEASE", 60.0)?,
        grace: Duration::from_secs_f64(number("GRACE", 25.0)?),
        ending,
    };
    Ok(worker.run()?)
}
