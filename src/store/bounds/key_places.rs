//! The places of a queue with `max_active_per_key`: how many documents of one ordering key may
//! run at a time. `ordering.rs` has the rules that this queue shares with an ordered one.
//!
//! A key has as many places as the setting says. The row of the key in `fetchq.ordering_keys`
//! lists the documents that have one: its head, and `also_unblocked`. They are pending or active,
//! and no pick sees the others, which are blocked. More documents than places are in the list only
//! where documents were active before the number was lowered, or were made active by hand.
//!
//! A document gets a free place when it becomes pending, and gives it up when it is no longer
//! pending or active. A document that is retried gives it up too: until its retry is due it is
//! planned, and then it is pending anew. So the number of active documents never exceeds that of
//! the places, and a blocked document proves that none is free.
//!
//! **Locks.** Every change of the list writes or locks the row of the key first, also that of a
//! document that is blocked in the end. So two transactions that change one key do so one after
//! the other, and each reads the blocked documents with a snapshot that sees what the one before
//! has done. A transaction that keeps one snapshot fails (40001): the row has changed since, or
//! is younger than the snapshot (`refuse_unseen`). The order of the locks is that of ordering.rs.

use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::spi::{Rows, Spi};
use crate::pg::transaction;
use crate::pg::trigger::TriggerDocument;
use crate::pg::value::Arg;
use crate::store::bounds::blocking::{
    FIND_KEY, Position, block, delete_key, next_blocked, position, unblock, unblock_next,
};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::plans::refuse_unseen;
use crate::store::queues::statement::Statement;

// Index of this statement and the three that follow: the primary key of the keys. Adds a key with
// this document, or locks the key that there is. $4: this transaction. The row of a known key is
// written again, so that a transaction with an older snapshot fails.
static ADD_KEY: Statement = Statement::new(
    "insert into fetchq.ordering_keys as k (queue_id, key, head, made_by) values ($1, $2, $3, $4)
     on conflict (queue_id, key) do update set made_by = k.made_by
     returning pg_catalog.array_prepend(k.head, k.also_unblocked), k.made_by {=} $4",
);

static RESERVE_KEY: Statement = Statement::new(
    "insert into fetchq.ordering_keys (queue_id, key, head, made_by) values ($1, $2, $3, $4)
     on conflict (queue_id, key) do nothing",
);

static LOCK_KEY: Statement = Statement::new(
    "select pg_catalog.array_prepend(k.head, k.also_unblocked) from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
     for update",
);

// $4: this transaction if it has given a place to a document that came, else NULL.
static SET_PLACES: Statement = Statement::new(
    "update fetchq.ordering_keys k set
         head = ($3)[1], also_unblocked = ($3)[2:], made_by = coalesce($4, k.made_by)
     where k.queue_id {=} $1 and k.key {=} $2",
);

// Index: the primary key of the documents, because of `status + 0`, once for each subject. It does
// not wait for a document that is being picked.
static LOCK_LAST_PENDING: Statement = Statement::new(
    "select d.subject::pg_catalog.text from only {docs} d
     where d.subject {=} any ($1)
         and d.lock_upgrade is null
         and d.status {+} 0 {=} {pending}
         and (d.next_iteration, d.seq) {>} ($2, $3)
     order by d.next_iteration desc, d.seq desc
     limit 1
     for update skip locked",
);

/// The documents that have the places of a key, whose row this transaction has locked.
struct Places<'a> {
    spi: &'a Spi,
    queue: &'a Queue,
    key: &'a str,
    /// How many places there are.
    n: usize,
    /// The documents that have one.
    subjects: Vec<String>,
}

/// The first column of a row: the documents that have the places of a key.
fn subjects_in(rows: &Rows) -> Vec<String> {
    rows.get(0, 1).unwrap_or_default()
}

