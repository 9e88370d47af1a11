//! The settings of a queue as one JSON object: changing some of them, reading all of them, and
//! creating a queue with settings. `domain/queue_settings.rs` has the keys and their values.

use pgrx::PgSqlErrorCode;

use crate::domain::names::QueueName;
use crate::domain::queue_settings::{self, Changes, Check};
use crate::domain::retention::Rule;
use crate::error::{self, Error, Result};
use crate::late::memory;
use crate::pg::json::Jsonb;
use crate::pg::spi;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::pg::{role, session, subtransaction};
use crate::settings;
use crate::store::bounds::cap;
use crate::store::bounds::keys_setup;
use crate::store::bounds::rate;
use crate::store::documents::late_leases;
use crate::store::queues::policy::{KeyOrder, micros};
use crate::store::queues::queue::{self, keep_writers_away, lock_against_drop};
use crate::store::queues::queue_places;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::triggers;
use crate::store::upkeep::retention;

/// Reads settings that a caller has passed.
///
/// Fails with `Invalid`, which names the key, the value, and what the value must be.
pub fn parse(settings: Jsonb) -> Result<Changes> {
    Ok(queue_settings::parse(
        &settings.to_short_text("settings")?,
        is_valid,
    )?)
}

/// The longest interval of a setting, in microseconds: 1000 years. A point in time that is that
/// long ago can still be computed.
const MAX_LENGTH_US: i128 = 1000 * 12 * 30 * 86_400_000_000;

/// The longest delay of a lease, in microseconds: that of `fetchq.lease_write_delay`.
const MAX_DELAY_US: i128 = 60_000_000;

/// Asks the server whether a text of the settings is valid.
fn is_valid(check: Check) -> bool {
    match check {
        Check::Duration(text) => length(&text).is_some_and(|n| (0..=MAX_LENGTH_US).contains(&n)),
        Check::Span(text) => length(&text).is_some_and(|n| (1..=MAX_LENGTH_US).contains(&n)),
        Check::Delay(text) => length(&text).is_some_and(|n| (0..=MAX_DELAY_US).contains(&n)),
        Check::Policy(rules) => rules.iter().all(is_valid_rule),
    }
}

/// The length of an interval in microseconds. None: the text is no interval, or an infinite one.
fn length(text: &str) -> Option<i128> {
    subtransaction::attempt(|| Interval::parse(text).length())
        .ok()
        .flatten()
}

fn is_valid_rule(rule: &Rule) -> bool {
    let is_age = |text: &String| is_valid(Check::Duration(text.clone()));
    let is_unit = subtransaction::attempt(|| retention::check_unit(&rule.retain).is_ok());
    is_unit == Ok(true) && is_age(&rule.from) && is_age(&rule.to)
}

// $2: changes of columns, as JSON. $3: whether notifications are to be on; NULL: as they are.
// $4: the docs table. Nothing is written.
const DESCRIBE: &str = "select pg_catalog.jsonb_build_object(
        'max_attempts', r.max_attempts,
        'retry', pg_catalog.jsonb_build_object(
            'base', r.retry_base, 'factor', r.retry_factor,
            'max_delay', r.retry_max_delay, 'jitter', r.retry_jitter),
        'history', pg_catalog.jsonb_build_object(
            'completed', r.keep_completed, 'killed', r.keep_killed, 'dropped', r.keep_dropped),
        'dead_letter', r.dead_letter,
        'max_active', r.max_active,
        'rate', pg_catalog.jsonb_build_object('picks', r.rate_limit, 'per', r.rate_interval),
        'max_active_per_key', r.max_active_per_key,
        'ordered', r.is_ordered,
        'paused', not r.is_active,
        'notify', coalesce($3, exists (
            select from pg_catalog.pg_trigger t
            where t.tgrelid {=} pg_catalog.to_regclass($4) and t.tgname {=} 'fetchq_notify_insert')),
        'logs_retention', r.logs_retention,
        'metrics_retention', r.metrics_retention,
        'current_version', r.current_version,
        'lease', r.lease_duration,
        'expire_after', r.expire_after,
        'max_run', r.max_run,
        'lease_write_delay', r.lease_write_delay)
    from fetchq.queues q, pg_catalog.jsonb_populate_record(q, $2) r
    where q.name {=} $1";

/// The settings that a queue would have after changes, as JSON text. Fails with
/// `Error::UnknownQueue`.
fn describe(name: &QueueName, changes: &Changes) -> Result<String> {
    spi::connect(|spi| {
        let args = [
            Arg::from(name.as_str()),
            Jsonb::arg(Some(Jsonb::parse(&changes.columns()))),
            Arg::from(changes.notify),
            Arg::from(name.qualified("docs").as_str()),
        ];
        let rows = spi.once(DESCRIBE, &args);
        match rows.is_empty() {
            true => Err(queue_places::unknown(name)),
            false => Ok(rows.json_text(0, 1)),
        }
    })
}

