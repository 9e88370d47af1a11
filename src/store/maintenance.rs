//! Maintenance of documents: what has become due, leases that ran out. Hot, because
//! it runs ten times a second for each queue. Rows that another session holds are
//! skipped: maintenance never waits for a worker.

use super::counters;
use super::plans::{Queue, Statement};
use crate::domain::counters::Event;
use crate::pg::spi::{self, Arg};

// Index of the three: due, a range of one status up to now.
static MARK_DEAD: Statement = Statement::new(
    "update {docs} d set status = -1
     where d.ctid operator(pg_catalog.=) any (array(
         select c.ctid from {docs} c
         where c.status operator(pg_catalog.=) 2
             and c.lock_upgrade is null
             and c.next_iteration operator(pg_catalog.<) pg_catalog.now()
             and c.attempts operator(pg_catalog.>=) (
                 select q.max_attempts from fetchq.queues q where q.id operator(pg_catalog.=) $1)
         order by c.status, c.next_iteration
         limit $2
         for update skip locked))",
);
static RESCHEDULE_ORPHANS: Statement = Statement::new(
    "update {docs} d set status = 1
     where d.ctid operator(pg_catalog.=) any (array(
         select c.ctid from {docs} c
         where c.status operator(pg_catalog.=) 2
             and c.lock_upgrade is null
             and c.next_iteration operator(pg_catalog.<) pg_catalog.now()
             and c.attempts operator(pg_catalog.<) (
                 select q.max_attempts from fetchq.queues q where q.id operator(pg_catalog.=) $1)
         order by c.status, c.next_iteration
         limit $2
         for update skip locked))",
);
static MAKE_PENDING: Statement = Statement::new(
    "update {docs} d set status = 1
     where d.ctid operator(pg_catalog.=) any (array(
         select c.ctid from {docs} c
         where c.status operator(pg_catalog.=) 0
             and c.lock_upgrade is null
             and c.next_iteration operator(pg_catalog.<=) pg_catalog.now()
         order by c.status, c.next_iteration
         limit $1
         for update skip locked))",
);

/// Kills documents whose lease ran out at their last attempt.
pub fn mark_dead(queue: &Queue, limit: i32) -> i32 {
    let args = [Arg::from(queue.id), Arg::from(i64::from(limit))];
    run(queue, &MARK_DEAD, &args, Event::Dead)
}

/// Returns documents whose lease ran out.
pub fn reschedule_orphans(queue: &Queue, limit: i32) -> i32 {
    let args = [Arg::from(queue.id), Arg::from(i64::from(limit))];
    run(queue, &RESCHEDULE_ORPHANS, &args, Event::Orphan)
}

/// Makes planned documents pending when their time has come.
pub fn make_pending(queue: &Queue, limit: i32) -> i32 {
    run(
        queue,
        &MAKE_PENDING,
        &[Arg::from(i64::from(limit))],
        Event::MakePending,
    )
}

fn run(queue: &Queue, statement: &'static Statement, args: &[Arg], event: Event) -> i32 {
    spi::connect(|spi| {
        let n = queue.run(spi, statement, args).affected();
        counters::note(spi, queue.id, 0, n, event);
        n
    })
}