impl Places<'_> {
    fn has(&self, doc: &TriggerDocument) -> bool {
        self.subjects.contains(&doc.subject)
    }

    fn are_free(&self) -> bool {
        self.subjects.len() < self.n
    }

    /// Writes the list. `made_by`: this transaction if it has given a place to a document that came.
    fn write(&self, made_by: Option<i64>) {
        if self.subjects.is_empty() {
            return delete_key(self.spi, self.queue, self.key);
        }
        let args = [
            Arg::from(self.queue.id),
            Arg::from(self.key),
            Arg::from(self.subjects.clone()),
            Arg::from(made_by),
        ];
        self.queue.run(self.spi, &SET_PLACES, &args);
    }

    /// Gives free places to the first blocked documents. `requeued`, which is pending and not
    /// blocked, gets one in its turn, or is blocked.
    fn fill(&mut self, mut requeued: Option<&TriggerDocument>) {
        while self.are_free() {
            let next = next_blocked(self.spi, self.queue, self.key);
            let next = next
                .filter(|next| requeued.is_none_or(|requeued| next.position < position(requeued)));
            match (next, requeued) {
                (Some(next), _) => {
                    if unblock_next(self.spi, self.queue, self.key, &next.subject) {
                        self.subjects.push(next.subject);
                    }
                }
                (None, Some(doc)) => {
                    self.subjects.push(doc.subject.clone());
                    requeued = None;
                }
                (None, None) => break,
            }
        }
        if let Some(doc) = requeued {
            block(self.spi, self.queue, &doc.subject);
        }
    }

    /// Blocks the last pending document that has a place, if it comes after a position. Returns
    /// whether there was one. A document that another transaction has locked is left alone: that
    /// one may be picking it, and wait for the row of the key when it settles it.
    fn block_last(&mut self, after: Position) -> bool {
        let args = [
            Arg::from(self.subjects.clone()),
            Arg::timestamp(after.0),
            Arg::from(after.1),
        ];
        let rows = self.queue.run(self.spi, &LOCK_LAST_PENDING, &args);
        let Some(last) = (!rows.is_empty())
            .then(|| rows.get::<String>(0, 1))
            .flatten()
        else {
            return false;
        };
        block(self.spi, self.queue, &last);
        self.subjects.retain(|subject| *subject != last);
        true
    }
}

/// Adds a document that is pending or active to its key: it gets a place, or is blocked.
///
/// A statement writes its rows in any order. Where this transaction was the last one to give away
/// a free place, a document that comes before one with a place gets that place instead.
pub fn add(spi: &Spi, queue: &Queue, key: &str, n: usize, doc: &TriggerDocument) {
    let this = transaction::number();
    let args = [
        Arg::from(queue.id),
        Arg::from(key),
        Arg::from(doc.subject.as_str()),
        Arg::from(this),
    ];
    let row = queue.run(spi, &ADD_KEY, &args);
    let mut places = Places {
        spi,
        queue,
        key,
        n,
        subjects: subjects_in(&row),
    };
    let is_filled_here = row.get(0, 2) == Some(true);
    if places.has(doc) {
        return unblock(spi, queue, doc);
    }
    // A document that runs already cannot be blocked, and a lease whose `lock_upgrade` is set
    // would never expire.
    let is_active = doc.status == Status::Active.code();
    let gets_place =
        is_active || places.are_free() || is_filled_here && places.block_last(position(doc));
    if gets_place {
        places.subjects.push(doc.subject.clone());
        places.write((!is_active).then_some(this));
        unblock(spi, queue, doc);
    } else {
        block(spi, queue, &doc.subject);
    }
}

/// Adds the key of a document that maintenance is about to make pending, where there is no row of the
/// key that it could have locked. Returns false when another transaction has just added the key.
///
/// A statement of maintenance changes many documents, and their places follow when all are changed.
/// Without the row, others could add the key and lock it meanwhile. Maintenance would wait for them,
/// while they wait for a key that it has locked.
pub fn reserve(spi: &Spi, queue: &Queue, key: &str, doc: &TriggerDocument) -> bool {
    let args = [
        Arg::from(queue.id),
        Arg::from(key),
        Arg::from(doc.subject.as_str()),
        Arg::from(transaction::number()),
    ];
    queue.run(spi, &RESERVE_KEY, &args).affected() > 0
}

