//! Bulk administration: retry, kill, remove, move or prioritise the documents that a
//! filter chooses, the oldest first, up to a limit. Whoever chooses walks over the whole
//! table: the indexes are those of the workers, and one more would cost every push.
//!
//! Each action is two statements. The first locks the rows, so that what they are can
//! not change any more, and skips those that somebody else has locked; the second
//! changes them by their subjects. So the counters are told of what each row really was.

use Status::{Active, Completed, Killed, Pending, Planned};
use pgrx::notice;

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::store::bookkeeping::documents_ready;
use crate::store::doc_selection::{
    Choice, Chosen, Groups, Request, count, groups, in_order, numbers, remove,
    serialize_bulk_actions, subjects, total,
};
use crate::store::history::{self, Outcome};
use crate::store::open_queue::Queue;
use crate::store::statement::{Statement, render};

// Index of all that follow: primary key, once for each subject. The rows are locked.
static RETRY: Statement = Statement::new(
    "update only {docs} d set
         status = {pending}, next_iteration = pg_catalog.now(),
         attempts = case when d.status {=} any ('{-1,3}'::pg_catalog.int4[]) then 0 else d.attempts end,
         last_error = case when d.status {=} any ('{-1,3}'::pg_catalog.int4[]) then null else d.last_error end,
         lease = null, worker_session = null
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

// The lease stays, which tells its holder what happened.
static KILL: Statement = Statement::new(
    "update only {docs} d set
         status = {killed}, attempts = 0, worker_session = null, last_error = 'cancelled'
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

static SET_PRIORITY: Statement = Statement::new(
    "update only {docs} d set priority = $2
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

/// Makes documents due now: those that wait for their time, those that were killed, and
/// completed ones where the filter names them.
pub fn retry(queue: &Queue, request: &Request) -> Result<i32> {
    let usual = [Planned, Pending, Killed];
    let choice = Choice {
        statuses: request.filter.codes(&usual, &[Completed]),
        // What waits for its ordering key does not wait for its time.
        also: "and (d.status {<>} 1
            or d.lock_upgrade is null and d.next_iteration {>} pg_catalog.now())",
        own: &[],
        other: None,
    };
    change(queue, request, &choice, &RETRY, &[], |from| match from {
        Planned => Some(Event::MakePending),
        from => Event::revive(from, Pending),
    })
    .map(|groups| {
        for ((_, version), n) in &groups {
            documents_ready(queue, *version, Pending, *n);
        }
        total(&groups)
    })
}

/// Kills documents that wait, and active ones where the filter names them: their
/// holders can not settle them any more.
pub fn kill(queue: &Queue, request: &Request) -> Result<i32> {
    let choice = Choice {
        statuses: request.filter.codes(&[Planned, Pending], &[Active]),
        also: "",
        own: &[],
        other: None,
    };
    if request.dry_run {
        return spi::connect(|spi| request.count(spi, queue, &choice, Some(request.limit)));
    }
    spi::connect(|spi| {
        let chosen = request.lock(spi, queue, &choice, request.limit)?;
        if chosen.is_empty() {
            return Ok(0);
        }
        let groups = groups(&chosen, &queue.run(spi, &KILL, &[subjects(&chosen)]));
        count(queue, &groups, Event::cancel);
        // Active ones stay for their workers to learn of it.
        let waited = chosen.into_iter().filter(|c| c.status != Active);
        let waited: Vec<String> = waited.map(|c| c.subject).collect();
        history::cancelled(spi, queue, &waited);
        Ok(total(&groups))
    })
}

/// Removes documents, active ones only where the filter names them.
pub fn drop(queue: &Queue, request: &Request) -> Result<i32> {
    let usual = [Planned, Pending, Completed, Killed];
    let choice = Choice {
        statuses: request.filter.codes(&usual, &[Active]),
        also: "",
        own: &[],
        other: None,
    };
    if request.dry_run {
        return spi::connect(|spi| request.count(spi, queue, &choice, Some(request.limit)));
    }
    spi::connect(|spi| {
        let chosen = request.lock(spi, queue, &choice, request.limit)?;
        if chosen.is_empty() {
            return Ok(0);
        }
        let list: Vec<String> = chosen.iter().map(|c| c.subject.clone()).collect();
        let gone = history::archive(spi, queue, &list, Outcome::Dropped, true);
        let groups = groups(&chosen, &gone);
        count(queue, &groups, |from| Some(Event::remove(from)));
        Ok(total(&groups))
    })
}

/// Gives documents that wait another priority.
pub fn set_priority(queue: &Queue, priority: i32, request: &Request) -> Result<i32> {
    let priority = [Arg::from(priority)];
    let choice = Choice {
        statuses: request.filter.codes(&[Planned, Pending], &[]),
        also: "and d.priority {<>} $14",
        own: &priority,
        other: None,
    };
    let groups = change(queue, request, &choice, &SET_PRIORITY, &priority, |_| None)?;
    Ok(total(&groups))
}

/// Locks and changes what was chosen: how many of each state and version. `own`: what
/// the statement needs besides the subjects.
fn change(
    queue: &Queue,
    request: &Request,
    choice: &Choice,
    statement: &'static Statement,
    own: &[Arg],
    event: impl Fn(Status) -> Option<Event>,
) -> Result<Groups> {
    spi::connect(|spi| {
        if request.dry_run {
            let n = request.count(spi, queue, choice, Some(request.limit))?;
            return Ok(Groups::from([((0, 0), n)]));
        }
        let chosen = request.lock(spi, queue, choice, request.limit)?;
        if chosen.is_empty() {
            return Ok(Groups::new());
        }
        let mut args = vec![subjects(&chosen)];
        args.extend(own);
        let groups = groups(&chosen, &queue.run(spi, statement, &args));
        count(queue, &groups, event);
        Ok(groups)
    })
}

const NEW_IN_OTHER: &str = "and not exists (
    select from only {other} o where o.subject {=} d.subject)";

const KNOWN_IN_OTHER: &str = "and exists (
    select from only {other} o where o.subject {=} d.subject)";

