//! The loop of a relay.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracing::{info, warn};

use super::error::RelayError;
use super::source::{Source, Waiting};
use super::status::Status;
use super::target::{Target, Turn};
use crate::commands::session::Session;

/// How often a relay that has nothing to carry says that it is there, counts what waits, and looks for results.
const TOUCH: Duration = Duration::from_secs(5);
const COUNT: Duration = Duration::from_secs(5);
const RESULTS: Duration = Duration::from_millis(500);
const FORGET: Duration = Duration::from_secs(60);

/// How often one that has to wait for another looks whether it is still there.
const STANDBY: Duration = Duration::from_secs(1);

/// A transaction on the source that lasts longer than this is found by the next look at all numbers.
const LATE: Duration = Duration::from_secs(5);
const LOOK_AT_ALL: Duration = Duration::from_secs(10);

/// For how long nothing is carried to a queue that takes nothing, at first and at most.
const BLOCKED: Duration = Duration::from_secs(1);
const LONGEST_BLOCKED: Duration = Duration::from_secs(30);

/// A queue of the target that takes nothing.
struct Blocked {
    /// None: it is tried again.
    until: Option<Instant>,
    pause: Duration,
}

/// Both servers, and how far the relay has come.
pub struct Relay {
    source: Source,
    target: Target,
    status: Arc<Status>,
    pub batch: i32,
    pub interval: Duration,
    pub keep_days: i32,
    blocked: BTreeMap<String, Blocked>,
    /// What was carried last: when, and the greatest number. Numbers that are smaller and still wait belong to
    /// transactions that began before.
    recent: VecDeque<(Instant, i64)>,
    floor: i64,
    /// Whether the relay looks at all numbers, how far it has come with that, and when it began. Under an old snapshot
    /// the entries of all that was carried are still there, and each look from the start passes over them.
    all: bool,
    sweep: i64,
    looked_at_all: Instant,
    touched: Instant,
    counted: Option<Instant>,
    asked: Instant,
    asked_after: i64,
    forgot: Option<Instant>,
}

impl Relay {
    /// Waits until it is the turn of this relay, and removes on the source what the one before it has carried.
    ///
    /// # Errors
    /// A connection is lost, or a right lacks.
    pub async fn start(
        source: Session,
        target: Session,
        name: &str,
        queue: &str,
        status: Arc<Status>,
    ) -> Result<Self, RelayError> {
        let source = Source::open(source).await?;
        let mut target = Target::new(target, queue, &source.id);
        let mut waits = false;
        while let Turn::Theirs(other, silent) = target.begin(name).await? {
            if !waits {
                info!("relay {other} carries, and was heard {silent:.0} s ago: this one waits");
            }
            waits = true;
            status.stands_by();
            tokio::time::sleep(STANDBY).await;
        }
        let removed = source.forget(&target.mark.batch).await?;
        if removed > 0 {
            info!("{removed} documents were carried before and are removed");
        }
        info!(
            "relay {name} carries documents of {} to the queues of its target",
            source.place()
        );
        status.begins(target.mark.carried);
        let now = Instant::now();
        Ok(Self {
            source,
            target,
            status,
            batch: 1000,
            interval: Duration::from_millis(100),
            keep_days: 7,
            blocked: BTreeMap::new(),
            recent: VecDeque::new(),
            floor: 0,
            all: true,
            sweep: 0,
            looked_at_all: now,
            touched: now,
            counted: None,
            asked: now,
            asked_after: 0,
            forgot: None,
        })
    }

    /// Carries documents until there is an error; with `once`, until none is left that can be carried.
    ///
    /// # Errors
    /// A connection is lost, or another relay has taken over.
    pub async fn run(&mut self, once: bool) -> Result<(), RelayError> {
        loop {
            if once && !self.all {
                self.look_at_all();
            }
            let floor = self.next_floor();
            let held = self.blocked.iter().filter(|(_, one)| one.until.is_some());
            let without: Vec<String> = held.map(|(queue, _)| queue.clone()).collect();
            let (documents, is_full) = self.source.read(floor, &without, self.batch).await?;
            match documents.last() {
                Some(last) if is_full => self.sweep = last.id,
                _ => self.all = false,
            }
            if documents.is_empty() {
                if once && floor == 0 {
                    return self.finish().await;
                }
                self.chores().await?;
                tokio::time::sleep(self.interval).await;
            } else {
                self.carry(&documents).await?;
                self.chores().await?;
            }
        }
    }

    /// The next look is at all numbers, from the start.
    fn look_at_all(&mut self) {
        self.all = true;
        self.sweep = 0;
        self.looked_at_all = Instant::now();
    }

