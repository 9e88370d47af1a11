//! Creating, changing, emptying and dropping queues.

use pgrx::prelude::*;

use super::{lenient, queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::domain::retention;
use crate::error::{Error, Result};
use crate::maintenance::retention as retain;
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Arg};
use crate::pg::time::Interval;
use crate::pg::{relation, session, trigger};
use crate::store::plans::{self, Queue};
use crate::store::{jobs, logs, metrics, ordering, queue_tables, registry};
use crate::worker::waiters;

/// `queue_create(queue)`
#[pg_extern(sql = false)]
fn queue_create(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let (was_created, id) = registry::create(&name)?;
        // A client that compares names with those of the registry would find none.
        if was_created && call.opt_text(0) != Some(name.as_str()) {
            notice!("queue names are folded to lower case: this one is \"{name}\"");
        }
        Ok(call.record(&[Arg::from(was_created), Arg::from(id)]))
    })
}

/// `queue_drop(queue)`
#[pg_extern(sql = false)]
fn queue_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let dropped = lenient(registry::drop(&name).map(Some), None)?;
        let id = dropped.map(|dropped| {
            if !dropped.schedules.is_empty() {
                let names = dropped.schedules.join(", ");
                notice!("the schedules of queue \"{name}\" are dropped too: {names}");
            }
            if !dropped.letters_of.is_empty() {
                let names = dropped.letters_of.join(", ");
                notice!(
                    "queue \"{name}\" took the dead letters of others, which keep them now: {names}"
                );
            }
            dropped.id
        });
        Ok(call.record(&[Arg::from(id.is_some()), Arg::from(id)]))
    })
}

/// `queue_get_id(queue)`
#[pg_extern(sql = false)]
fn queue_get_id(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let id = lenient(registry::id(&queue_name(call, 0)?).map(Some), None)?;
        Ok(Reply::bigint(id.map(i64::from)))
    })
}

/// `queue_create_indexes(queue)`
#[pg_extern(sql = false)]
fn queue_create_indexes(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, create_indexes)
}

/// `queue_create_indexes(queue, version, attempts)`: the indexes serve every version
/// and any number of attempts, so the two are only checked.
#[pg_extern(sql = false)]
fn queue_create_indexes_for(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        call.int(1, "version")?;
        call.int(2, "attempts")?;
        create_indexes(call)
    })
}

fn create_indexes(call: &Call) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let created = registry::lock_now(&name).map(|_| {
        spi::connect(|spi| {
            queue_tables::create_indexes(spi, &name);
            queue_tables::create_ready_trigger(spi, &name);
            ordering::create_index(spi, &name);
        });
    });
    lenient(created.map(|()| true), false).map(Reply::bool)
}

/// `queue_drop_indexes(queue)`
#[pg_extern(sql = false)]
fn queue_drop_indexes(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let dropped = registry::lock_now(&name).map(|_| queue_tables::drop_indexes(&name));
        lenient(dropped.map(|()| true), false).map(Reply::bool)
    })
}

/// `queue_drop_version(queue, version)`: no version has an index of its own, so there
/// is nothing to drop but the question whether it may be.
#[pg_extern(sql = false)]
fn queue_drop_version(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let dropped = registry::current_version(&name).map(|current| current != version);
        lenient(dropped, false).map(Reply::bool)
    })
}

/// `queue_set_max_attempts(queue, max_attempts)`
#[pg_extern(sql = false)]
fn queue_set_max_attempts(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let value = call.int(1, "max_attempts")?;
        if value < 1 {
            return Err(Error::BadValue {
                argument: "max_attempts",
                value: value.to_string(),
                rule: "1 or more",
            });
        }
        reindexed(call, registry::set_max_attempts(&name, value))
    })
}

/// `queue_set_current_version(queue, version)`
#[pg_extern(sql = false)]
fn queue_set_current_version(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let value = call.int(1, "version")?;
        reindexed(call, registry::set_current_version(&name, value))
    })
}

/// fetchq 4 rebuilt indexes after both; ours fit any value, so they are always right.
fn reindexed(call: &Call, affected: Result<i32>) -> Result<Reply> {
    let affected = lenient(affected, 0)?;
    Ok(call.record(&[Arg::from(affected), Arg::from(affected > 0)]))
}

/// `queue_set_logs_retention(queue, retention)`
#[pg_extern(sql = false)]
fn queue_set_logs_retention(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let text = call.text(1, "retention")?;
        Interval::parse(text).as_duration("retention")?;
        lenient(registry::set_logs_retention(&name, text), 0).map(Reply::int)
    })
}

/// `queue_set_metrics_retention(queue, retention)`
#[pg_extern(sql = false)]
fn queue_set_metrics_retention(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let text = call.text(1, "retention")?;
        check_policy(&retention::parse(text)?)?;
        lenient(
            registry::set_metrics_retention(&name, Jsonb::parse(text)),
            0,
        )
        .map(Reply::int)
    })
}

