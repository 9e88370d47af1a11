//! The schedules that a deployment declares.

use std::collections::BTreeMap;

use pgrx::prelude::*;

use crate::api::entry::respond_write;
use crate::api::schedules::Options;
use crate::domain::names::{LINE, QueueName, is_line};
use crate::domain::schedule::SYNC_KEYS;
use crate::domain::wording::{shorten, shorten_message};
use crate::error::{Error, Result};
use crate::maintenance::schedules_sync as run;
use crate::maintenance::schedules_sync::Action;
use crate::pg::call::Reply;
use crate::pg::json::{Jsonb, Value};
use crate::pg::passing_error;
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::signals::commit;
use crate::store::upkeep::schedules::NewSchedule;

/// `schedules_sync(owner, schedules) → (name, action)`: makes the schedules of an owner those of a JSON
/// array, whose elements have the arguments of `schedule_create` as keys, without `replace`. The action is
/// `created`, `changed`, `kept` or `dropped`.
///
/// Fails with `BadValue` for an owner that is not valid, with `NoSchedules` and `BadListedSchedule` for a
/// list that is not, with `InSchedules` for an element where `schedule_create` would fail, or that somebody
/// else has made, and with `NoRight` where the caller may not drop a schedule.
#[pg_extern(sql = false)]
fn schedules_sync(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let owner = call.text(0, "owner")?;
        if !is_line(owner) {
            return Err(Error::BadValue {
                argument: "owner",
                value: shorten(owner),
                rule: LINE,
            });
        }
        let elements = read_list(call.json(1, "schedules")?)?;
        let wanted: Result<Vec<NewSchedule>> = elements
            .iter()
            .enumerate()
            .map(|(at, element)| {
                let wanted = element.options().checked(Some(owner));
                wanted.map_err(|e| e.in_schedules(at, &element.name))
            })
            .collect();
        let done = run::sync(owner, &wanted?)?;
        if done.iter().any(|(_, action)| *action != Action::Kept) {
            commit::schedules_changed();
        }
        let mut out = call.rows();
        for (name, action) in &done {
            out.push(&[Arg::from(name.as_str()), Arg::from(action.word())]);
        }
        Ok(out.done())
    })
}

/// An element of the list, with the defaults of `schedule_create` for what it does not name.
struct Element {
    name: String,
    queue: QueueName,
    schedule: String,
    payload: Jsonb,
    headers: Option<Jsonb>,
    timezone: String,
    version: i32,
    priority: i32,
    catch_up: String,
    catch_up_limit: i32,
    jitter: Interval,
    starts_at: Option<i64>,
    ends_at: Option<i64>,
}

impl Element {
    fn options(&self) -> Options<'_> {
        Options {
            name: &self.name,
            queue: &self.queue,
            schedule: &self.schedule,
            payload: self.payload,
            headers: self.headers,
            timezone: &self.timezone,
            version: self.version,
            priority: self.priority,
            catch_up: &self.catch_up,
            catch_up_limit: self.catch_up_limit,
            jitter: self.jitter,
            starts_at: self.starts_at,
            ends_at: self.ends_at,
        }
    }
}

/// Reads the list. Fails with `NoSchedules`, and with `BadListedSchedule` or `InSchedules` for the first
/// element that is not valid.
fn read_list(list: Jsonb) -> Result<Vec<Element>> {
    let list = list.value();
    let elements = list.elements("schedules")?;
    let elements = elements.ok_or_else(|| Error::NoSchedules(list.kind()))?;
    let mut positions: BTreeMap<String, usize> = BTreeMap::new();
    let mut read = Vec::new();
    for (at, element) in elements.iter().enumerate() {
        let members = Members::of(at, element)?;
        let element = members.read()?;
        if let Some(first) = positions.insert(element.name.clone(), at + 1) {
            return Err(members.bad(format!("schedule {first} has the same name")));
        }
        read.push(element);
    }
    Ok(read)
}

/// The keys of an element. A null is as if the key was left out.
struct Members {
    /// Its position in the list, from 0.
    at: usize,
    /// For errors; empty where it has none.
    name: String,
    values: BTreeMap<String, Value>,
}

impl Members {
    fn of(at: usize, element: &Value) -> Result<Self> {
        let mut this = Self {
            at,
            name: String::new(),
            values: BTreeMap::new(),
        };
        let members = element.members().ok_or_else(|| {
            let kind = element.kind();
            this.bad(format!("it is a JSON {kind}, not an object"))
        })?;
        let known = members.into_iter().filter(|(_, value)| !value.is_null());
        this.values = known.collect();
        this.name = this.text("name").ok().flatten().unwrap_or_default();
        Ok(this)
    }

    fn bad(&self, reason: String) -> Error {
        Error::BadListedSchedule {
            at: self.at + 1,
            name: shorten(&self.name),
            reason,
        }
    }

    fn read(&self) -> Result<Element> {
        let mut keys = self.values.keys();
        if let Some(key) = keys.find(|key| !SYNC_KEYS.contains(&key.as_str())) {
            return Err(self.bad(format!("it has an unknown key {:?}", shorten(key))));
        }
        let or = |key, default: &str| {
            let text = self.text(key)?;
            Ok::<_, Error>(text.unwrap_or_else(|| default.to_owned()))
        };
        let name = self.needed("name")?;
        let queue = QueueName::parse(&self.needed("queue")?)
            .map_err(|e| Error::from(e).in_schedules(self.at, &name))?;
        let jitter = self.parsed("jitter", Interval::parse)?;
        Ok(Element {
            name,
            queue,
            schedule: self.needed("schedule")?,
            payload: self.json("payload").unwrap_or_else(|| Jsonb::parse("{}")),
            headers: self.json("headers"),
            timezone: or("timezone", "UTC")?,
            version: self.integer("version")?.unwrap_or(0),
            priority: self.integer("priority")?.unwrap_or(0),
            catch_up: or("catch_up", "once")?,
            catch_up_limit: self.integer("catch_up_limit")?.unwrap_or(100),
            jitter: jitter.unwrap_or_else(|| Interval::from_parts((0, 0, 0))),
            starts_at: self.parsed("starts_at", time::parse_timestamp)?,
            ends_at: self.parsed("ends_at", time::parse_timestamp)?,
        })
    }

    fn json(&self, key: &str) -> Option<Jsonb> {
        self.values.get(key).map(|value| value.to_jsonb())
    }

    /// A value as `read` reads it, None where there is none. Fails with `BadListedSchedule` when `read`
    /// returns None.
    fn value<T>(
        &self,
        key: &str,
        rule: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        let read = read(value).ok_or_else(|| {
            let given = shorten(&value.to_jsonb().to_text());
            self.bad(format!("its {key} is {given}, not {rule}"))
        });
        read.map(Some)
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        self.value(key, "a text", Value::text)
    }

    fn needed(&self, key: &str) -> Result<String> {
        self.text(key)?
            .ok_or_else(|| self.bad(format!("it has no {key}")))
    }

    fn integer(&self, key: &str) -> Result<Option<i32>> {
        let rule = "a whole number from -2147483648 to 2147483647";
        self.value(key, rule, |value| value.number()?.parse().ok())
    }

    /// A text that `parse`, an input function of the server, reads.
    fn parsed<T>(&self, key: &str, parse: fn(&str) -> T) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else {
            return Ok(None);
        };
        let parsed = passing_error::refusal(|| parse(&text));
        parsed.map(Some).map_err(|message| {
            let message = shorten_message(&message);
            self.bad(format!("its {key} cannot be read: {message}"))
        })
    }
}