    /// Above which number the next look is.
    fn next_floor(&mut self) -> i64 {
        let now = Instant::now();
        while let Some(&(at, id)) = self.recent.front()
            && now.duration_since(at) > LATE
        {
            self.floor = self.floor.max(id);
            self.recent.pop_front();
        }
        let mut begins = now.duration_since(self.looked_at_all) > LOOK_AT_ALL;
        for blocked in self.blocked.values_mut() {
            // What is tried again has waited below the floor.
            if blocked.until.is_some_and(|until| until <= now) {
                blocked.until = None;
                begins = true;
            }
        }
        if begins {
            self.look_at_all();
        }
        if self.all { self.sweep } else { self.floor }
    }

    async fn carry(&mut self, documents: &[Waiting]) -> Result<(), RelayError> {
        let about = self.about(self.status.waiting(), documents[0].age);
        let carried = self.target.carry(documents, about).await?;
        // From here on the documents are there. A relay that ends before the next line leaves the mark.
        self.source.remove(&carried.ids, &carried.refused).await?;
        let now = Instant::now();
        self.touched = now;
        if let Some(last) = documents.last() {
            self.recent.push_back((now, last.id));
        }
        for refused in &carried.refused {
            warn!(
                "document {} is refused ({}): {}",
                refused.id, refused.sqlstate, refused.message
            );
        }
        for (queue, message) in &carried.blocked {
            let pause = match self.blocked.get(queue) {
                Some(one) => (one.pause * 2).min(LONGEST_BLOCKED),
                None => BLOCKED,
            };
            warn!(
                "queue {queue} takes nothing, and is tried again in {} s: {message}",
                pause.as_secs()
            );
            let until = Some(now + pause);
            self.blocked.insert(queue.clone(), Blocked { until, pause });
        }
        // What was tried again and taken is blocked no more.
        for one in documents {
            if !carried.blocked.contains_key(&one.queue) {
                self.blocked.remove(&one.queue);
            }
        }
        self.status.blocks(
            &carried.blocked,
            &self.blocked.keys().cloned().collect::<Vec<_>>(),
        );
        self.status.carried(
            self.target.mark.carried,
            carried.refused.len(),
            documents[0].age,
        );
        Ok(())
    }

    /// Leaves the place to others.
    async fn finish(&mut self) -> Result<(), RelayError> {
        let (waiting, age) = self.source.count().await?;
        self.ask().await?;
        self.target.touch(self.about(waiting, age), None).await?;
        for (queue, why) in self.status.blocked() {
            warn!("documents of queue {queue} are left: {why}");
        }
        Ok(())
    }

    /// What is done beside: each at its time.
    async fn chores(&mut self) -> Result<(), RelayError> {
        let now = Instant::now();
        if self
            .counted
            .is_none_or(|at| now.duration_since(at) >= COUNT)
        {
            let (waiting, age) = self.source.count().await?;
            self.status.counted(waiting, age);
            self.counted = Some(now);
        }
        if now.duration_since(self.touched) >= TOUCH {
            let name = self.target.mark.name.clone();
            let (waiting, age) = (self.status.waiting(), self.status.lag());
            self.target.touch(self.about(waiting, age), name).await?;
            self.touched = now;
        }
        if now.duration_since(self.asked) >= RESULTS {
            self.ask().await?;
            self.asked = now;
        }
        if self
            .forgot
            .is_none_or(|at| now.duration_since(at) >= FORGET)
        {
            self.source.forget_results(self.keep_days).await?;
            self.forgot = Some(now);
        }
        Ok(())
    }

    /// Brings back results.
    async fn ask(&mut self) -> Result<(), RelayError> {
        let awaited = self.source.awaited(self.asked_after).await?;
        self.asked_after = match awaited.last() {
            Some(last) if awaited.len() == 500 => last.0,
            _ => 0,
        };
        let mut queues: BTreeMap<String, (Vec<i64>, Vec<String>)> = BTreeMap::new();
        for (id, queue, subject) in awaited {
            let (ids, subjects) = queues.entry(queue).or_default();
            ids.push(id);
            subjects.push(subject);
        }
        for (queue, (ids, subjects)) in queues {
            match self.target.results(&queue, &ids, &subjects).await {
                Ok(Some((n, results))) => {
                    self.source.arrived(&results).await?;
                    self.status.arrived(n);
                }
                Ok(None) => (),
                Err(error) if error.code.is_some() => self.status.complains(&format!(
                    "results of queue {queue} cannot be read: {}",
                    error.message
                )),
                Err(error) => return Err(RelayError::Target(error.into())),
            }
        }
        Ok(())
    }

    /// For people who look at the mark.
    fn about(&self, waiting: i64, lag: f64) -> Value {
        json!({
            "source": self.source.place(),
            "waiting": waiting,
            "lag": (lag * 1000.0).round() / 1000.0,
            "refused": self.status.refused(),
            "blocked": self.status.blocked(),
        })
    }
}
