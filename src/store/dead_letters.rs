//! Dead letters: what is killed by failing goes to another queue, where it can be looked
//! at, and from there back.
//!
//! A move writes the document into the other queue first and removes it afterwards, in
//! the order of subjects: one that moves the other way round then finds the subject taken
//! and makes up another one, where it would wait if it were removed already.

use std::collections::HashMap;
use std::rc::Rc;

use pgrx::notice;

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::subjects;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::pg::{session, time};
use crate::store::bookkeeping::documents_ready;
use crate::store::counter_log;
use crate::store::doc_selection::{self, Choice, Chosen, Request};
use crate::store::history::{self, Outcome};
use crate::store::lease_check::{LeasedDoc, lease_error};
use crate::store::open_queue::Queue;
use crate::store::policy::Keep;
use crate::store::statement::{Statement, render};

/// How many subjects are made up for a document whose own one is taken.
const TURNS: usize = 10;

// $1, $2, $3: subjects, the names they get, their numbers; $4: the queue; $5: a payload
// that the worker has passed; $6: iterations that are not counted yet.
const BURY: &str = "insert into {other} (subject, version, priority, status, attempts, iterations,
        next_iteration, created_at, payload, ordering_key, max_attempts, last_error, origin, seq)
    overriding system value
    select i.name, d.version, d.priority, 1, 0, 0,
        pg_catalog.now(), pg_catalog.now(), coalesce($5, d.payload), d.ordering_key, d.max_attempts,
        d.last_error,
        pg_catalog.jsonb_build_object(
            'queue', $4, 'subject', d.subject, 'version', d.version, 'attempts', d.attempts,
            'iterations', d.iterations {+} $6, 'created_at', d.created_at,
            'killed_at', pg_catalog.now(), 'error', d.last_error)
        {||} case when d.origin is null then '{}'::pg_catalog.jsonb
            else pg_catalog.jsonb_build_object('origin', d.origin) end,
        i.seq
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3))
        as i (subject, name, seq)
    join only {docs} d on d.subject {=} i.subject
    order by i.name collate pg_catalog.\"C\"
    on conflict (subject) do nothing
    returning seq, version";

/// Opens the queue that takes the dead letters of another one.
fn open_target(queue: &Queue, target: &QueueName) -> Result<Rc<Queue>> {
    Queue::open(target).map_err(|e| match e {
        Error::UnknownQueue(_) => Error::DeadLetterGone {
            queue: queue.name.to_string(),
            target: target.to_string(),
        },
        other => other,
    })
}

/// Moves documents that are locked to the queue of the dead letters: all of them, or
/// there is an error. How many of each version.
fn move_to_dead_letters(
    spi: &Spi,
    queue: &Queue,
    target: &Queue,
    subjects: &[String],
    payload: Option<Jsonb>,
    iterations: i64,
) -> Result<HashMap<i32, i32>> {
    let mut subjects = subjects.to_vec();
    subjects.sort_unstable();
    let sql = render(BURY, &queue.name).replace("{other}", &target.name.qualified("docs"));
    let mut versions: HashMap<i32, i32> = HashMap::new();
    // (subject, the name it gets)
    let mut rest: Vec<(String, String)> = subjects.iter().map(|s| (s.clone(), s.clone())).collect();
    for _ in 0..TURNS {
        let numbers = doc_selection::numbers(target, rest.len())?;
        let args = [
            Arg::from(rest.iter().map(|(own, _)| own.as_str()).collect::<Vec<_>>()),
            Arg::from(
                rest.iter()
                    .map(|(_, name)| name.as_str())
                    .collect::<Vec<_>>(),
            ),
            Arg::from(numbers.clone()),
            Arg::from(queue.name.as_str()),
            Jsonb::arg(payload),
            Arg::from(iterations),
        ];
        let rows = spi.once(&sql, &args);
        for (version, n) in history::versions(&rows) {
            *versions.entry(version).or_default() += n;
        }
        let placed = placed(&rows);
        let mut at = 0;
        rest.retain(|_| {
            at += 1;
            !placed.contains_key(&numbers[at - 1])
        });
        if rest.is_empty() {
            break;
        }
        for (_, name) in &mut rest {
            *name = subjects::generate(time::clock(), session::number());
        }
    }
    if let Some((subject, _)) = rest.into_iter().next() {
        return Err(Error::HiddenDocument {
            queue: target.name.to_string(),
            subject,
        });
    }
    doc_selection::remove(spi, queue, subjects)?;
    for (version, n) in &versions {
        counter_log::record_event(target, *version, *n, Event::PushPending);
        documents_ready(target, *version, Status::Pending, *n);
    }
    counter_log::record_event(queue, 0, versions.values().sum(), Event::DeadLetter);
    Ok(versions)
}

