//! Pausing queues, limits, ordering keys, and picking from several queues.

use std::rc::Rc;

use pgrx::prelude::*;

use super::{queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::spi::Arg;
use crate::pg::trigger::{self, Fired};
use crate::pg::{relation, time};
use crate::store::docs::{self, Pick};
use crate::store::leases::Lease;
use crate::store::plans::Queue;
use crate::store::{flow, ordering, turns};

/// `queue_pause(queue)`
#[pg_extern(sql = false)]
fn queue_pause(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        flow::set_active(&queue_name(call, 0)?, false).map(Reply::bool)
    })
}

/// `queue_resume(queue)`
#[pg_extern(sql = false)]
fn queue_resume(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        flow::set_active(&queue_name(call, 0)?, true).map(Reply::bool)
    })
}

/// What is more than this would take longer to set than to do without.
const MOST: i32 = 100_000;

/// A limit, or none: NULL.
fn opt_limit(call: &Call, at: usize, argument: &'static str) -> Result<Option<i32>> {
    if call.is_null(at) {
        return Ok(None);
    }
    let value = call.int(at, argument)?;
    if !(1..=MOST).contains(&value) {
        return Err(Error::BadValue {
            argument,
            value: value.to_string(),
            rule: "1 to 100000, or NULL for no limit",
        });
    }
    Ok(Some(value))
}

/// `queue_set_max_active(queue, max_active)`
#[pg_extern(sql = false)]
fn queue_set_max_active(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let max = opt_limit(call, 1, "max_active")?;
        flow::set_max_active(&name, max).map(Reply::int)
    })
}

/// `queue_set_rate(queue, picks, per)`
#[pg_extern(sql = false)]
fn queue_set_rate(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let rate = match opt_limit(call, 1, "picks")? {
            None => None,
            Some(picks) => {
                let per = call.interval(2, "per")?.as_duration("per")?;
                if per.parts() == (0, 0, 0) {
                    return Err(Error::BadValue {
                        argument: "per",
                        value: "0".into(),
                        rule: "an interval that is longer than nothing",
                    });
                }
                Some((picks, per))
            }
        };
        flow::set_rate(&name, rate).map(Reply::int)
    })
}

/// `queue_set_ordered(queue, is_ordered)`
#[pg_extern(sql = false)]
fn queue_set_ordered(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let is_ordered = call.bool(1, "is_ordered")?;
        ordering::set_ordered(&name, is_ordered).map(Reply::int)
    })
}

/// What fired a trigger of a queue's documents. No queue: the documents are restored
/// before it is, or were left behind.
fn fired(call: &Call) -> Result<(Fired, Option<Rc<Queue>>)> {
    let bad = || Error::BadTrigger(call.function_name());
    let fired = trigger::fired(call).ok_or_else(bad)?;
    let name = relation::queue_of(fired.table.to_u32()).ok_or_else(bad)?;
    match Queue::open(&QueueName::parse(&name)?) {
        Ok(queue) if queue.table == fired.table => Ok((fired, Some(queue))),
        Ok(_) => Err(bad()),
        Err(Error::UnknownQueue(_)) => Ok((fired, None)),
        Err(e) => Err(e),
    }
}

/// The triggers `fetchq_cap_…` of a queue with `max_active`.
#[pg_extern(sql = false)]
fn trigger_docs_cap(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let (fired, Some(queue)) = fired(call)? else {
            return Ok(Reply::trigger());
        };
        let is_active = |doc: &&trigger::Document| doc.status == 2;
        let old = fired.old.as_ref().filter(is_active);
        let new = fired.new.as_ref().filter(is_active);
        if fired.old.is_none() && fired.new.is_none() {
            flow::emptied(&queue)?;
        }
        if let Some(old) = old {
            flow::released(&queue, &old.subject)?;
        }
        if let Some(new) = new {
            flow::activated(&queue, &new.subject, new.seq);
        }
        Ok(Reply::trigger())
    })
}

/// The triggers `fetchq_order_…` of an ordered queue.
#[pg_extern(sql = false)]
fn trigger_docs_order(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let (fired, queue) = fired(call)?;
        let Some(queue) = queue else {
            return Ok(match fired.is_before {
                true => trigger::verdict(call, true),
                false => Reply::trigger(),
            });
        };
        match (&fired.old, &fired.new) {
            (Some(_), Some(new)) if fired.is_before => {
                let may = ordering::may_change(&queue, new);
                return Ok(trigger::verdict(call, may));
            }
            (None, None) => ordering::emptied(&queue)?,
            (old, new) => ordering::changed(&queue, old.as_ref(), new.as_ref())?,
        }
        Ok(Reply::trigger())
    })
}

/// So many queues can be picked from at once.
const QUEUES: usize = 100;

/// `doc_pick_any(queues, max_docs, duration, version, weights)`
#[pg_extern(sql = false)]
fn doc_pick_any(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let names = queues(call)?;
        let limit = call.limit(1, "max_docs")?;
        let duration = call.interval(2, "duration")?.as_duration("duration")?;
        let version = call.int(3, "version")?;
        let weights = weights(call, 4, names.len())?;
        // As in doc_pick.
        relation::accept_changes();
        let queues = names.iter().map(Queue::open).collect::<Result<Vec<_>>>()?;
        let (lease, now) = (Lease::new(), time::now());
        let mut out = call.rows();
        turns::take(&names, &weights, limit, |at, n| {
            let out = &mut out;
            out.begin_with(Arg::from(names[at].as_str()));
            let pick = Pick {
                version,
                limit: n,
                duration,
                now,
                take: docs::Take::Lease(&lease),
                out,
            };
            docs::pick(&queues[at], pick)
        });
        Ok(out.done())
    })
}

fn queues(call: &Call) -> Result<Vec<QueueName>> {
    let given = call.texts(0, "queues")?;
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
    if names.is_empty() || names.len() > QUEUES {
        return Err(Error::BadValue {
            argument: "queues",
            value: format!("a list of {}", names.len()),
            rule: "1 to 100 queues",
        });
    }
    Ok(names)
}

fn weights(call: &Call, at: usize, queues: usize) -> Result<Vec<i32>> {
    let Some(given) = call.opt_ints(at) else {
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
