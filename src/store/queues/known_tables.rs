//! What a session remembers of the documents tables for its reports: their epochs and their indexes.
//!
//! To read that from the catalog takes longer than all else that a report needs of an idle queue. The
//! server tells a session when the definition of a table, its triggers, its indexes or its file have
//! changed, and then it is read again.

use crate::pg::lasting::{Lasting, lasting};
use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use crate::domain::document::{DUE_KEY, PICK_KEY, numbers};
use crate::pg::index_look::ReadLock;
use crate::pg::invalidation::{self, Invalidated, Reader};
use crate::pg::planner::PlainSearchPath;
use crate::pg::value::Arg;
use crate::pg::{relation, spi};
use crate::ready::floors;
use crate::store::queues::plans::run_latest;
use crate::store::queues::statement::Statement;

/// Tables that are remembered, at about 100 bytes each.
const MAX_TABLES: usize = 20_000;

/// Predicates of each kind that are remembered. Those of all queues look the same.
const MAX_PREDICATES: usize = 4;

// The number of the file, the transaction that last wrote the catalog row of the trigger if it always
// runs, and the indexes that can be the pick index or the due index, with their predicates. $1: the
// tables. $2 and $3: the numbers of the columns of a due index and of a pick index.
static FACTS: Statement = Statement::new(
    "select c.oid, c.relfilenode, t.xmin, i.indexrelid, i.is_due, i.predicate
     from pg_catalog.pg_class c
     left join pg_catalog.pg_trigger t
         on t.tgrelid {=} c.oid and t.tgname {=} 'fetchq_ready' and t.tgenabled {=} 'A'
     left join lateral (
         select i.indexrelid, i.indkey::pg_catalog.text {=} $2 as is_due,
             i.indpred::pg_catalog.text as predicate
         from pg_catalog.pg_index i
         where i.indrelid {=} c.oid and i.indisvalid and i.indisready and not i.indisunique
             and (i.indkey::pg_catalog.text {=} $2
                     and i.indoption::pg_catalog.text {=} '0 0 0'
                 or i.indkey::pg_catalog.text {=} $3
                     and i.indoption::pg_catalog.text {=} '0 3 0 0 0')) i on true
     where c.oid {=} any ($1::pg_catalog.oid[])",
);

// Whether an index has the predicate with which fetchq makes it. $1: the index. $2: it is a due index.
static HAS_PREDICATE: Statement = Statement::new(
    "select pg_catalog.pg_get_expr(i.indpred, i.indrelid) {=}
         case when $2
             then '((status = ANY (ARRAY[{planned}, {active}])) AND (lock_upgrade IS NULL))'
             else '((status = {pending}) AND (lock_upgrade IS NULL))' end
     from pg_catalog.pg_index i where i.indexrelid {=} $1",
);

/// The pick index and the due index of a queue that are as fetchq made them.
#[derive(Default, Clone, Copy)]
pub struct Indexes {
    /// The pick index.
    pub pick: Option<Oid>,
    /// The due index.
    pub due: Option<Oid>,
}

/// What is known of a documents table.
#[derive(Default, Clone, Copy)]
pub struct Facts {
    /// The epoch in which the floors must be known. None when they prove nothing.
    pub epoch: Option<u64>,
    /// Its indexes.
    pub indexes: Indexes,
}

thread_local! {
    static KNOWN: Lasting<HashMap<Oid, Facts>> = lasting(HashMap::new());
    // The predicates as the catalog stores them, without places in a statement, of pick indexes and of
    // due indexes.
    static PREDICATES: Lasting<[Vec<String>; 2]> = const { lasting([Vec::new(), Vec::new()]) };
}

/// The documents tables of which something is known, as of now.
pub struct KnownTables(HashMap<Oid, Facts>);

impl Drop for KnownTables {
    fn drop(&mut self) {
        // After an ERROR something may be missing of a table.
        if !std::thread::panicking() {
            KNOWN.with(|known| known.replace(std::mem::take(&mut self.0)));
        }
    }
}