/// The numbers of rows that were written, which are in the first column.
fn placed(rows: &Rows) -> HashMap<i64, usize> {
    (0..rows.len())
        .filter_map(|row| Some((rows.get(row, 1)?, row)))
        .collect()
}

/// What becomes of documents that this transaction has just killed because they failed
/// too often: they are dead letters, or go into the history, or go, or stay; and they
/// are counted. `by_worker`: one is at work, not maintenance.
pub fn settle_failed(
    queue: &Queue,
    subjects: &[String],
    stay: Event,
    removed: Event,
    by_worker: bool,
) -> Result<()> {
    if subjects.is_empty() {
        return Ok(());
    }
    let versions = match (&queue.policy.dead_letter, queue.policy.killed) {
        (Some(target), _) => {
            let target = open_target(queue, target)?;
            spi::connect(|spi| move_to_dead_letters(spi, queue, &target, subjects, None, 0))?
        }
        (None, Keep::InTable) => {
            let n = i32::try_from(subjects.len()).unwrap_or(i32::MAX);
            counter_log::record_event(queue, 0, n, stay);
            return Ok(());
        }
        (None, Keep::Nowhere | Keep::InHistory) => spi::connect(|spi| {
            let gone = history::archive(spi, queue, subjects, Outcome::Killed, by_worker);
            history::versions(&gone)
        }),
    };
    queue.announce(Status::Killed);
    for (version, n) in versions {
        counter_log::record_event(queue, version, n, removed);
    }
    Ok(())
}

/// Whether documents that fail too often leave the table.
pub fn removes_failed(queue: &Queue) -> bool {
    queue.policy.dead_letter.is_some() || queue.policy.killed != Keep::InTable
}

// Index: primary key. Nothing else can prove `status + 0 = 2`.
static LOCK_HELD: Statement = Statement::new(
    "select d.subject::pg_catalog.text from only {docs} d
     where d.subject {=} $1
         and {is_leased}
     for update",
);

/// Settles an active document as a dead letter, because its worker kills it.
pub fn kill(
    queue: &Queue,
    target: &QueueName,
    doc: LeasedDoc,
    payload: Option<Jsonb>,
) -> Result<()> {
    spi::connect(|spi| {
        let args = [Arg::from(doc.subject), Arg::from(doc.lease)];
        if queue.run(spi, &LOCK_HELD, &args).is_empty() {
            return Err(lease_error(spi, queue, doc));
        }
        let target = open_target(queue, target)?;
        let subjects = [doc.subject.to_owned()];
        for (version, n) in move_to_dead_letters(spi, queue, &target, &subjects, payload, 1)? {
            counter_log::record_event(queue, version, n, Event::Drop);
        }
        Ok(())
    })
}

// Index of both: primary key.
static LOCK_ONE: Statement = Statement::new(
    "select d.status, d.version from only {docs} d
     where d.subject {=} $1
     for update",
);

