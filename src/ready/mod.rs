//! The ready floors. For each priority of each version of a queue, shared memory remembers
//! where the index entries of documents that can still be picked begin. `floors.rs` defines
//! the terms; `bucket.rs` and `group.rs` hold the rules by which the state changes. The numbers of
//! steps are those of an advance in docs/internals/engine.md.
//!
//! # Why no document is hidden
//!
//! - A claim that has not committed ends the walk. So after a rollback its document is above the
//!   floor. The same is true of a prepared transaction.
//! - An entry that exists when the walk passes ends the walk, unless its row is dead for every
//!   snapshot to come: its deleter committed, or its inserter aborted.
//! - An entry that appears where the walk has already passed is noted afterwards, because notes
//!   come after entries. Before step 3 its key is below the bound, so the floor does not advance
//!   above it. After step 3 the key is below the floor, so the floor is lowered. The note ran
//!   before the transaction commits, so no session can see the document before the floor is
//!   right.
//! - An updated row with the same key is a new entry, and is noted like one. A heap-only update
//!   has no entry of its own; the walk looks at every version of the chain, and the version that
//!   it comes from was alive until then.
//! - An advance whose backend was terminated has shown no sign of life for 10 seconds; it is
//!   taken over under a new number, so the old one can no longer end. One that ends in an error
//!   gives up at once.
//! - A group that is new, or whose slot was taken from another group, accepts notes first. Then
//!   it reads which priorities the index has, by a walk that sees every entry. A document that
//!   this walk misses had no entry yet, so its note comes later and adds its level. All levels
//!   start before everything. Numbers are never given out twice for a group, in whatever slot of
//!   its bucket it lives, so what began in an earlier life ends in no later one.
//! - A group that is evicted is nowhere: a note finds nothing to lower, and a pick reads without
//!   floors or creates the group again. A note looks the group up under the lock of the bucket
//!   and changes it there, so it meets the group before the eviction, or after it, and never
//!   another group in its slot. A note that came before the new life of the group, or in between,
//!   is not missed: its entry existed before, so the walk that the new life begins with sees it.
//!   The look at whether a version has any entry decides about the slot only. It comes before the
//!   group exists, so nothing else may follow from it, and the walk is done all the same.
//! - A level that is known to be empty can give its place to another priority. The next note adds
//!   it again, and an advance of the old level cannot end.
//! - Too many levels: nothing is known of the group, and reads go without floors. It is looked at
//!   again after 10 seconds.
//! - Crash, restart, promotion: shared memory is empty, and everything starts before everything.
//! - An old snapshot (REPEATABLE READ) may still see a document that another session has settled
//!   since. It could only have failed to lock it; with the floor it does not find it.
//!
//! # Loads without notes
//!
//! `ALTER TABLE … DISABLE TRIGGER`, `pg_restore --disable-triggers`, and a rewrite of the table
//! by `ALTER COLUMN … TYPE … USING` can add rows, or change their keys, without a note. So a
//! group belongs to an *epoch*: the file of the table, and the transaction that last changed the
//! trigger's row in `pg_trigger`. A session that has locked the table knows both, because locking
//! processes the invalidations of DDL that committed before; DDL waits for the writers of the
//! table, and they wait for it. With another epoch the group is new.
//!
//! There are no floors for a table
//!
//! - with a trigger that is not ENABLE ALWAYS, or not as it was created;
//! - with a missing or different index or column; another access method or operator class is
//!   different too;
//! - with a child table;
//! - with a file that this transaction itself created, because a rollback of its TRUNCATE would
//!   bring the old rows back;
//! - with a trigger whose row this transaction itself has written: it can disable the trigger
//!   once more, load rows, and enable it, all in the same epoch.
//!
//! Autovacuum changes none of these. So an epoch costs a look-up and not a walk.
//!
//! The background worker hears of such rows too. After an `ALTER TABLE` of a docs table, the
//! session adds a due change when it commits, so that the queue is examined at once and not by
//! the next full sweep.
//!
//! A SERIALIZABLE transaction uses no floors. An answer from a floor reads nothing, so it would
//! leave no predicate lock, and PostgreSQL could not see that a later push contradicts it.

pub mod bucket;
pub mod due;
pub mod floors;
pub mod full_scan;
pub mod group;
pub mod key;