impl KnownTables {
    /// Reads what is not known of these tables. Locks none of them for longer than this call, and
    /// waits for no lock.
    pub fn of(tables: impl Iterator<Item = Oid>) -> Self {
        relation::accept_invalidations();
        let mut known = Self(KNOWN.with(|known| known.take()));
        match invalidation::take(Reader::Reports) {
            Invalidated::Nothing => {}
            Invalidated::Everything => known.0.clear(),
            Invalidated::Tables(changed) => {
                for table in changed {
                    known.0.remove(&table);
                }
            }
        }
        let unknown: Vec<Oid> = tables
            .filter(|table| !known.0.contains_key(table))
            .collect();
        if known.0.len() + unknown.len() > MAX_TABLES {
            known.0.clear();
        }
        if !unknown.is_empty() {
            known.read(&unknown);
        }
        known
    }

    /// Returns what is known of a table. Nothing, where it was dropped or altered.
    pub fn get(&self, table: Oid) -> Facts {
        self.0.get(&table).copied().unwrap_or_default()
    }

    /// Has the next report read a table again: one of its indexes may have been locked.
    pub fn forget(&mut self, table: Oid) {
        self.0.remove(&table);
    }

    fn read(&mut self, tables: &[Oid]) {
        let tables: Vec<i64> = tables.iter().map(|table| table.to_u32().into()).collect();
        let mut unsure = Vec::new();
        spi::connect(|spi| {
            let args = [
                Arg::from(tables),
                Arg::from(numbers(&DUE_KEY).as_str()),
                Arg::from(numbers(&PICK_KEY).as_str()),
            ];
            let rows = run_latest(spi, &FACTS, &args);
            for row in 0..rows.len() {
                let number = |column| rows.number(row, column);
                let Some(table) = number(1).map(Oid::from) else {
                    continue;
                };
                let facts = self.0.entry(table).or_default();
                facts.epoch = number(2)
                    .zip(number(3))
                    .map(|(file, trigger)| floors::epoch_of(file, trigger));
                let Some(index) = number(4).map(Oid::from) else {
                    continue;
                };
                let is_due = rows.get(row, 5) == Some(true);
                let predicate: String = rows.get(row, 6).unwrap_or_default();
                match is_ours(&predicate, is_due, table, index) {
                    Some(true) if is_due => facts.indexes.due = Some(index),
                    Some(true) => facts.indexes.pick = Some(index),
                    Some(false) => {}
                    None => unsure.push(table),
                }
            }
        });
        for table in unsure {
            self.forget(table);
        }
    }
}

/// Returns a stored expression without the places of its parts in the statement that made it.
fn without_places(stored: &str) -> String {
    const PLACE: &str = ":location ";
    let mut parts = stored.split(PLACE);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += part.trim_start_matches(|c: char| c == '-' || c.is_ascii_digit());
    }
    text
}

/// Returns whether an index has the predicate with which fetchq makes it. None when its table is
/// locked.
///
/// To have the server write a predicate out takes a quarter of a millisecond. So this is done for one
/// index, and the others have the same stored predicate.
fn is_ours(stored: &str, is_due: bool, table: Oid, index: Oid) -> Option<bool> {
    let predicate = without_places(stored);
    let is_known =
        PREDICATES.with(|known| known.borrow()[usize::from(is_due)].contains(&predicate));
    if is_known {
        return Some(true);
    }
    // The server locks the table whose predicates it writes out.
    let lock = ReadLock::try_take(table)?;
    let search_path = PlainSearchPath::begin();
    let is_ours = spi::connect(|spi| {
        let args = [Arg::oid(index), Arg::from(is_due)];
        run_latest(spi, &HAS_PREDICATE, &args).get(0, 1) == Some(true)
    });
    drop((search_path, lock));
    if is_ours {
        PREDICATES.with(|known| {
            let known = &mut *known.borrow_mut();
            let known = &mut known[usize::from(is_due)];
            if known.len() == MAX_PREDICATES {
                known.clear();
            }
            known.push(predicate);
        });
    }
    Some(is_ours)
}

/// Returns the epoch in which the ready floors of each of these documents tables must be known, by table.
/// A table is missing when its floors prove nothing.
pub fn epochs(tables: impl Iterator<Item = u32> + Clone) -> HashMap<u32, u64> {
    let known = KnownTables::of(tables.clone().map(Oid::from));
    let epochs = tables.map(|table| (table, known.get(Oid::from(table)).epoch));
    epochs
        .filter_map(|(table, epoch)| Some((table, epoch?)))
        .collect()
}