static REVIVE: Statement = Statement::new(
    "update only {docs} d set
         status = $2, next_iteration = $3, attempts = 0, last_error = null,
         lease = null, worker_session = null
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

/// Plans a completed or killed document anew.
pub fn revive(queue: &Queue, subject: &str, next_iteration: i64) -> Result<i32> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    spi::connect(|spi| {
        let rows = queue.run(spi, &LOCK_ONE, &[Arg::from(subject)]);
        let found = (!rows.is_empty()).then(|| rows.get(0, 1).and_then(Status::from_code));
        let event = found.flatten().and_then(|from| Event::revive(from, to));
        let Some(event) = event else {
            return Err(Error::NotSettled {
                queue: queue.name.to_string(),
                subject: subject.to_owned(),
                found,
            });
        };
        let version = rows.get(0, 2).unwrap_or(0);
        let args = [
            Arg::from(vec![subject]),
            Arg::from(to.code()),
            Arg::timestamp(next_iteration),
        ];
        let n = queue.run(spi, &REVIVE, &args).affected();
        counter_log::record_event(queue, 0, n, event);
        documents_ready(queue, version, to, n);
        Ok(n)
    })
}

// (an origin may be written by anybody: without a subject that fits it is none)
const BACK: &str = "and d.origin {->>} 'queue'::pg_catalog.text {=} $14
    and pg_catalog.length(d.origin {->>} 'subject'::pg_catalog.text) {<=} 50
    and not exists (select from only {other} o
        where o.subject {=} (d.origin {->>} 'subject'::pg_catalog.text))";

const TAKEN: &str = "and d.origin {->>} 'queue'::pg_catalog.text {=} $14
    and exists (select from only {other} o
        where o.subject {=} (d.origin {->>} 'subject'::pg_catalog.text))";

const ORIGINS: &str = "select distinct d.origin {->>} 'queue'::pg_catalog.text
    from only {docs} d
    where d.origin is not null and d.status {=} any ('{0,1}')
    order by 1";

// As it was when it died, without its attempts: $1, $2: subjects and numbers.
const PLACE_BACK: &str = "insert into {other} (subject, version, priority, next_iteration, status, attempts,
        iterations, created_at, payload, ordering_key, max_attempts, origin, seq)
    overriding system value
    select (d.origin {->>} 'subject'::pg_catalog.text) collate pg_catalog.\"C\", d.version, d.priority,
        pg_catalog.now(), 1, 0,
        case when (d.origin {->>} 'iterations'::pg_catalog.text) {~} '^[0-9]{1,18}$'
            then (d.origin {->>} 'iterations'::pg_catalog.text)::pg_catalog.int8 else 0 end,
        coalesce((d.origin {->>} 'created_at'::pg_catalog.text)::pg_catalog.timestamptz, d.created_at),
        d.payload, d.ordering_key, d.max_attempts,
        d.origin {->} 'origin'::pg_catalog.text, i.seq
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as i (subject, seq)
    join only {docs} d on d.subject {=} i.subject
    order by {order}
    on conflict (subject) do nothing
    returning seq, version";

/// Brings documents back that failed: killed ones of the queue, those of them that are
/// dead letters now, and where the queue has dead letters of others, these; up to the
/// limit of the request. Says how many.
pub fn redrive(queue: &Queue, request: &Request) -> Result<i32> {
    let letters = match &queue.policy.dead_letter {
        Some(target) => Some(open_target(queue, target)?),
        None => None,
    };
    let origins = origins(queue)?;
    // All at once: two that meet in the same queues would wait for each other otherwise.
    let opened = letters.iter().chain(origins.iter().flat_map(|(_, o)| o));
    let all: Vec<&Queue> = std::iter::once(queue)
        .chain(opened.map(|queue| &**queue))
        .collect();
    spi::connect(|spi| doc_selection::serialize_bulk_actions(spi, &all));

    let mut n = revive_killed(queue, request)?;
    if let Some(letters) = &letters
        && n < request.limit
    {
        n += back(letters, queue, request, request.limit - n)?;
    }
    for (name, origin) in &origins {
        if n >= request.limit {
            break;
        }
        match origin {
            Some(origin) => n += back(queue, origin, request, request.limit - n)?,
            None => notice!(
                "left in queue \"{}\": what came from queue \"{name}\", which does not exist any more",
                queue.name
            ),
        }
    }
    Ok(n)
}