/// Takes the place of a document that is no longer pending or active, or that is `requeued`: the
/// same document, pending again. The next documents of the key get what is free.
///
/// Fails with `Error::OlderSnapshot` when the snapshot of the transaction is too old to see the
/// row of the key.
pub fn remove(
    spi: &Spi,
    queue: &Queue,
    key: &str,
    n: usize,
    doc: &TriggerDocument,
    requeued: Option<&TriggerDocument>,
) -> Result<()> {
    let args = [Arg::from(queue.id), Arg::from(key)];
    let row = queue.run(spi, &LOCK_KEY, &args);
    if row.is_empty() {
        return refuse_unseen(spi, &queue.name, &FIND_KEY, &args);
    }
    let mut places = Places {
        spi,
        queue,
        key,
        n,
        subjects: subjects_in(&row),
    };
    if places.has(doc) {
        places.subjects.retain(|subject| *subject != doc.subject);
        places.fill(requeued);
        places.write(None);
    }
    Ok(())
}

// Documents of a key that have a place and are neither pending nor active, a free place beside a
// blocked document, or a pending document with a place that there is not. $2: how many places
// there are. The rows are locked, so that a second look, with a snapshot that sees what was
// committed before the lock, decides.
const LOCK_STALE_KEYS: &str = "select k.key from fetchq.ordering_keys k
    left join lateral (
        select pg_catalog.count(*) as n, pg_catalog.count(*) filter (where d.status {=} {pending}) as pending
        from {docs} d
        where d.subject {=} any (pg_catalog.array_prepend(k.head, k.also_unblocked))
            and d.ordering_key {=} k.key
            and d.status {=} any (array[{pending}, {active}])
            and (d.lock_upgrade is null or d.lock_upgrade {<>} 'infinity')) live on true
    where k.queue_id {=} $1
        and (live.n {<>} (pg_catalog.cardinality(k.also_unblocked) {+} 1)
            or live.n {>} $2 and live.pending {>} 0
            or live.n {<} $2 and exists (
                select from {docs} b
                where b.ordering_key {=} k.key and b.status {=} {pending}
                    and b.lock_upgrade {=} 'infinity'))
    order by k.key
    for update of k skip locked";

const LIVE_SUBJECTS: &str = "select array(
        select d.subject::pg_catalog.text from {docs} d
        where d.subject {=} any (pg_catalog.array_prepend(k.head, k.also_unblocked))
            and d.ordering_key {=} k.key
            and d.status {=} any (array[{pending}, {active}])
            and (d.lock_upgrade is null or d.lock_upgrade {<>} 'infinity')
        order by d.status desc, d.next_iteration, d.seq)
    from fetchq.ordering_keys k
    where k.queue_id {=} $1 and k.key {=} $2";

/// Repairs the places of the keys after triggers were switched off, or rows were lost. Keys that
/// other transactions have locked are left to the next repair.
pub fn repair(spi: &Spi, queue: &Queue, n: usize) {
    let id = Arg::from(queue.id);
    let count = Arg::from(i64::try_from(n).unwrap_or(i64::MAX));
    let rows = queue.once(spi, LOCK_STALE_KEYS, &[id, count]);
    let keys: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    for key in &keys {
        let row = queue.once(spi, LIVE_SUBJECTS, &[id, Arg::from(key.as_str())]);
        if row.is_empty() {
            continue;
        }
        let mut places = Places {
            spi,
            queue,
            key,
            n,
            subjects: subjects_in(&row),
        };
        while places.subjects.len() > n && places.block_last((i64::MIN, i64::MIN)) {}
        places.fill(None);
        places.write(None);
    }
}