/// A policy that would fail when it is applied is refused when it is set.
fn check_policy(policy: &[retention::Rule]) -> Result<()> {
    for rule in policy {
        crate::store::series::check_unit(&rule.retain)?;
        Interval::parse(&rule.from).as_duration("from")?;
        Interval::parse(&rule.to).as_duration("to")?;
    }
    Ok(())
}

/// `queue_drop_logs(queue)`: by the queue's own retention.
#[pg_extern(sql = false)]
fn queue_drop_logs(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        lenient(retain::logs_by_setting(&name, None), 0).map(Reply::int)
    })
}

/// `queue_drop_logs(queue, older_than text)`
#[pg_extern(sql = false)]
fn queue_drop_logs_older(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let age = Interval::parse(call.text(1, "older_than")?).as_duration("older_than")?;
        let dropped =
            Queue::open(&name).map(|queue| logs::drop_older_than(&queue, age.arg(), None));
        lenient(dropped, 0).map(Reply::int)
    })
}

/// `queue_drop_logs(queue, before timestamptz)`
#[pg_extern(sql = false)]
fn queue_drop_logs_before(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let before = Arg::timestamp(call.timestamp(1, "before")?);
        let dropped = Queue::open(&name).map(|queue| logs::drop_before(&queue, before));
        lenient(dropped, 0).map(Reply::int)
    })
}

/// `queue_drop_metrics(queue)`: by the queue's own policy.
#[pg_extern(sql = false)]
fn queue_drop_metrics(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        lenient(retain::metrics(&name), 0).map(Reply::int)
    })
}

/// `queue_drop_metrics(queue, policy)`
#[pg_extern(sql = false)]
fn queue_drop_metrics_by(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let policy = retention::parse(&call.json(1, "policy")?.to_text())?;
        lenient(retain::metrics_by(&name, &policy), 0).map(Reply::int)
    })
}

/// `queue_enable_notify(queue)`
#[pg_extern(sql = false)]
fn queue_enable_notify(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| set_notify(call, true))
}

/// `queue_disable_notify(queue)`
#[pg_extern(sql = false)]
fn queue_disable_notify(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| set_notify(call, false))
}

fn set_notify(call: &Call, on: bool) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    // The registry row first: two clients that start at once must not both find no
    // trigger and create it.
    registry::lock_now(&name)?;
    queue_tables::set_notify(&name, on);
    Ok(Reply::bool(true))
}

/// `queue_status()`
#[pg_extern(sql = false)]
fn queue_status_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        spi::connect(|spi| out.extend(&spi.once(registry::STATUS_ALL, &[])));
        Ok(out.done())
    })
}

/// `queue_status(queue)`
#[pg_extern(sql = false)]
fn queue_status(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let mut out = call.rows();
        let args = [Arg::from(name.as_str())];
        spi::connect(|spi| out.extend(&spi.once(registry::STATUS_ONE, &args)));
        Ok(out.done())
    })
}

/// `queue_top(queue, version, max_docs, skip)`
#[pg_extern(sql = false)]
fn queue_top(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let limit = i64::from(call.limit(2, "max_docs")?);
        let skip = i64::from(call.limit(3, "skip")?);
        registry::id(&name)?;
        let mut out = call.rows();
        let args = [Arg::from(version), Arg::from(limit), Arg::from(skip)];
        let sql = plans::render(queue_tables::TOP, &name);
        spi::connect(|spi| out.extend(&spi.once(&sql, &args)));
        Ok(out.done())
    })
}

/// `queue_truncate(queue, empty)`
#[pg_extern(sql = false)]
fn queue_truncate(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        truncate(&name, call.bool(1, "empty")?)?;
        Ok(Reply::bool(true))
    })
}

/// `queue_truncate_all(empty)`
#[pg_extern(sql = false)]
fn queue_truncate_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let empty = call.bool(0, "empty")?;
        for name in registry::all() {
            truncate(&name, empty)?;
        }
        Ok(Reply::bool(true))
    })
}

fn truncate(name: &QueueName, empty: bool) -> Result<()> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot("fetchq.queue_truncate"));
    }
    // Jobs before the registry, as maintenance locks them.
    if empty {
        jobs::restart(name.as_str());
    }
    registry::lock_now(name)?;
    if empty {
        queue_tables::truncate_history(name);
    }
    queue_tables::truncate_docs(name);
    metrics::reset(name)?;
    Ok(())
}

/// The trigger `fetchq_queue_changed` of the registry.
#[pg_extern(sql = false)]
fn trigger_queue_changed(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let Some(name) = trigger::name_of_written(call) else {
            return Err(Error::BadTrigger(call.function_name()));
        };
        // (a row with an impossible name is no queue)
        let table = QueueName::parse(&name)
            .ok()
            .and_then(|name| relation::lookup_data_table(&name.relation("docs")));
        if let Some(table) = table {
            relation::invalidate(table);
            // Perhaps it has been resumed, or a limit is gone.
            waiters::has_room(table.to_u32(), u32::MAX);
        }
        Ok(Reply::trigger())
    })
}