// Numbered in the order that the documents had.
const PLACE: &str =
    "insert into {other} (subject, version, priority, next_iteration, status, attempts,
        iterations, created_at, last_iteration, payload, ordering_key, max_attempts,
        last_error, origin, seq)
    overriding system value
    select d.subject, d.version, d.priority, d.next_iteration, d.status, 0,
        d.iterations, d.created_at, d.last_iteration, d.payload, d.ordering_key, d.max_attempts,
        d.last_error, d.origin, i.seq
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as i (subject, seq)
    join only {docs} d on d.subject {=} i.subject
    order by {order}
    on conflict (subject) do nothing
    returning subject::pg_catalog.text";

/// Moves documents that nobody holds to another queue, as what they are. Those whose
/// subject exists there stay.
pub fn move_to(queue: &Queue, target: &Queue, request: &Request) -> Result<i32> {
    if queue.table == target.table {
        return Err(Error::BadValue {
            argument: "target",
            value: target.name.to_string(),
            rule: "another queue",
        });
    }
    let choice = |also| Choice {
        statuses: request
            .filter
            .codes(&[Planned, Pending, Completed, Killed], &[]),
        also,
        own: &[],
        other: Some(&target.name),
    };
    spi::connect(|spi| {
        let new = choice(NEW_IN_OTHER);
        if !request.dry_run {
            serialize_bulk_actions(spi, &[queue, target]);
        }
        let moved = if request.dry_run {
            request.count(spi, queue, &new, Some(request.limit))?
        } else {
            place(
                spi,
                queue,
                target,
                request.lock(spi, queue, &new, request.limit)?,
            )?
        };
        if moved < request.limit {
            let stay = request.count(spi, queue, &choice(KNOWN_IN_OTHER), None)?;
            if stay > 0 {
                notice!(
                    "left in queue \"{}\": {stay}, whose subjects exist in queue \"{}\"",
                    queue.name,
                    target.name
                );
            }
        }
        Ok(moved)
    })
}

fn place(spi: &Spi, queue: &Queue, target: &Queue, chosen: Vec<Chosen>) -> Result<i32> {
    if chosen.is_empty() {
        return Ok(0);
    }
    let numbers = numbers(target, chosen.len())?;
    let subjects: Vec<&str> = chosen.iter().map(|c| c.subject.as_str()).collect();
    let sql = render(&in_order(PLACE, target), &queue.name)
        .replace("{other}", &target.name.qualified("docs"));
    let rows = spi.once(&sql, &[Arg::from(subjects), Arg::from(numbers)]);
    let placed = groups(&chosen, &rows);
    let n = total(&placed);
    let subjects: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    remove(spi, queue, subjects)?;
    count(queue, &placed, |from| Some(Event::remove(from)));
    count(target, &placed, |status| Some(Event::place(status)));
    for ((status, version), n) in placed {
        if let Some(status) = Status::from_code(status) {
            documents_ready(target, version, status, n);
        }
    }
    Ok(n)
}
