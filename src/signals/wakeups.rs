//! Wake-ups: what this transaction does that sessions wait for, so that its end wakes them.
//! `waiters.rs` has the sessions.
//!
//! Each counter event that settles documents says how many; the code that settles them also says
//! which ones, if a session waits for a settled document at that moment. Where the subjects of some
//! are not known when the transaction commits, all who wait for documents of the table are woken, and
//! look. So a call that settles documents is correct without this, and wakes too many. It is the same
//! with the leases that somebody else than their worker ends.

use crate::pg::lasting::{Lasting, lasting};
use crate::pg::transaction::End;
use crate::signals::waiters::{ALL, Key, Waiters, waiters};

/// Documents whose subjects a transaction remembers.
const SUBJECTS: usize = 10_000;

/// For this many tables a commit distinguishes whose documents it has settled. Beyond that, it wakes all
/// sessions that wait for one.
const TABLES: usize = 8;

/// Keys, and for each how many documents there are.
type Counts = Vec<(Key, u32)>;

/// Documents of several tables of which it may be known which ones they are.
struct Told {
    /// How many, of each table.
    counts: Counts,
    /// The keys of those that are known.
    known: Vec<Key>,
}

impl Told {
    const fn new() -> Self {
        Self {
            counts: Vec::new(),
            known: Vec::new(),
        }
    }

    fn add_known(&mut self, keys: impl Iterator<Item = Key>) {
        let room = SUBJECTS - self.known.len();
        self.known.extend(keys.take(room));
    }

    /// Passes on the keys of which all waiters are woken.
    fn for_each(&self, mut wake: impl FnMut(Key)) {
        for (table, number) in &self.counts {
            let known = self.known.iter().filter(|key| table.includes(**key));
            match known.clone().count() < *number as usize {
                true => wake(*table),
                false => known.for_each(|key| wake(*key)),
            }
        }
    }

    fn clear(&mut self) {
        self.counts.clear();
        // A bulk action does not keep its memory.
        self.known = Vec::new();
    }
}

/// What a transaction does that sessions wait for.
struct Wakeups {
    /// Documents that can be picked when it commits.
    ready: Counts,
    /// Documents that it has picked. Its rollback makes them ready again.
    claimed: Counts,
    /// Documents that it settles.
    settled: Told,
    /// Documents whose lease it ends, and which another session works on.
    taken: Told,
    /// Workers that it asks to do something.
    workers: Vec<Key>,
}

thread_local! {
    static WAKEUPS: Lasting<Wakeups> = const { lasting(Wakeups::new()) };
}

fn add(counts: &mut Counts, key: Key, number: u32) {
    match counts.iter_mut().find(|(other, _)| *other == key) {
        Some((_, n)) => *n = n.saturating_add(number),
        None if number > 0 => counts.push((key, number)),
        None => {}
    }
}

impl Wakeups {
    const fn new() -> Self {
        Self {
            ready: Vec::new(),
            claimed: Vec::new(),
            settled: Told::new(),
            taken: Told::new(),
            workers: Vec::new(),
        }
    }

    /// Passes on what each wake-up at the end of the transaction is for, and how many it wakes.
    fn for_each(&self, end: End, mut wake: impl FnMut(Key, u32)) {
        let counts = match end {
            End::Committed => &self.ready,
            End::RolledBack => &self.claimed,
            // The documents of a prepared transaction are not available yet. Its end wakes all.
            End::Committing | End::Prepared => return,
        };
        counts.iter().for_each(|(key, number)| wake(*key, *number));
        if end != End::Committed {
            return;
        }
        let mut wake = |key| wake(key, ALL);
        match self.settled.counts.len() > TABLES {
            true => wake(Key::settled_anywhere()),
            false => self.settled.for_each(&mut wake),
        }
        self.taken.for_each(&mut wake);
        self.workers.iter().for_each(|key| wake(*key));
    }

    fn clear(&mut self) {
        self.ready.clear();
        self.claimed.clear();
        self.settled.clear();
        self.taken.clear();
        self.workers.clear();
    }
}

/// Records something for the end of this transaction. Without shared memory no session is woken.
fn record(record: impl FnOnce(&mut Wakeups, Waiters)) {
    if let Some(waiters) = waiters() {
        WAKEUPS.with(|wakeups| record(&mut wakeups.borrow_mut(), waiters));
    }
}

/// Counts documents that are ready when this transaction commits.
pub fn documents_ready(documents: Key, number: u32) {
    record(|wakeups, _| add(&mut wakeups.ready, documents, number));
}

/// Counts documents that are ready again when this transaction rolls back.
pub fn documents_claimed(documents: Key, number: u32) {
    record(|wakeups, _| add(&mut wakeups.claimed, documents, number));
}

/// Counts how many more documents of a table, of whatever version, can be picked when this
/// transaction commits.
pub fn capacity_freed(table: u32, number: u32) {
    documents_ready(Key::ready_in(table), number);
}

/// Counts documents of a table that are settled when this transaction commits.
pub fn documents_settled(table: u32, number: u32) {
    record(|wakeups, _| add(&mut wakeups.settled.counts, Key::settled_in(table), number));
}

/// Says which documents of a table are settled when this transaction commits, beside the counter
/// event that says how many. Costs one read of shared memory when nobody waits.
pub fn subjects_settled(table: u32, subjects: impl IntoIterator<Item = impl AsRef<str>>) {
    record(|wakeups, waiters| {
        if waiters.is_settlement_awaited() {
            let subjects = subjects.into_iter();
            let keys = subjects.map(|subject| Key::settled(table, subject.as_ref()));
            wakeups.settled.add_known(keys);
        }
    });
}

