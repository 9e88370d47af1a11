//! The answers that the workers received, and what must hold of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// What happens to a lease when its session ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Binding {
    Off,
    Return,
    Keep,
}

impl Binding {
    pub fn of(worker: usize) -> Self {
        [Self::Off, Self::Return, Self::Keep][worker % 3]
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Return => "return",
            Self::Keep => "keep",
        }
    }
}

/// A lease that a worker received and has not given up.
#[derive(Clone, Debug)]
pub struct Hold {
    pub lease: i64,
    /// The time of the pick: microseconds, by the server's clock.
    pub at: i64,
    /// The time of expiry: microseconds, by the server's clock.
    pub until: i64,
    pub binding: Binding,
    /// The session that owns the lease; each session of each worker has its own number.
    pub life: usize,
}

#[derive(Default, Debug)]
pub struct Document {
    pub is_pushed: bool,
    pub hold: Option<Hold>,
    /// The newest lease that a worker received.
    newest: i64,
    /// The lease whose worker received the answer that the document is settled.
    pub settled_by: Option<i64>,
    pub is_cancelled: bool,
    /// The time of the cancellation: microseconds since 2000, by the server's clock.
    pub cancelled_at: i64,
    /// A cancellation was requested, and its answer may be lost.
    pub may_be_cancelled: bool,
}

#[derive(Default)]
pub struct Ledger {
    pub documents: Mutex<BTreeMap<String, Document>>,
    /// The lease numbers of all picks.
    pub leases: Mutex<BTreeSet<i64>>,
    /// Sessions that are about to be ended, or have ended.
    doomed: Mutex<BTreeSet<usize>>,
    pub lives: AtomicUsize,
    pub picks: AtomicUsize,
    pub refused: AtomicUsize,
    pub ended: AtomicBool,
    /// A crash may lose leases that are younger than this: microseconds.
    may_be_lost_for: i64,
    /// The last crash: microseconds, by the server's clock. 0: none.
    crashed_at: AtomicI64,
}

impl Ledger {
    /// A ledger of a server whose crash may lose its last leases: they do not wait for the disk, and are written
    /// late by some milliseconds.
    pub fn losing(delay: i64) -> Self {
        Self {
            may_be_lost_for: (delay + 1000) * 1000,
            ..Self::default()
        }
    }

    /// Records that the server is about to crash.
    pub fn crashes(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        self.crashed_at
            .store(now.as_micros() as i64, Ordering::Relaxed);
    }

    /// Whether a crash may have lost a lease when the next one was granted.
    fn may_be_lost(&self, hold: &Hold, at: i64) -> bool {
        let crash = self.crashed_at.load(Ordering::Relaxed);
        // Its answer comes after the pick, and the crash a moment after it was recorded.
        (crash - self.may_be_lost_for..crash + 500_000).contains(&hold.at) && at > crash
    }

    pub fn with<R>(&self, subject: &str, change: impl FnOnce(&mut Document) -> R) -> R {
        let mut documents = self.documents.lock().unwrap();
        change(documents.entry(subject.to_owned()).or_default())
    }

    fn is_doomed(&self, life: usize) -> bool {
        self.doomed.lock().unwrap().contains(&life)
    }

    pub fn doom(&self, life: usize) {
        self.doomed.lock().unwrap().insert(life);
    }

    /// Whether a lease was over when the next one was granted.
    fn was_over(&self, hold: &Hold, at: i64) -> bool {
        if self.may_be_lost_for > 0 && self.may_be_lost(hold, at) {
            return true;
        }
        match hold.binding {
            Binding::Off => hold.until <= at,
            Binding::Return => hold.until <= at || self.is_doomed(hold.life),
            Binding::Keep => self.is_doomed(hold.life),
        }
    }

    /// Records a pick. The answer may arrive late, after other workers had the document.
    pub fn picked(&self, subject: &str, hold: Hold) {
        self.picks.fetch_add(1, Ordering::Relaxed);
        let mut documents = self.documents.lock().unwrap();
        let document = documents
            .get_mut(subject)
            .unwrap_or_else(|| panic!("{subject} was never pushed"));
        let is_late = document.settled_by.is_some_and(|by| by > hold.lease)
            || document.is_cancelled && hold.at < document.cancelled_at
            || document.hold.is_none() && document.newest > hold.lease;
        if is_late {
            return;
        }
        assert!(
            document.settled_by.is_none() && !document.is_cancelled,
            "{subject} was picked after it was settled or cancelled: {document:?}"
        );
        let (before, after) = match &document.hold {
            Some(other) if other.lease > hold.lease => (Some(&hold), other),
            other => (other.as_ref(), &hold),
        };
        if let Some(before) = before {
            assert!(
                self.was_over(before, after.at),
                "{subject} was picked as {after:?} while another lease was live: {before:?}"
            );
        }
        if after.lease == hold.lease {
            document.newest = hold.lease;
            document.hold = Some(hold);
        }
    }

    /// Records a request to settle the document or to give it up: others may pick it from now on.
    pub fn gives_back(&self, subject: &str, lease: i64) {
        self.with(subject, |document| {
            if document
                .hold
                .as_ref()
                .is_some_and(|hold| hold.lease == lease)
            {
                document.hold = None;
            }
        });
    }

    pub fn settled(&self, subject: &str, lease: i64) {
        self.with(subject, |document| {
            assert!(
                document.settled_by.is_none() && !document.is_cancelled,
                "{subject} was settled by {lease} after it was settled or cancelled: {document:?}"
            );
            assert!(
                document.hold.is_none(),
                "{subject} was settled by {lease} while another lease was live: {document:?}"
            );
            document.settled_by = Some(lease);
        });
    }
}
