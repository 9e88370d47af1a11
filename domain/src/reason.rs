//! Why a document does not run: the reasons that hold, each with a stable code, a sentence, and what
//! to do. They follow from facts alone; `store/reports/doc_explain.rs` reads those.

use crate::status::Status;
use crate::wording::{literal, shorten};

macro_rules! reasons {
    ($($reason:ident = $code:literal;)+) => {
        /// A reason why a document does not run.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason { $($reason),+ }

        impl Reason {
            /// All of them.
            pub const ALL: [Self; [$($code),+].len()] = [$(Self::$reason),+];

            /// Its code, which never changes.
            pub fn code(self) -> &'static str {
                match self { $(Self::$reason => $code),+ }
            }
        }
    };
}

reasons! {
    Ready = "ready";
    NotDue = "not_due";
    Retry = "retry";
    Maintenance = "maintenance";
    Expired = "expired";
    OrderingKey = "ordering_key";
    SetAside = "set_aside";
    OpenTransaction = "open_transaction";
    TableLocked = "table_locked";
    Paused = "paused";
    MaxActive = "max_active";
    Rate = "rate";
    Version = "version";
    NoWorker = "no_worker";
    Leased = "leased";
    Completed = "completed";
    Killed = "killed";
    History = "history";
    DeadLetter = "dead_letter";
    Absent = "absent";
}

/// A reason that holds. Times are in microseconds since 2000.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Because {
    pub reason: Reason,
    /// Since when it holds. None: that is not known.
    pub since: Option<i64>,
    /// When it ends by itself. None: it does not, or that is not known.
    pub until: Option<i64>,
    /// A sentence.
    pub detail: String,
    /// What to do, with a call.
    pub hint: String,
}

impl Because {
    fn new(reason: Reason, detail: String, hint: String) -> Self {
        Self {
            reason,
            since: None,
            until: None,
            detail,
            hint,
        }
    }

    fn since(mut self, since: Option<i64>) -> Self {
        self.since = since.filter(is_finite);
        self
    }

    fn until(mut self, until: Option<i64>) -> Self {
        self.until = until.filter(is_finite);
        self
    }
}

/// The infinite times are no times for drivers of several languages.
fn is_finite(time: &i64) -> bool {
    !matches!(*time, i64::MIN | i64::MAX)
}

/// Whoever holds a row in a transaction that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A session. What is not known or not visible to the caller is None.
    Session {
        pid: i32,
        name: Option<String>,
        since: Option<i64>,
    },
    /// A prepared transaction, by its identifier.
    Prepared { gid: String, since: Option<i64> },
    /// A transaction of the primary server, seen from a standby.
    Unknown,
}

/// The documents before one that waits for its ordering key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyFacts {
    pub key: String,
    /// How many documents of the key can run.
    pub places: usize,
    /// Those that have the places.
    pub first: Vec<String>,
    /// The blocked document just before it.
    pub previous: Option<String>,
}

/// A document that is in the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Doc {
    pub status: Option<Status>,
    /// `next_iteration`: when it is due, or its lease ends.
    pub at: i64,
    pub attempts: i32,
    pub max_attempts: i32,
    pub version: i32,
    pub picked_at: Option<i64>,
    /// When it expires, if it has not begun by then.
    pub expires_at: Option<i64>,
    pub settled_at: Option<i64>,
    pub last_error: Option<String>,
    /// The worker that has leased it, and its process.
    pub worker: Option<(String, i32)>,
    /// It is blocked by its key.
    pub key: Option<KeyFacts>,
    /// Its `lock_upgrade` is set, and no key explains that.
    pub is_set_aside: bool,
    pub holder: Option<Holder>,
    /// The holder has locked it, and has not changed it.
    pub is_only_locked: bool,
}

impl Doc {
    /// It waits for a worker, or for its time.
    pub fn is_waiting(&self) -> bool {
        matches!(self.status, Some(Status::Planned | Status::Pending))
    }
}

