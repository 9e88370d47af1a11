//! What the launcher knows about a database, and which databases have an entry on the board.

use std::collections::HashMap;

use crate::background::pool::Need;
use crate::domain::version::LIBRARY;
use crate::error;
use crate::pg::process::Started;
use crate::signals::databases;

/// What the launcher knows about a database. Times are in microseconds since 2000.
pub struct Database {
    pub name: String,
    /// It is in the list of databases.
    pub exists: bool,
    /// The settings want background workers in it.
    pub is_enabled: bool,
    /// It has an entry on the board.
    pub is_listed: bool,
    /// Whether it has the extension; None when nobody has looked.
    pub has_extension: Option<bool>,
    /// The position of its background worker on the board, and the process.
    pub running: Option<(usize, Started)>,
    /// When its background worker was asked to leave.
    pub asked_at: Option<i64>,
    pub started_at: i64,
    /// When its last background worker left it to another database.
    pub left_at: i64,
    /// When it needs a background worker, if the board has no entry for it.
    pub wakes_at: i64,
    /// The background worker must not be started before this time.
    pub not_before: i64,
    /// Crashes since it last ran for a long time.
    pub crashes: u32,
    /// The log says that its extension has another version than the library.
    pub is_unfit_logged: bool,
}

/// Gives entries of databases without the extension to those with it that have none. Returns how
/// many of these still have none; None when all had one before.
pub fn make_room(
    databases: &mut HashMap<u32, Database>,
    entries: &databases::Databases,
) -> Option<u32> {
    let needs = |d: &Database| !d.is_listed && d.is_enabled && d.has_extension == Some(true);
    let wanted = databases.values().filter(|d| needs(d)).count();
    if wanted == 0 && entries.unlisted() == 0 {
        return None;
    }
    let others = databases.iter_mut().filter(|(_, database)| {
        database.is_listed && database.has_extension == Some(false) && database.running.is_none()
    });
    for (oid, database) in others.take(wanted) {
        // It may have got the extension a moment ago.
        database.wakes_at = entries.remove(*oid);
        database.is_listed = false;
    }
    let mut unlisted = 0;
    for (oid, database) in databases.iter_mut().filter(|(_, d)| needs(d)) {
        database.is_listed = entries.add(*oid);
        unlisted += u32::from(!database.is_listed);
    }
    entries.set_unlisted(unlisted);
    Some(unlisted)
}

impl Database {
    /// Records that its background worker has exited, and that it needs one at a time, in
    /// microseconds since 2000. It may need one earlier, for what happened since the start.
    pub fn end_visit(&mut self, wakes_at: i64) {
        self.wakes_at = self.wakes_at.min(wakes_at);
    }

    /// Returns what is known of a database that was just found in the list, at `now`.
    pub fn new(has_extension: Option<bool>, now: i64) -> Self {
        Self {
            name: String::new(),
            exists: true,
            is_enabled: false,
            is_listed: false,
            has_extension,
            running: None,
            asked_at: None,
            started_at: i64::MIN,
            left_at: has_extension.map_or(i64::MIN, |_| now),
            wakes_at: i64::MIN,
            not_before: i64::MIN,
            crashes: 0,
            is_unfit_logged: false,
        }
    }

    /// Writes to the log of the server, once, that nothing is done in this database, because its
    /// extension has another version than the library, and what to do.
    pub fn log_unfit(&mut self, is_older: bool) {
        if self.is_unfit_logged {
            return;
        }
        self.is_unfit_logged = true;
        let (state, remedy) = match is_older {
            true => ("older", "run there: alter extension fetchq update"),
            false => ("newer", "install its files and restart the server"),
        };
        error::log(format!(
            "fetchq launcher: database \"{}\" gets no background worker, because its extension is {state} than the library, which has version {LIBRARY}: {remedy}",
            self.name
        ));
    }

    /// Returns what decides when it needs a background worker. `entry` is its entry on the board.
    pub fn need(&self, entry: Option<&databases::Database>) -> Need {
        Need {
            wakes_at: entry.map_or(self.wakes_at, databases::Database::wakes_at),
            left_at: self.left_at,
            has_extension: self.has_extension,
            is_listed: entry.is_some(),
            has_events: entry.is_some_and(databases::Database::has_events),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::databases::DATABASES;

    fn databases(oids: std::ops::Range<u32>, has_extension: bool) -> HashMap<u32, Database> {
        let database = |oid| {
            let mut database = Database::new(Some(has_extension), 0);
            database.is_enabled = true;
            (oid, database)
        };
        oids.map(database).collect()
    }

    fn list(databases: &mut HashMap<u32, Database>, entries: &databases::Databases) {
        for (oid, database) in databases {
            database.is_listed = entries.add(*oid);
        }
    }

    #[test]
    fn a_database_with_something_due_is_not_forgotten_when_its_entry_is_needed() {
        static ENTRIES: databases::Databases = databases::Databases::new();
        let full = DATABASES as u32;
        let mut all = databases(1..full + 1, false);
        list(&mut all, &ENTRIES);
        all.values_mut().for_each(|d| d.wakes_at = i64::MAX);
        for oid in 1..=full {
            ENTRIES.find(oid).unwrap().begin_visit();
        }
        assert_eq!(make_room(&mut all, &ENTRIES), None);
        // All of them get the extension while one that has it has no entry.
        for oid in 1..=full {
            assert_eq!(ENTRIES.wake_at(oid, i64::MIN), Some(true));
        }
        all.extend(databases(5000..5001, true));
        assert_eq!(make_room(&mut all, &ENTRIES), Some(0));
        assert!(all[&5000].is_listed);
        let due = |oid: &u32| all[oid].need(ENTRIES.find(*oid)).due_at(all.len());
        assert!(all.keys().all(|oid| due(oid) == i64::MIN));
        assert_eq!(all.values().filter(|d| !d.is_listed).count(), 1);
    }

    #[test]
    fn more_databases_than_entries_are_counted_and_served_in_rotation() {
        static ENTRIES: databases::Databases = databases::Databases::new();
        let mut all = databases(1..DATABASES as u32 + 4, true);
        list(&mut all, &ENTRIES);
        assert_eq!(make_room(&mut all, &ENTRIES), Some(3));
        assert_eq!(ENTRIES.unlisted(), 3);
        for (oid, database) in all.iter_mut().filter(|(_, d)| !d.is_listed) {
            database.wakes_at = i64::MAX;
            assert!(ENTRIES.find(*oid).is_none());
            assert!(database.need(None).due_at(2000) < i64::MAX);
            database.end_visit(70);
            assert_eq!(database.need(None).due_at(2000), 70);
        }
        let gone: Vec<u32> = all.keys().copied().filter(|oid| *oid <= 3).collect();
        for oid in gone {
            all.remove(&oid);
            ENTRIES.remove(oid);
        }
        assert_eq!(make_room(&mut all, &ENTRIES), Some(0));
        assert_eq!(make_room(&mut all, &ENTRIES), None);
        assert!(all.values().all(|d| d.is_listed));
    }

    /// A database without an entry gets the extension after its background worker has looked for
    /// it, and before that one exits.
    #[test]
    fn what_happens_during_a_visit_is_not_forgotten() {
        let mut database = Database::new(None, 0);
        database.wakes_at = i64::MAX;
        database.wakes_at = i64::MIN;
        database.end_visit(i64::MAX);
        assert_eq!(database.need(None).due_at(1), i64::MIN);
    }
}
