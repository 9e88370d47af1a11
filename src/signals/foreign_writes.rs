//! Whether other statements than those of fetchq have written documents: plain SQL, COPY, logical
//! replication. The trigger of every queue says so, and `cmp` counts the documents of a queue only then.
//!
//! A write counts when its transaction has committed, after others can see it. So whoever reads the number
//! of writes and then takes a snapshot sees in it all that were counted.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crate::pg::lasting::{Lasting, lasting};
use crate::pg::random;
use crate::pg::transaction::End;

/// Tables that have a number of their own, by chance: a write to one that has the same number as another
/// one only has that counted in vain.
const NUMBERS: usize = 4096;

/// For this many tables a transaction distinguishes to which ones it has written. Beyond that, it counts as
/// one that has written to all.
const TABLES: usize = 64;

/// The number of writes, in shared memory.
pub struct ForeignWrites {
    /// A number by chance, which tells this memory from that before a crash. 0: there is none yet.
    memory: AtomicI64,
    /// Writes of which it is not known to which table.
    all: AtomicU32,
    tables: [AtomicU32; NUMBERS],
}

impl ForeignWrites {
    /// Returns the state in which nobody has written.
    pub const fn new() -> Self {
        Self {
            memory: AtomicI64::new(0),
            all: AtomicU32::new(0),
            tables: [const { AtomicU32::new(0) }; NUMBERS],
        }
    }

    fn of(&self, database: u32, table: u32) -> &AtomicU32 {
        let mixed = database
            .rotate_left(16)
            .wrapping_add(table)
            .wrapping_mul(0x9E37_79B1);
        &self.tables[mixed as usize >> 20 & (NUMBERS - 1)]
    }

    /// Counts a write of which it is not known to which table, such as that of a prepared transaction.
    pub fn add_unknown(&self) {
        self.all.fetch_add(1, Ordering::SeqCst);
    }

    /// What changes with each write of somebody else to the documents of a table, and with a crash. Raises an
    /// ERROR when the server has no random numbers.
    pub fn state(&self, database: u32, table: u32) -> String {
        let new = random::up_to(1 << 32);
        let known = self
            .memory
            .compare_exchange(0, new, Ordering::SeqCst, Ordering::SeqCst);
        let memory = match known {
            Ok(_) => new,
            Err(known) => known,
        };
        let all = self.all.load(Ordering::SeqCst);
        let table = self.of(database, table).load(Ordering::SeqCst);
        format!("{memory:x}.{all:x}.{table:x}")
    }
}

/// The tables that this transaction has written to.
struct Written {
    tables: Vec<u32>,
    /// There were more.
    more: bool,
}

thread_local! {
    static WRITTEN: Lasting<Written> = const { lasting(Written { tables: Vec::new(), more: false }) };
    /// The table whose documents a statement of fetchq writes. 0: none runs.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// As long as this lives, a statement of fetchq writes the documents of a table.
pub struct Own {
    before: u32,
}

impl Own {
    /// Begins such a statement.
    pub fn begin(table: u32) -> Self {
        let before = OWN.replace(table);
        Self { before }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        OWN.set(self.before);
    }
}

/// Notes that a row of a table was written.
pub fn row_written(table: u32) {
    if OWN.get() == table {
        return;
    }
    WRITTEN.with(|written| {
        let mut written = written.borrow_mut();
        match written.tables.len() {
            _ if written.tables.last() == Some(&table) || written.tables.contains(&table) => {}
            TABLES.. => written.more = true,
            _ => written.tables.push(table),
        }
    });
}

/// Counts what this transaction has written when it has committed. `writes`: None without shared memory.
pub fn transaction_ended(end: End, writes: Option<&ForeignWrites>, database: u32) {
    if end == End::Committing {
        return;
    }
    WRITTEN.with(|written| {
        let mut written = written.borrow_mut();
        if let (Some(writes), End::Committed) = (writes, end) {
            for table in &written.tables {
                writes.of(database, *table).fetch_add(1, Ordering::SeqCst);
            }
            if written.more {
                writes.add_unknown();
            }
        }
        written.tables.clear();
        written.more = false;
    });
}