/// Where a document is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Table(Box<Doc>),
    /// Its newest entry in the history.
    History {
        outcome: String,
        at: i64,
    },
    /// In this dead-letter queue, since a time.
    DeadLetter {
        queue: String,
        at: i64,
    },
    Nowhere,
    /// The table is locked.
    Locked(Option<Holder>),
}

/// The lease slots of a capped queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap {
    pub max_active: i32,
    pub active: i64,
    /// Those that open transactions have locked.
    pub locked: i64,
}

/// The permits of a queue with a rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    pub limit: i32,
    /// The interval, as the server writes it.
    pub interval: String,
    pub free: i64,
    /// When the next one is free.
    pub next: Option<i64>,
}

/// Who works on a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// The sessions that are connected and have leased documents of the queue.
    pub sessions: i64,
    /// The versions that sessions wait for. None: that cannot be known.
    pub awaited: Option<Vec<i32>>,
    /// The versions of documents that are leased.
    pub leased: Vec<i32>,
}

/// What is known of a document and its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts<'a> {
    pub queue: &'a str,
    pub subject: &'a str,
    pub now: i64,
    pub is_paused: bool,
    /// Another queue sends its dead letters here.
    pub is_dead_letter_queue: bool,
    pub cap: Option<Cap>,
    pub rate: Option<Rate>,
    /// None: that is not known.
    pub workers: Option<Workers>,
    pub place: Place,
}

/// Returns the reasons why a document does not run, at least one.
pub fn explain(facts: &Facts) -> Vec<Because> {
    match &facts.place {
        Place::Table(doc) => facts.of_document(doc),
        Place::History { outcome, at } => vec![facts.in_history(outcome, *at)],
        Place::DeadLetter { queue, at } => vec![facts.in_dead_letters(queue, *at)],
        Place::Nowhere => vec![facts.absent()],
        Place::Locked(holder) => vec![facts.table_locked(holder.as_ref())],
    }
}

