//! Adds up the counter events of a table that are not packed, as one snapshot shows them.
//!
//! The log has thousands of events when workers are busy, and millions where nothing packs it or an
//! old snapshot is held. So it is read without the executor, and a session remembers what it has
//! read. The remembered part is used while it is sure that the pages show the same rows:
//! `domain::settled_pages` has the rules.

use crate::pg::lasting::{Lasting, lasting};
use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use crate::domain::settled_pages::{Key, RUN, SettledPages, Sums, add};
use crate::domain::xid::Xid;
use crate::pg::heap_pages::{self, Pages};
use crate::pg::snapshot::Snapshot;

/// The columns of the counter log, in their order.
const COLUMNS: [&str; 5] = ["queue_id", "version", "n", "event", "bucket"];

thread_local! {
    // By the table of the segment.
    static REMEMBERED: Lasting<HashMap<Oid, SettledPages>> = lasting(HashMap::new());
}

fn add_row(sums: &mut Sums, row: [Option<i32>; COLUMNS.len()]) {
    let [Some(queue), version, n, Some(event), bucket] = row else {
        return;
    };
    // NULL stands for the usual version and number.
    let (version, bucket) = (version.unwrap_or(0), bucket.map(|bucket| bucket as i16));
    let key = Key::new(queue, version, event as i16, bucket);
    *sums.entry(key).or_default() += i64::from(n.unwrap_or(1));
}

/// Adds the events of a table of the counter log to `sums`, by queue, version, event and bucket. The caller
/// has locked the table, so that it is not truncated meanwhile.
pub fn add_events(table: Oid, snapshot: &Snapshot, sums: &mut Sums) {
    let Some(mut pages) = Pages::open(table, snapshot) else {
        heap_pages::rows(table, COLUMNS, snapshot, |row| add_row(sums, row));
        return;
    };
    // An ERROR in between loses what is remembered, and no more.
    let mut remembered = REMEMBERED.with(|pages| pages.take());
    let settled = remembered.entry(table).or_default();
    let known = settled.known(pages.file(), pages.len(), snapshot.horizon(), |block| {
        pages.lsn(block)
    });
    known.add_to(sums);
    let (mut next, mut can_remember) = (known.pages, known.is_all);
    while next < pages.len() {
        let end = (next + RUN).min(pages.len());
        let mut read = Sums::default();
        let mut lsns = Vec::with_capacity(RUN as usize);
        let mut last = (end == next + RUN).then_some(Xid::NONE);
        for block in next..end {
            let page = pages.read(block, |row| add_row(&mut read, row));
            lsns.push(page.lsn);
            last = last
                .zip(page.settled.filter(|_| page.lsn != 0))
                .map(|(last, writer)| last.latest(writer));
        }
        add(sums, &read);
        can_remember &= last.is_some();
        if can_remember && let Some(last) = last {
            can_remember = settled.remember(lsns, last, read);
        }
        next = end;
    }
    REMEMBERED.with(|pages| pages.replace(remembered));
}
