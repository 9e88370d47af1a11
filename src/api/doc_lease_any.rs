//! Leasing documents of several queues in one call.

use pgrx::prelude::*;

use crate::api::doc_pick::{given_worker, opt_duration};
use crate::api::entry::{limit_or, respond_write};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::relation;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::documents::doc_lease_any;
use crate::store::documents::doc_pick::{self, Pick, PickMode};
use crate::store::documents::leases::Lease;
use crate::store::documents::pick_columns::Columns;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

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
        let limit = limit_or(call, 1, "max_docs", 1)?;
        let duration = opt_duration(call, 2)?;
        let version = call.opt_int(3).unwrap_or(0);
        let lease = Lease::of(given_worker(call, 5, 6)?);
        let names = queues(call)?;
        let weights = weights(call, 4, names.len())?;
        // A transaction that has picked before may not have noticed yet that a queue was paused.
        relation::accept_invalidations();
        let queues = names
            .iter()
            .map(|name| Queue::open_for(name, Right::Work))
            .collect::<Result<Vec<_>>>()?;
        let now = time::now();
        let mut out = call.rows();
        doc_lease_any::distribute_picks(&names, &weights, limit, |at, n| {
            let (queue, out) = (&queues[at], &mut out);
            out.begin_with(Arg::from(names[at].as_str()));
            let pick = Pick {
                version,
                limit: n,
                duration: duration.unwrap_or_else(|| queue.lease_duration()),
                now,
                mode: PickMode::Lease(&lease),
                columns: Columns::Leased,
                out,
                is_over: false,
            };
            doc_pick::pick(queue, pick)
        });
        Ok(out.done())
    })
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