/// Counts documents of a table whose lease somebody else than its worker ends when this transaction
/// commits.
pub fn leases_taken(table: u32, number: u32) {
    record(|wakeups, _| add(&mut wakeups.taken.counts, Key::lease_in(table), number));
}

/// Says which worker sessions had these leases, one for each of them, beside the counter event that
/// says how many. Costs one read of shared memory when no worker waits.
pub fn sessions_lose_leases(table: u32, sessions: impl IntoIterator<Item = i64>) {
    record(|wakeups, waiters| {
        if waiters.is_lease_watched() {
            let sessions = sessions.into_iter();
            let keys = sessions.map(|session| Key::lease(table, session));
            wakeups.taken.add_known(keys);
        }
    });
}

/// Has the waiting workers of a name look when this transaction commits.
pub fn worker_called(name: &str) {
    record(|wakeups, _| wakeups.workers.push(Key::worker(name)));
}

/// Has all who wait for documents of a table look when this transaction commits.
pub fn table_emptied(table: u32) {
    documents_settled(table, u32::MAX);
    leases_taken(table, u32::MAX);
}

/// Wakes the sessions that wait for what this transaction did. To be called after its end.
pub fn transaction_ended(end: End, database: u32) {
    record(|wakeups, waiters| {
        wakeups.for_each(end, |key, number| waiters.wake(database, key, number));
        wakeups.clear();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn woken(wakeups: &Wakeups, end: End) -> Counts {
        let mut woken = Vec::new();
        wakeups.for_each(end, |key, number| woken.push((key, number)));
        woken
    }

    #[test]
    fn what_is_not_known_is_told_from_what_is() {
        let mut wakeups = Wakeups::new();
        let [a, b] = ["a", "b"].map(|subject| Key::settled(1, subject));
        let [one, two] = [1, 2].map(Key::settled_in);
        let other = Key::settled(2, "a");
        add(&mut wakeups.settled.counts, one, 2);
        wakeups.settled.add_known([a].into_iter());
        add(&mut wakeups.settled.counts, two, 1);
        wakeups.settled.add_known([other].into_iter());
        assert_eq!(woken(&wakeups, End::Committed), [(one, ALL), (other, ALL)]);
        wakeups.settled.add_known([b].into_iter());
        let known = [a, b, other].map(|key| (key, ALL));
        assert_eq!(woken(&wakeups, End::Committed), known);
        add(&mut wakeups.settled.counts, two, u32::MAX);
        add(&mut wakeups.settled.counts, two, u32::MAX);
        let known = [a, b, two].map(|key| (key, ALL));
        assert_eq!(woken(&wakeups, End::Committed), known);
        assert_eq!(woken(&wakeups, End::RolledBack), []);
        wakeups.clear();
        assert_eq!(woken(&wakeups, End::Committed), []);
    }

    /// `queue_truncate_all` empties thousands of tables. To look for waiters of each would take long.
    #[test]
    fn what_many_tables_have_settled_is_not_told_apart() {
        let mut wakeups = Wakeups::new();
        for table in 1..=TABLES as u32 {
            add(
                &mut wakeups.settled.counts,
                Key::settled_in(table),
                u32::MAX,
            );
        }
        assert_eq!(woken(&wakeups, End::Committed).len(), TABLES);
        add(&mut wakeups.settled.counts, Key::settled_in(99), 1);
        let all = [(Key::settled_anywhere(), ALL)];
        assert_eq!(woken(&wakeups, End::Committed), all);
    }

    #[test]
    fn a_commit_and_a_rollback_wake_for_different_documents() {
        let mut wakeups = Wakeups::new();
        let (pushed, picked) = (Key::ready(1, 0), Key::ready(1, 7));
        add(&mut wakeups.ready, pushed, 1);
        add(&mut wakeups.ready, pushed, 2);
        add(&mut wakeups.claimed, picked, 4);
        assert_eq!(woken(&wakeups, End::Committed), [(pushed, 3)]);
        assert_eq!(woken(&wakeups, End::RolledBack), [(picked, 4)]);
        assert_eq!(woken(&wakeups, End::Prepared), []);
    }

    #[test]
    fn workers_are_told_of_their_leases_alone_where_they_are_known() {
        let mut wakeups = Wakeups::new();
        let [a, b] = [1, 2].map(|session| Key::lease(7, session));
        add(&mut wakeups.taken.counts, Key::lease_in(7), 2);
        wakeups.taken.add_known([a].into_iter());
        assert_eq!(woken(&wakeups, End::Committed), [(Key::lease_in(7), ALL)]);
        wakeups.taken.add_known([b].into_iter());
        assert_eq!(woken(&wakeups, End::Committed), [(a, ALL), (b, ALL)]);
        assert_eq!(woken(&wakeups, End::RolledBack), []);
        wakeups.workers.push(Key::worker("w"));
        wakeups.taken.clear();
        assert_eq!(woken(&wakeups, End::Committed), [(Key::worker("w"), ALL)]);
    }

    #[test]
    fn a_bulk_action_takes_bounded_memory() {
        let mut wakeups = Wakeups::new();
        add(&mut wakeups.settled.counts, Key::settled_in(1), 20_000);
        for _ in 0..2 {
            let subjects = (0..10_000).map(|n| Key::settled(1, &n.to_string()));
            wakeups.settled.add_known(subjects);
        }
        assert_eq!(wakeups.settled.known.len(), SUBJECTS);
        let all = [(Key::settled_in(1), ALL)];
        assert_eq!(woken(&wakeups, End::Committed), all);
    }
}
