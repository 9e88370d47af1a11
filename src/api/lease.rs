//! Leases: extending, cancelling, handing back; and who holds what.

use pgrx::prelude::*;

use super::{queue_name, respond, respond_write, subject};
use crate::error::{self, Error};
use crate::pg::call::Reply;
use crate::pg::relation;
use crate::pg::spi::{self, Arg};
use crate::pg::time;
use crate::store::plans::{self, Queue};
use crate::store::settle::Held;
use crate::store::{cancel, extend, holders, registry};

/// `doc_extend(queue, subject, duration, lease)`
#[pg_extern(sql = false)]
fn doc_extend(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let duration = call.interval(2, "duration")?.as_duration("duration")?;
        let doc = Held {
            subject: subject(call, 1)?,
            lease: call.opt_bigint(3),
        };
        // (the transaction may have begun long ago)
        let until = duration.after(time::clock());
        let extended = extend::extend(&*Queue::open(&queue)?, doc, until)?;
        let until = match extended.until {
            Some(until) => Arg::timestamp(until),
            None => Arg::no_timestamp(),
        };
        Ok(call.record(&[until, Arg::from(extended.stop)]))
    })
}

/// `doc_cancel(queue, subject)`
#[pg_extern(sql = false)]
fn doc_cancel(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = Queue::open(&queue_name(call, 0)?)?;
        let subject = subject(call, 1)?;
        let (was_cancelled, status) = match cancel::cancel(&queue, subject) {
            Ok(from) => (true, Some(from)),
            Err(Some(other)) => (false, Some(other)),
            Err(None) => {
                error::warn(
                    PgSqlErrorCode::ERRCODE_NO_DATA,
                    format!(
                        "queue \"{}\" has no document \"{subject}\" to cancel",
                        queue.name
                    ),
                    "It was dropped, or never pushed.",
                );
                (false, None)
            }
        };
        let status = status.map(crate::domain::status::Status::word);
        Ok(call.record(&[Arg::from(was_cancelled), Arg::from(status)]))
    })
}

/// `worker_release(name)`
#[pg_extern(sql = false)]
fn worker_release(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let worker = call.text(0, "name")?;
        let queues = holders::queues_of(worker);
        if queues.is_empty() {
            error::warn(
                PgSqlErrorCode::ERRCODE_NO_DATA,
                format!("no worker \"{worker}\" has picked anything"),
                "See fetchq.workers.",
            );
        }
        let mut released = 0;
        for name in queues {
            match Queue::open(&name) {
                Ok(queue) => released += holders::release(&queue, worker),
                // Dropped since.
                Err(Error::UnknownQueue(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(Reply::int(released))
    })
}

/// `worker_stop(name)`
#[pg_extern(sql = false)]
fn worker_stop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        holders::stop(call.text(0, "name")?);
        Ok(Reply::bool(true))
    })
}

/// `lease_list()`
#[pg_extern(sql = false)]
fn lease_list(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        for name in registry::all() {
            let Some(table) = relation::lookup_data_table(&name.relation("docs")) else {
                continue;
            };
            if !relation::may_read(table) {
                continue;
            }
            let sql = plans::render(holders::LEASED, &name);
            spi::connect(|spi| out.extend(&spi.once(&sql, &[Arg::from(name.as_str())])));
        }
        Ok(out.done())
    })
}

/// `queue_set_retry(queue, base, factor, max_delay, jitter, max_attempts)`
#[pg_extern(sql = false)]
fn queue_set_retry(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let duration = |at, argument| match call.opt_interval(at) {
            None => Ok(None),
            Some(interval) => interval.as_duration(argument).map(Some),
        };
        let (base, max) = (duration(1, "base")?, duration(3, "max_delay")?);
        let number = |at, argument, low: f64, high: f64, rule| match call.opt_float(at) {
            None => Err(call.missing(argument)),
            Some(value) if value >= low && value <= high => Ok(value),
            Some(value) => Err(Error::BadValue {
                argument,
                value: value.to_string(),
                rule,
            }),
        };
        let factor = number(2, "factor", 1.0, 1000.0, "a number from 1 to 1000")?;
        let jitter = number(4, "jitter", 0.0, 1.0, "a number from 0 to 1")?;
        let max_attempts = call.opt_int(5);
        if let Some(value) = max_attempts.filter(|value| *value < 1) {
            return Err(Error::BadValue {
                argument: "max_attempts",
                value: value.to_string(),
                rule: "1 or more",
            });
        }
        let policy = [
            base.map_or_else(time::Interval::none, time::Interval::arg),
            Arg::from(factor),
            max.map_or_else(time::Interval::none, time::Interval::arg),
            Arg::from(jitter),
            Arg::from(max_attempts),
        ];
        registry::set_retry(&name, &policy).map(Reply::int)
    })
}