impl Facts<'_> {
    /// A call of a function with the queue and the subject.
    fn call(&self, function: &str) -> String {
        let (queue, subject) = (literal(self.queue), literal(self.subject));
        format!("select fetchq.{function}({queue}, {subject})")
    }

    fn of_document(&self, doc: &Doc) -> Vec<Because> {
        let mut found = match doc.status {
            _ if doc.is_waiting() => self.waiting(doc),
            Some(Status::Active) => vec![self.leased(doc)],
            Some(Status::Completed) => vec![self.completed(doc)],
            Some(Status::Killed) => vec![self.killed(doc)],
            _ => vec![self.set_aside("It has a status that fetchq does not know.")],
        };
        if let Some(holder) = &doc.holder {
            found.push(self.held(doc, holder));
        }
        if found.is_empty() {
            let detail = format!(
                "Nothing keeps it: a worker of version {} can lease it.",
                doc.version
            );
            let hint = format!(
                "Lease it: select * from fetchq.doc_lease({}, version => {})",
                literal(self.queue),
                doc.version
            );
            found.push(Because::new(Reason::Ready, detail, hint).since(Some(doc.at)));
        }
        found
    }

    /// What keeps a planned or pending document, and its queue.
    fn waiting(&self, doc: &Doc) -> Vec<Because> {
        let is_due = doc.at <= self.now;
        let mut found = Vec::new();
        if !is_due {
            found.push(self.not_due(doc));
        } else if doc.status == Some(Status::Planned) {
            let detail = "It is due, and maintenance has not made it pending yet.";
            found.push(self.maintenance(detail, doc.at));
        }
        if let Some(at) = doc.expires_at
            && at <= self.now
            && doc.attempts == 0
        {
            let detail =
                "It has expired: it did not begin in time, and maintenance has not killed it yet.";
            let hint = format!("Put it again: {}", self.call("doc_put"));
            found.push(Because::new(Reason::Expired, detail.to_owned(), hint).since(Some(at)));
        }
        found.extend(doc.key.as_ref().map(|key| self.behind(key)));
        if doc.is_set_aside {
            let detail = "Its lock_upgrade is set, so it is neither picked nor maintained.";
            found.push(self.set_aside(detail));
        }
        if self.is_paused {
            found.push(self.paused());
        }
        if is_due {
            found.extend(self.cap.as_ref().and_then(|cap| self.at_cap(cap)));
            found.extend(self.rate.as_ref().and_then(|rate| self.over_rate(rate)));
            // Somebody has it.
            let workers = self.workers.as_ref().filter(|_| doc.holder.is_none());
            let no_worker = workers.and_then(|workers| self.no_worker(doc.version, workers));
            found.extend(match self.is_dead_letter_queue {
                true => no_worker.map(|_| self.dead_letter(doc)),
                false => no_worker,
            });
        }
        found
    }

    fn not_due(&self, doc: &Doc) -> Because {
        let (reason, detail) = if doc.attempts > 0 {
            let (n, max) = (doc.attempts, doc.max_attempts);
            let error = match &doc.last_error {
                Some(error) => format!(": {}", shorten(error)),
                None => ".".to_owned(),
            };
            let detail = format!("It waits for its retry: attempt {n} of {max} failed{error}");
            (Reason::Retry, detail)
        } else if doc.at == i64::MAX {
            let detail = "It is never due: its time is infinity.";
            (Reason::NotDue, detail.to_owned())
        } else {
            (Reason::NotDue, "It is not due yet.".to_owned())
        };
        let (queue, subject) = (literal(self.queue), literal(self.subject));
        let hint = format!("Run it now: select fetchq.doc_set_due({queue}, {subject}, now())");
        Because::new(reason, detail, hint).until(Some(doc.at))
    }

    fn maintenance(&self, detail: &str, since: i64) -> Because {
        let queue = literal(self.queue);
        let hint = format!(
            "It takes a moment. If it does not end: select * from fetchq.status() says what is late, and select * from fetchq.mnt_run({queue}, 1000) does it now"
        );
        Because::new(Reason::Maintenance, detail.to_owned(), hint).since(Some(since))
    }

    fn behind(&self, key: &KeyFacts) -> Because {
        let key_name = shorten(&key.key);
        let rule = match key.places {
            1 => "run one at a time".to_owned(),
            n => format!("run {n} at a time"),
        };
        let shown: Vec<String> = key
            .first
            .iter()
            .take(3)
            .map(|s| format!("\"{s}\""))
            .collect();
        let mut before = match shown.is_empty() {
            true => String::new(),
            false => format!(": {}", shown.join(", ")),
        };
        if let Some(previous) = &key.previous {
            before += &format!(", and \"{previous}\" just before it");
        }
        let detail = format!(
            "Documents of its ordering key \"{key_name}\" {rule}, and others come before it{before}."
        );
        let hint = match key.first.first() {
            Some(first) => format!(
                "See what the first one waits for: select * from fetchq.doc_explain({}, {})",
                literal(self.queue),
                literal(first)
            ),
            None => "The order is being changed. Maintenance repairs it within ten minutes: select * from fetchq.status() says whether it runs".to_owned(),
        };
        Because::new(Reason::OrderingKey, detail, hint)
    }

    fn set_aside(&self, detail: &str) -> Because {
        let hint = format!(
            "Only plain SQL does that. To undo it: update fetchq_data.\"{}__docs\" set lock_upgrade = null, status = 0 where subject = {}",
            self.queue,
            literal(self.subject)
        );
        Because::new(Reason::SetAside, detail.to_owned(), hint)
    }

    fn paused(&self) -> Because {
        let detail = format!("The queue \"{}\" is paused.", self.queue);
        let hint = format!(
            "Resume it: select fetchq.queue_resume({})",
            literal(self.queue)
        );
        Because::new(Reason::Paused, detail, hint)
    }

    fn at_cap(&self, cap: &Cap) -> Option<Because> {
        let used = cap.active + cap.locked;
        if used < i64::from(cap.max_active) {
            return None;
        }
        let open = match cap.locked {
            0 => String::new(),
            n => format!(", and {n} more leased in transactions that are open"),
        };
        let detail = format!(
            "The queue has max_active = {}, and {}{open}.",
            cap.max_active,
            match cap.active {
                1 => "1 document is active".to_owned(),
                n => format!("{n} documents are active"),
            }
        );
        let hint = format!(
            "See who has them: select * from fetchq.lease_list({0}). Or raise it: select fetchq.queue_configure({0}, '{{\"max_active\": {1}}}')",
            literal(self.queue),
            cap.max_active.saturating_add(1)
        );
        Some(Because::new(Reason::MaxActive, detail, hint))
    }

    fn over_rate(&self, rate: &Rate) -> Option<Because> {
        if rate.free > 0 {
            return None;
        }
        let detail = format!(
            "The queue has a rate of {} in {}, which is used up.",
            rate.limit, rate.interval
        );
        let hint = format!(
            "Wait, or raise it: select fetchq.queue_configure({}, '{{\"rate\": {{\"picks\": {}}}}}')",
            literal(self.queue),
            rate.limit.saturating_mul(2)
        );
        Some(Because::new(Reason::Rate, detail, hint).until(rate.next))
    }

    fn no_worker(&self, version: i32, workers: &Workers) -> Option<Because> {
        let mut versions: Vec<i32> = workers.leased.clone();
        versions.extend(workers.awaited.iter().flatten());
        versions.sort_unstable();
        versions.dedup();
        if versions.contains(&version) {
            return None;
        }
        let queue = literal(self.queue);
        let start = format!(
            "Start a worker: select * from fetchq.doc_lease({queue}, version => {version})"
        );
        if !versions.is_empty() {
            let others: Vec<String> = versions.iter().map(i32::to_string).collect();
            let detail = format!(
                "It has version {version}, and workers of the queue take version {}.",
                others.join(", ")
            );
            return Some(Because::new(Reason::Version, detail, start));
        }
        if workers.sessions > 0 {
            return None;
        }
        let detail = "No session that is connected has leased documents of the queue";
        let detail = match workers.awaited {
            Some(_) => format!("{detail}, and none waits for any."),
            None => format!("{detail}."),
        };
        Some(Because::new(Reason::NoWorker, detail, start))
    }

    fn leased(&self, doc: &Doc) -> Because {
        if doc.at <= self.now {
            let detail = "Its lease has ended, and maintenance has not taken it back yet.";
            return self.maintenance(detail, doc.at);
        }
        let by = match &doc.worker {
            Some((name, pid)) => format!("by worker \"{name}\", process {pid}"),
            None => "by an unknown worker".to_owned(),
        };
        let detail = format!(
            "It is leased {by}: attempt {} of {}.",
            doc.attempts, doc.max_attempts
        );
        let hint = match &doc.worker {
            Some((name, _)) => format!(
                "If the worker is gone, release what it has: select fetchq.worker_release({})",
                literal(name)
            ),
            None => format!(
                "If the worker is gone, wait for the end of the lease, or cancel the document: {}",
                self.call("doc_cancel")
            ),
        };
        Because::new(Reason::Leased, detail, hint)
            .since(doc.picked_at)
            .until(Some(doc.at))
    }

    fn held(&self, doc: &Doc, holder: &Holder) -> Because {
        let what = match doc.status {
            _ if doc.is_only_locked => "has locked it",
            Some(Status::Planned | Status::Pending) => "has leased or changed it",
            Some(Status::Active) => "settles or changes it",
            _ => "changes it",
        };
        let (who, hint, since) = open_transaction(holder);
        let detail = format!("{who} {what}, and has not committed.");
        Because::new(Reason::OpenTransaction, detail, hint).since(since)
    }

    fn table_locked(&self, holder: Option<&Holder>) -> Because {
        let (who, hint, since) = open_transaction(holder.unwrap_or(&Holder::Unknown));
        let detail = format!(
            "{who} has locked the documents of queue \"{}\".",
            self.queue
        );
        Because::new(Reason::TableLocked, detail, hint).since(since)
    }

    fn completed(&self, doc: &Doc) -> Because {
        let detail = "It was completed.".to_owned();
        let hint = format!("Run it again: {}", self.call("doc_revive"));
        Because::new(Reason::Completed, detail, hint).since(doc.settled_at)
    }

    fn killed(&self, doc: &Doc) -> Because {
        let detail = match &doc.last_error {
            Some(error) => format!("It was killed: {}", shorten(error)),
            None => "It was killed.".to_owned(),
        };
        let hint = format!("Run it again: {}", self.call("doc_revive"));
        Because::new(Reason::Killed, detail, hint).since(doc.settled_at)
    }

    fn in_history(&self, outcome: &str, at: i64) -> Because {
        let detail = format!("It has left the queue. The history has it as {outcome}.");
        let (queue, subject) = (literal(self.queue), literal(self.subject));
        let hint = format!(
            "Run it again: select * from fetchq.doc_put({queue}, {subject}, (select payload from fetchq.doc_get({queue}, {subject})))"
        );
        Because::new(Reason::History, detail, hint).since(Some(at))
    }

    fn in_dead_letters(&self, dead_letter: &str, at: i64) -> Because {
        let detail =
            format!("It failed too often and is in the dead-letter queue \"{dead_letter}\".");
        let hint = format!(
            "Bring back what is there: select fetchq.queue_redrive({})",
            literal(self.queue)
        );
        Because::new(Reason::DeadLetter, detail, hint).since(Some(at))
    }

    /// A document of a dead-letter queue that no worker takes: none has to.
    fn dead_letter(&self, doc: &Doc) -> Because {
        let detail = "It is in a dead-letter queue, where it waits for somebody to look at it.";
        let hint = format!(
            "Bring back what is there: select fetchq.queue_redrive({})",
            literal(self.queue)
        );
        Because::new(Reason::DeadLetter, detail.to_owned(), hint).since(Some(doc.at))
    }

    fn absent(&self) -> Because {
        let detail = "There is no such document: it was dropped, or never put, or the transaction that puts it is open.";
        let hint = format!(
            "Look into all queues: select * from fetchq.trace({})",
            literal(self.subject)
        );
        Because::new(Reason::Absent, detail.to_owned(), hint)
    }
}

