//! Leasing documents of one queue, or of several in one call; and popping them.

use std::rc::Rc;

use pgrx::prelude::*;

use crate::api::entry::{lenient, limit_or, queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::late::memory;
use crate::pg::call::{Call, Reply};
use crate::pg::index_walk::Identity;
use crate::pg::relation;
use crate::pg::row_sink::RowSink;
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::settings::Binding;
use crate::store::documents::doc_lease as store;
use crate::store::documents::doc_lease::{Pick, PickMode};
use crate::store::documents::leases::{GivenWorker, Lease, NAME_MAX};
use crate::store::documents::pick_columns::Columns;
use crate::store::documents::queue_turns;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// `doc_lease(queue, max_docs, duration, version, worker, binding) → documents`: leases due
/// documents of a version, at most `max_docs`, by priority and time. `duration` is an interval;
/// NULL: the setting `lease` of the queue. `worker` and `binding` take the place of
/// `fetchq.worker` and `fetchq.session_leases`; NULL: as these are set.
///
/// Fails with `UnknownQueue`, `NegativeLimit`, `BadDuration`, and with `BadValue` for a `worker`
/// or a `binding` that is not valid.
#[pg_extern(sql = false)]
fn doc_lease(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let wanted = Wanted::read(call, 1)?;
        let mut out = call.rows();
        // A transaction that has picked before may not have noticed yet that the queue was paused.
        relation::accept_invalidations();
        Queue::with(&name, Right::Work, |queue| {
            wanted.lease(queue, time::now(), &mut out);
            Ok(())
        })?;
        Ok(out.done())
    })
}

/// `late_lease(docs, subject, seq, created_at)`: the number of the lease of a document that only shared memory
/// has. For statements that pick, and those that write it.
#[pg_extern(sql = false)]
fn late_lease(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let table = call
            .opt_bigint(0)
            .and_then(|oid| u32::try_from(oid).ok())
            .unwrap_or(0);
        let document = Identity {
            subject: call.opt_text(1).unwrap_or_default().as_bytes(),
            seq: call.opt_bigint(2).unwrap_or(0),
            created_at: call.opt_timestamp(3).unwrap_or(0),
        };
        Ok(Reply::bigint(memory::number(table.into(), &document)))
    })
}

/// The arguments of `doc_lease` after the queue.
pub struct Wanted {
    limit: i32,
    duration: Option<Interval>,
    version: i32,
    lease: Lease,
}

impl Wanted {
    /// Reads the arguments `max_docs`, `duration`, `version`, `worker` and `binding`, of which
    /// `first` is the position of the first. NULL means the default of each. Fails with `NegativeLimit`, `BadDuration` and
    /// `BadValue`.
    pub fn read(call: &Call, first: usize) -> Result<Self> {
        Ok(Self {
            limit: limit_or(call, first, "max_docs", 1)?,
            duration: opt_duration(call, first + 1)?,
            version: call.opt_int(first + 2).unwrap_or(0),
            lease: Lease::of(given_worker(call, first + 3, first + 4)?),
        })
    }

    /// Leases documents from `now` on, which become rows of the result.
    pub fn lease(&self, queue: &Queue, now: i64, out: &mut RowSink) {
        if self.limit > 0 {
            let pick = Pick {
                version: self.version,
                limit: self.limit,
                duration: self.duration.unwrap_or_else(|| queue.lease_duration()),
                now,
                mode: PickMode::Lease(&self.lease),
                columns: Columns::Leased,
                out,
                is_over: false,
            };
            store::pick(queue, pick);
        }
    }
}

/// The lease duration that the caller wants; None: that of the queue. Fails with `BadDuration`.
pub fn opt_duration(call: &Call, at: usize) -> Result<Option<Interval>> {
    call.opt_interval(at)
        .map(|duration| duration.as_duration("duration"))
        .transpose()
}

/// What the caller says about its worker, in the arguments `worker` and `binding` at these
/// positions. Fails with `BadValue`.
pub fn given_worker(call: &Call, worker: usize, binding: usize) -> Result<GivenWorker> {
    let name = call.opt_text(worker).map(str::to_owned);
    if let Some(name) = &name
        && !(1..=NAME_MAX).contains(&name.chars().count())
    {
        return Err(Error::BadValue {
            argument: "worker",
            value: format!("a name of {} characters", name.chars().count()),
            rule: "a name of 1 to 200 characters, or NULL for the setting fetchq.worker",
        });
    }
    let binding = match call.opt_text(binding) {
        None => None,
        Some(word) => match Binding::parse(word) {
            Some(binding) => Some(binding),
            None => {
                return Err(Error::BadValue {
                    argument: "binding",
                    value: format!("{word:?}"),
                    rule: "'off', 'return', 'keep' or 'call', or NULL for the setting fetchq.session_leases",
                });
            }
        },
    };
    Ok(GivenWorker { name, binding })
}

/// How many queues one call can pick from.
const MAX_QUEUES: usize = 100;