/// The other queues that dead letters of a queue came from; None: it is gone.
fn origins(queue: &Queue) -> Result<Vec<(String, Option<Rc<Queue>>)>> {
    let names: Vec<String> = spi::connect(|spi| {
        let rows = queue.once(spi, ORIGINS, &[]);
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    });
    let mut origins = Vec::with_capacity(names.len());
    for origin in names {
        let opened = match QueueName::parse(&origin) {
            Ok(name) if name == queue.name => continue,
            Ok(name) => match Queue::open(&name) {
                Ok(queue) => Some(queue),
                Err(Error::UnknownQueue(_)) => None,
                Err(other) => return Err(other),
            },
            Err(_) => None,
        };
        origins.push((origin, opened));
    }
    Ok(origins)
}

fn revive_killed(queue: &Queue, request: &Request) -> Result<i32> {
    let choice = Choice {
        statuses: request.filter.codes(&[Status::Killed], &[]),
        also: "",
        own: &[],
        other: None,
    };
    spi::connect(|spi| {
        let chosen = request.lock(spi, queue, &choice, request.limit)?;
        if chosen.is_empty() {
            return Ok(0);
        }
        let args = [
            doc_selection::subjects(&chosen),
            Arg::from(Status::Pending.code()),
            Arg::timestamp(time::now()),
        ];
        let groups = doc_selection::groups(&chosen, &queue.run(spi, &REVIVE, &args));
        doc_selection::count(queue, &groups, |from| Event::revive(from, Status::Pending));
        for ((_, version), n) in &groups {
            documents_ready(queue, *version, Status::Pending, *n);
        }
        Ok(doc_selection::total(&groups))
    })
}

/// Brings dead letters back to the queue that they came from.
fn back(letters: &Queue, origin: &Queue, request: &Request, limit: i32) -> Result<i32> {
    let own = [Arg::from(origin.name.as_str())];
    let choice = |also| Choice {
        statuses: request
            .filter
            .codes(&[Status::Planned, Status::Pending], &[]),
        also,
        own: &own,
        other: Some(&origin.name),
    };
    spi::connect(|spi| {
        doc_selection::serialize_bulk_actions(spi, &[letters, origin]);
        let chosen = request.lock(spi, letters, &choice(BACK), limit)?;
        let n = place_back(spi, letters, origin, &chosen)?;
        if n < limit {
            let stay = request.count(spi, letters, &choice(TAKEN), None)?;
            if stay > 0 {
                notice!(
                    "left in queue \"{}\": {stay}, whose subjects exist again in queue \"{}\"",
                    letters.name,
                    origin.name
                );
            }
        }
        Ok(n)
    })
}

fn place_back(spi: &Spi, letters: &Queue, origin: &Queue, chosen: &[Chosen]) -> Result<i32> {
    if chosen.is_empty() {
        return Ok(0);
    }
    let numbers = doc_selection::numbers(origin, chosen.len())?;
    let subjects: Vec<&str> = chosen.iter().map(|c| c.subject.as_str()).collect();
    let sql = render(&doc_selection::in_order(PLACE_BACK, origin), &letters.name)
        .replace("{other}", &origin.name.qualified("docs"));
    let rows = spi.once(&sql, &[Arg::from(subjects), Arg::from(numbers.clone())]);
    let placed = placed(&rows);
    let back: Vec<&Chosen> = chosen
        .iter()
        .zip(&numbers)
        .filter(|(_, number)| placed.contains_key(number))
        .map(|(chosen, _)| chosen)
        .collect();
    doc_selection::remove(
        spi,
        letters,
        back.iter().map(|c| c.subject.clone()).collect(),
    )?;
    let mut groups = doc_selection::Groups::new();
    for chosen in back {
        *groups
            .entry((chosen.status.code(), chosen.version))
            .or_default() += 1;
    }
    doc_selection::count(letters, &groups, |from| Some(Event::remove(from)));
    for (version, n) in history::versions(&rows) {
        counter_log::record_event(origin, version, n, Event::PushPending);
        documents_ready(origin, version, Status::Pending, n);
    }
    Ok(doc_selection::total(&groups))
}