/// All settings of a queue. Fails with `Error::UnknownQueue`.
pub fn settings(name: &QueueName) -> Result<Jsonb> {
    describe(name, &Changes::default()).map(|json| Jsonb::parse(&json))
}

const GET_LIMITS: &str =
    "select max_active, rate_limit, rate_interval::pg_catalog.text, is_ordered, max_active_per_key,
        coalesce(greatest(keep_completed, keep_killed, keep_dropped) {>} interval '0', false),
        lease_write_delay
    from fetchq.queues where name {=} $1";

const CHANGE: &str = "update fetchq.queues q set (
        max_attempts, retry_base, retry_factor, retry_max_delay, retry_jitter,
        keep_completed, keep_killed, keep_dropped, dead_letter,
        max_active, max_active_per_key, rate_limit, rate_interval, is_ordered, is_active,
        logs_retention, metrics_retention, current_version, lease_duration, expire_after, max_run,
        lease_write_delay
    ) = (
        select r.max_attempts, r.retry_base, r.retry_factor, r.retry_max_delay, r.retry_jitter,
            r.keep_completed, r.keep_killed, r.keep_dropped, r.dead_letter,
            r.max_active, r.max_active_per_key, r.rate_limit, r.rate_interval, r.is_ordered,
            r.is_active,
            r.logs_retention, r.metrics_retention, r.current_version, r.lease_duration,
            r.expire_after, r.max_run, r.lease_write_delay
        from pg_catalog.jsonb_populate_record(q, $2) r
    ) where q.name {=} $1";

const SET_DEAD_LETTER_BY: &str = "update fetchq.queues set dead_letter_by = $2 where name {=} $1";

/// Those settings of a queue that are more than columns.
struct Limits {
    max_active: Option<i32>,
    rate: rate::Rate,
    is_ordered: bool,
    max_active_per_key: Option<i32>,
    has_history: bool,
    /// In microseconds.
    lease_write_delay: Option<i64>,
}

impl Limits {
    fn key_order(&self) -> KeyOrder {
        KeyOrder::new(self.is_ordered, self.max_active_per_key)
    }

    /// Fails with `Error::BadValue` when the two settings of the order exclude each other.
    fn check_order(&self) -> Result<()> {
        match self.max_active_per_key {
            Some(n) if n > 1 && self.is_ordered => Err(Error::BadValue {
                argument: "max_active_per_key",
                value: n.to_string(),
                rule: "1 or null in a queue with \"ordered\": true",
            }),
            _ => Ok(()),
        }
    }
}

/// Reads them, as they are in this transaction.
fn limits(name: &QueueName) -> Result<Limits> {
    spi::connect(|spi| {
        let rows = spi.once(GET_LIMITS, &[Arg::from(name.as_str())]);
        if rows.is_empty() {
            return Err(queue_places::unknown(name));
        }
        Ok(Limits {
            max_active: rows.get(0, 1),
            rate: rate::Rate {
                picks: rows.get(0, 2),
                per: rows.get(0, 3),
            },
            is_ordered: rows.get(0, 4).unwrap_or(false),
            max_active_per_key: rows.get(0, 5),
            has_history: rows.get(0, 6).unwrap_or(false),
            lease_write_delay: rows.interval(0, 7).map(micros),
        })
    })
}

/// The columns of the limits and the order. What they need is counted from the documents, so that
/// an older snapshot would miss some.
const COUNTED: [&str; 5] = [
    "max_active",
    "max_active_per_key",
    "rate_limit",
    "rate_interval",
    "is_ordered",
];

/// Changes the settings of a queue that the caller manages. Two sessions do so one after the
/// other. An error undoes all of it.
///
/// Fails with `Error::UnknownQueue`, for the queue and for its dead-letter queue; with
/// `Error::NoRight` when the caller may not push into the dead-letter queue; with
/// `Error::BadValue` when that is the queue itself, and when `ordered` and `max_active_per_key`
/// exclude each other; with `Error::KeepsSnapshot` when a limit or
/// the order is changed in a transaction that keeps one snapshot; with `Error::AlteredTable`.
pub fn configure(name: &QueueName, changes: &Changes) -> Result<()> {
    if changes.any(&COUNTED) && session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot("fetchq.queue_configure"));
    }
    apply(name, changes)
}

