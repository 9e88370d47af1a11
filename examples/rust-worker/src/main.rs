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

use postgres::{Client, NoTls, Row, error::SqlState};
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
    fn connect(&self) -> Result<Client, postgres::Error> {
        let mut db = Client::connect(&self.url, NoTls)?;
        // The leases carry this worker's name. They end when this session ends.
        db.execute("select set_config('fetchq.worker', $1, false), set_config('fetchq.session_leases', 'return', false)", &[&self.name])?;
        Ok(db)
    }

    /// Extends the lease while the job runs, and stops the job when the lease is lost, or when
    /// the grace period is over.
    fn keep(
        &self,
        db: &mut Client,
        doc: (&str, i64),
        stop: &AtomicBool,
        is_done: impl Fn() -> bool,
    ) -> Result<(), postgres::Error> {
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

    /// Works on a document and settles it.
    fn work(&self, db: &mut Client, doc: &Row) -> Result<(), postgres::Error> {
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
        match result {
            // The results and the settling are one transaction: both, or neither.
            Ok(result) => {
                let mut tx = db.transaction()?;
                tx.execute(
                    "insert into results (subject, result) values ($1, $2)",
                    &[&subject, &result],
                )?;
                tx.execute(
                    "select fetchq.doc_complete($1, $2, lease => $3)",
                    &[&self.queue, &subject, &lease],
                )?;
                tx.commit()
            }
            // The document is ready again at once, and the attempt does not count.
            Err(_) if stop.load(Relaxed) => db
                .execute(
                    "select fetchq.doc_snooze($1, $2, now(), $3)",
                    &[&self.queue, &subject, &lease],
                )
                .map(drop),
            // The document is retried by the retry policy of the queue.
            Err(error) => db
                .execute(
                    "select fetchq.doc_reject($1, $2, left($3, 2000), $4, lease => $5)",
                    &[
                        &self.queue,
                        &subject,
                        &error,
                        &json!({"worker": self.name}),
                        &lease,
                    ],
                )
                .map(drop),
        }
    }

    fn run(&self) -> Result<(), postgres::Error> {
        let mut db = self.connect()?;
        let started: String = db.query_one("select clock_timestamp()::text", &[])?.get(0);
        let stopped = "select fetchq.worker_stop_requested($1, $2, $3::text::timestamptz)";
        while !self.ending.load(Relaxed)
            && !db
                .query_one(stopped, &[&self.queue, &self.name, &started])?
                .get::<_, bool>(0)
        {
            let pick = "select subject, payload, lease from fetchq.doc_pick($1, 0, 1, make_interval(secs => $2))";
            match db.query_opt(pick, &[&self.queue, &self.lease])? {
                // The wait holds no snapshot. It is short, because a stop request is read only
                // between waits.
                None => drop(db.query("call fetchq.queue_wait(array[$1], '2 s')", &[&self.queue])?),
                Some(doc) => match self.work(&mut db, &doc) {
                    // The document was cancelled, or another worker has it now. The results are
                    // rolled back.
                    Err(e) if e.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
                        eprintln!("{}", e.as_db_error().map_or("", |e| e.message()))
                    }
                    other => other?,
                },
            }
        }
        Ok(())
    }
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