/// `doc_lease_any(queues, max_docs, duration, version, weights, worker, binding) → (queue,
/// document)`: leases due documents of up to `MAX_QUEUES` queues, at most `max_docs` in all, in
/// proportion to the weights of the queues (1 to 1000, or NULL: all the same). The columns and the
/// other arguments are those of `doc_lease`. NULL is the default of every argument but the queues.
///
/// Fails as `doc_lease` does, and with `NullElement` or `BadValue` for a list that is not valid.
#[pg_extern(sql = false)]
fn doc_lease_any(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let wanted = WantedOfAny::read(call, 1)?;
        let mut out = call.rows();
        wanted.lease(&wanted.open()?, time::now(), &mut out);
        Ok(out.done())
    })
}

/// The arguments of `doc_lease_any`.
pub struct WantedOfAny {
    pub names: Vec<QueueName>,
    limit: i32,
    duration: Option<Interval>,
    version: i32,
    weights: Vec<i32>,
    lease: Lease,
}

impl WantedOfAny {
    /// Reads the first argument, `queues`, and the arguments `max_docs`, `duration`, `version`, `weights`,
    /// `worker` and `binding`, of which `first` is the position of the first. Fails as `doc_lease_any`
    /// does.
    pub fn read(call: &Call, first: usize) -> Result<Self> {
        let limit = limit_or(call, first, "max_docs", 1)?;
        let duration = opt_duration(call, first + 1)?;
        let version = call.opt_int(first + 2).unwrap_or(0);
        let lease = Lease::of(given_worker(call, first + 4, first + 5)?);
        let names = queues(call)?;
        let weights = weights(call, first + 3, names.len())?;
        Ok(Self {
            names,
            limit,
            duration,
            version,
            weights,
            lease,
        })
    }

    /// Opens the queues. Fails as `Queue::open_for` does.
    pub fn open(&self) -> Result<Vec<Rc<Queue>>> {
        // A transaction that has picked before may not have noticed yet that a queue was paused.
        relation::accept_invalidations();
        let open = |name| Queue::open_for(name, Right::Work);
        self.names.iter().map(open).collect()
    }

    /// Leases documents of the queues from `now` on, which become rows of the result.
    pub fn lease(&self, queues: &[Rc<Queue>], now: i64, out: &mut RowSink) {
        queue_turns::distribute_picks(&self.names, &self.weights, self.limit, |at, n| {
            let queue = &queues[at];
            out.begin_with(Arg::from(self.names[at].as_str()));
            let pick = Pick {
                version: self.version,
                limit: n,
                duration: self.duration.unwrap_or_else(|| queue.lease_duration()),
                now,
                mode: PickMode::Lease(&self.lease),
                columns: Columns::Leased,
                out: &mut *out,
                is_over: false,
            };
            store::pick(queue, pick)
        });
    }
}

/// The names of the queues, each of them once.
fn queues(call: &Call) -> Result<Vec<QueueName>> {
    let given = call.texts(0, "queues")?;
    if given.is_empty() || given.len() > MAX_QUEUES {
        return Err(Error::BadValue {
            argument: "queues",
            value: format!("a list of {}", given.len()),
            rule: "1 to 100 queues",
        });
    }
    let mut names: Vec<QueueName> = Vec::with_capacity(given.len());
    for name in &given {
        let Some(name) = name else {
            return Err(Error::NullElement {
                function: call.function_name(),
                argument: "queues",
            });
        };
        let name = QueueName::parse(name)?;
        if names.contains(&name) {
            return Err(Error::BadValue {
                argument: "queues",
                value: format!("\"{name}\" twice"),
                rule: "each queue once",
            });
        }
        names.push(name);
    }
    Ok(names)
}

/// The weights of the queues, in their order; 1 for each where none are given.
fn weights(call: &Call, at: usize, queues: usize) -> Result<Vec<i32>> {
    let Some(given) = call.opt_ints(at, "weights")? else {
        return Ok(vec![1; queues]);
    };
    let bad = |value: String, rule| Error::BadValue {
        argument: "weights",
        value,
        rule,
    };
    if given.len() != queues {
        let value = format!("a list of {}", given.len());
        return Err(bad(value, "as many weights as queues"));
    }
    let mut weights = Vec::with_capacity(queues);
    for weight in given {
        match weight {
            Some(weight) if (1..=1000).contains(&weight) => weights.push(weight),
            Some(weight) => return Err(bad(weight.to_string(), "weights of 1 to 1000")),
            None => {
                return Err(Error::NullElement {
                    function: call.function_name(),
                    argument: "weights",
                });
            }
        }
    }
    Ok(weights)
}

/// `doc_pop(queue, version, max_docs) → documents`: removes due documents and returns them. A
/// rollback brings them back.
///
/// Fails with `NegativeLimit`. A queue that does not exist raises a warning and returns no rows.
#[pg_extern(sql = false)]
fn doc_pop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let limit = call.limit(2, "max_docs")?;
        let mut out = call.rows();
        let popped = Queue::with(&queue, Right::Work, |queue| {
            if limit > 0 {
                let out = &mut out;
                let pick = Pick {
                    version,
                    limit,
                    duration: Interval::parse("0"),
                    now: time::now(),
                    mode: PickMode::Remove,
                    columns: Columns::Picked,
                    out,
                    is_over: false,
                };
                store::pick(queue, pick);
            }
            Ok(())
        });
        lenient(popped, ())?;
        Ok(out.done())
    })
}