/// Changes settings. Another transaction can have no part of a queue that this one has created,
/// whatever its snapshot is.
fn apply(name: &QueueName, changes: &Changes) -> Result<()> {
    let id = queue::lock_now(name)?;
    if changes.any(&COUNTED) || changes.any(&["lease_write_delay"]) {
        // A limit begins with the leases that there are. They are held when nobody writes any more: those who did
        // would wait for them, and keep this transaction from the table.
        if memory::exists() {
            keep_writers_away(name)?;
        }
        late_leases::before_changing(name);
    }
    let dead_letter = changes.dead_letter();
    if let Some(target) = &dead_letter {
        check_dead_letter(name, target)?;
    }
    let before = limits(name)?;
    if changes.has_columns() {
        let args = [
            Arg::from(name.as_str()),
            Jsonb::arg(Some(Jsonb::parse(&changes.columns()))),
        ];
        spi::connect(|spi| spi.once(CHANGE, &args).affected());
    }
    let after = limits(name)?;
    after.check_order()?;
    if after.has_history {
        queue_tables::create_history(name);
    }
    if changes.any(&["rate_limit", "rate_interval"]) {
        rate::change(id, &before.rate, &after.rate);
    }
    if changes.any(&["max_active"]) {
        cap::change(name, id, before.max_active, after.max_active)?;
    }
    if changes.any(&["is_ordered", "max_active_per_key"]) {
        keys_setup::change(name, id, before.key_order(), after.key_order())?;
    }
    if changes.any(&["lease_write_delay"]) && before.lease_write_delay != after.lease_write_delay {
        queue_tables::set_fillfactor(name, after.lease_write_delay);
    }
    if let Some(on) = changes.notify {
        triggers::set_notify(name, on);
    }
    if dead_letter.is_some() {
        let args = [
            Arg::from(name.as_str()),
            Arg::from(role::name(role::current()).as_str()),
        ];
        spi::connect(|spi| spi.once(SET_DEAD_LETTER_BY, &args).affected());
    }
    Ok(())
}

/// Locks the dead-letter queue of a queue, so that it is not dropped meanwhile.
fn check_dead_letter(name: &QueueName, target: &QueueName) -> Result<()> {
    if target == name {
        return Err(Error::BadValue {
            argument: "dead_letter",
            value: target.to_string(),
            rule: "another queue",
        });
    }
    rights::require(target, Right::Push)?;
    lock_against_drop(target).map(|_| ())
}

/// What new queues start with. Fails with `Error::BadDefaults`.
fn defaults() -> Result<Changes> {
    match settings::queue_defaults() {
        Some(json) => {
            let changes = queue_settings::parse(&json, is_valid);
            changes.map_err(|e| Error::BadDefaults(e.to_string()))
        }
        None => Ok(queue_settings::parse(
            queue_settings::OF_NEW_QUEUES,
            |_| true,
        )?),
    }
}

/// Creates a queue with settings, or finds it. Returns whether it was created, and its id.
///
/// A queue that exists keeps its settings: programs that create their queues at every start must
/// not undo what an operator has set meanwhile. A notice says which settings differ.
///
/// Fails as `queue::create` and `configure` do, and with `Error::BadDefaults` when
/// `fetchq.queue_defaults` cannot be applied.
pub fn create(name: &QueueName, settings: Changes) -> Result<(bool, i32)> {
    let (was_created, id) = queue::create(name)?;
    if !was_created {
        if !settings.is_empty() {
            report_differences(name, &settings)?;
        }
        return Ok((false, id));
    }
    let mut defaults = defaults()?;
    // The dead-letter queue of all others has none itself.
    if defaults.dead_letter().as_ref() == Some(name) {
        defaults = defaults.without_dead_letter();
    }
    if let Some(target) = defaults.dead_letter()
        && !settings.has_dead_letter()
    {
        let checked = check_dead_letter(name, &target);
        checked.map_err(|e| Error::BadDefaults(e.to_string()))?;
    }
    let changes = defaults.then(settings);
    if !changes.is_empty() {
        apply(name, &changes)?;
    }
    Ok((true, id))
}

/// Says which of the settings that were asked for a queue that exists does not have.
fn report_differences(name: &QueueName, asked: &Changes) -> Result<()> {
    let message = if rights::has(name, Right::Any) {
        let is = describe(name, &Changes::default())?;
        let keys = queue_settings::differences(&is, &describe(name, asked)?);
        if keys.is_empty() {
            return Ok(());
        }
        format!(
            "queue \"{name}\" already exists and keeps its settings, which differ in: {}",
            keys.join(", ")
        )
    } else {
        format!("queue \"{name}\" already exists and keeps its settings")
    };
    error::notice(
        PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT,
        message,
        "Change them with fetchq.queue_configure().",
    );
    Ok(())
}

const SET_ACTIVE: &str =
    "update fetchq.queues set is_active = $2 where name {=} $1 and is_active {<>} $2";

/// Pauses or resumes a queue. Returns whether that changed anything. Fails with
/// `Error::UnknownQueue`.
pub fn set_active(name: &QueueName, is_active: bool) -> Result<bool> {
    queue::lock_now(name)?;
    let args = [Arg::from(name.as_str()), Arg::from(is_active)];
    Ok(spi::connect(|spi| {
        spi.once(SET_ACTIVE, &args).affected() > 0
    }))
}
