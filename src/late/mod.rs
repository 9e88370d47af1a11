//! Late leases: a lease that is in shared memory until it has lasted for a while.
//!
//! A pick *claims* a document in shared memory, and does not change its row: for others it is leased. When the
//! lease has lasted for `fetchq.lease_write_delay`, the background worker *writes* it into the row. A document
//! that is settled before is written once less, and its entries in two indexes are never made.
//!
//! Why nobody gets a document twice:
//!
//! 1. Whoever wants to change the row of a document that is not leased in its row *holds* its entry here
//!    first, or *reserves* it if there is none, or has closed the whole table for new leases and held all
//!    that there are. So nobody else claims it until that transaction has ended. Several transactions can have
//!    it reserved: the row decides between them. Or it locks the row, and asks for a lease afterwards: who claims
//!    the document later finds the lock. If both come at the same time, neither gets it, and both look again.
//! 2. Whoever claims a document looks at the row afterwards. The entry of a document whose row was changed
//!    is removed when others can see that change. So one that finds no entry finds the change.
//! 3. A lease is settled only by whoever holds its entry, and only under its number.
//!
//! Entries end with the transactions that have made them: see [`changes`]. A crash loses all of them, as if
//! the documents had not been leased. A number that is lost settles nothing, because neither row nor memory
//! knows it. Where that must not happen, a lease is written at once: see `store::documents::late_leases`.
//!
//! The ready floors pass over documents that are leased here. So whoever gives one back notes it afterwards.

pub mod changes;
pub mod memory;
pub mod table;

use crate::pg::transaction;
use crate::settings;

/// Prepares late leases, if the server has any. Called from `_PG_init` while libraries are preloaded.
pub fn install() {
    memory::install();
    // The shared memory does not exist yet.
    if settings::late_lease_slots() > 0 {
        transaction::on_subtransaction_rollback(changes::subtransaction_rolled_back);
    }
}