/// Who has an open transaction, what to do about it, and since when it is open.
fn open_transaction(holder: &Holder) -> (String, String, Option<i64>) {
    match holder {
        Holder::Session { pid, name, since } => {
            let name = match name {
                Some(name) => format!(" ({name})"),
                None => String::new(),
            };
            (
                format!("An open transaction of process {pid}{name}"),
                format!("Commit it, or end that session: select pg_terminate_backend({pid})"),
                *since,
            )
        }
        Holder::Prepared { gid, since } => (
            format!("The prepared transaction {}", literal(gid)),
            format!("Commit it, or roll it back: rollback prepared {}", literal(gid)),
            *since,
        ),
        Holder::Unknown => (
            "An open transaction".to_owned(),
            "See who has it, on the primary server: select * from pg_locks where not granted or locktype = 'transactionid'".to_owned(),
            None,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(doc: Doc) -> Facts<'static> {
        Facts {
            queue: "mail",
            subject: "o'hara",
            now: 100,
            is_paused: false,
            is_dead_letter_queue: false,
            cap: None,
            rate: None,
            workers: None,
            place: Place::Table(Box::new(doc)),
        }
    }

    fn doc(status: Status, at: i64) -> Doc {
        Doc {
            status: Some(status),
            at,
            max_attempts: 5,
            ..Doc::default()
        }
    }

    fn codes(facts: &Facts) -> Vec<&'static str> {
        explain(facts).iter().map(|b| b.reason.code()).collect()
    }

    #[test]
    fn a_document_that_nothing_keeps_is_ready() {
        let found = explain(&facts(doc(Status::Pending, 100)));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].reason, Reason::Ready);
        assert_eq!(found[0].since, Some(100));
        assert_eq!(codes(&facts(doc(Status::Pending, 101))), ["not_due"]);
        assert_eq!(codes(&facts(doc(Status::Planned, 100))), ["maintenance"]);
        let retried = Doc {
            attempts: 1,
            ..doc(Status::Pending, 101)
        };
        assert_eq!(codes(&facts(retried)), ["retry"]);
    }

    #[test]
    fn a_lock_of_a_row_is_no_lease() {
        let detail = |is_only_locked: bool| {
            let held = Doc {
                holder: Some(Holder::Unknown),
                is_only_locked,
                ..doc(Status::Pending, 100)
            };
            explain(&facts(held)).remove(0).detail
        };
        assert!(detail(false).contains("has leased or changed it"));
        assert!(detail(true).contains("has locked it"));
    }

    #[test]
    fn all_reasons_that_hold_are_told() {
        let mut all = facts(Doc {
            is_set_aside: true,
            key: Some(KeyFacts::default()),
            holder: Some(Holder::Unknown),
            ..doc(Status::Pending, 100)
        });
        all.is_paused = true;
        all.cap = Some(Cap {
            max_active: 2,
            active: 1,
            locked: 1,
        });
        all.rate = Some(Rate {
            limit: 1,
            interval: "00:00:01".to_owned(),
            free: 0,
            next: Some(i64::MAX),
        });
        all.workers = Some(Workers::default());
        let expected = [
            "ordering_key",
            "set_aside",
            "paused",
            "max_active",
            "rate",
            "open_transaction",
        ];
        assert_eq!(codes(&all), expected);
        // An infinite time is none.
        assert!(explain(&all).iter().all(|because| because.until.is_none()));
    }

    #[test]
    fn a_version_that_no_worker_takes_is_a_reason_where_others_are_taken() {
        let mut facts = facts(doc(Status::Pending, 100));
        let mut workers = Workers {
            sessions: 1,
            awaited: Some(vec![1]),
            leased: vec![2],
        };
        facts.workers = Some(workers.clone());
        assert_eq!(codes(&facts), ["version"]);
        workers.leased.push(0);
        facts.workers = Some(workers.clone());
        assert_eq!(codes(&facts), ["ready"]);
        // A worker that polls and has nothing leased may take any version.
        workers.leased.clear();
        workers.awaited = None;
        facts.workers = Some(workers.clone());
        assert_eq!(codes(&facts), ["ready"]);
        workers.sessions = 0;
        facts.workers = Some(workers);
        assert_eq!(codes(&facts), ["no_worker"]);
        // Nobody has to work on dead letters.
        facts.is_dead_letter_queue = true;
        assert_eq!(codes(&facts), ["dead_letter"]);
    }

    #[test]
    fn a_call_quotes_what_it_names() {
        let found = explain(&facts(doc(Status::Killed, 0)));
        assert_eq!(
            found[0].hint,
            "Run it again: select fetchq.doc_revive('mail', 'o''hara')"
        );
    }

    #[test]
    fn the_guide_to_troubleshooting_has_every_code() {
        let guide = include_str!("../../docs/guides/troubleshooting.md");
        for reason in Reason::ALL {
            let row = format!("| `{}` |", reason.code());
            assert!(guide.contains(&row), "troubleshooting.md has no row {row}");
        }
    }
}
