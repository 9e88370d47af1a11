//! The tables of the queues on the new server: as `queue_create` makes them, and without a queue, so
//! that nothing but the subscription writes them. Until the end they belong to the role of this
//! command: a subscription runs triggers with high rights on some versions, and the owner of a table
//! could add one.
use fetchq_domain::names::{QueueName, TABLES};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};
use crate::names::{table_names, texts};
use crate::records;
use crate::rest::Queue;
use crate::server::Server;
use crate::strangers;

// What shapes the tables of a queue: triggers, indexes, and whether there is a history.
const SHAPE: &str = "select jsonb_build_object(
        'ordered', q.is_ordered,
        'max_active', q.max_active is not null,
        'max_active_per_key', not q.is_ordered and q.max_active_per_key is not null,
        'notify', exists (
            select from pg_trigger t
            where t.tgrelid = to_regclass('fetchq_data.\"' || q.name || '__docs\"')
                and t.tgname = 'fetchq_notify_insert'),
        'history', to_regclass('fetchq_data.\"' || q.name || '__history\"') is not null)
    from fetchq.queues q where q.id::bigint = $1 and q.name = $2";

/// What shapes the tables of a queue. None when the queue has been dropped, or created anew.
pub async fn shape(server: &Server, queue: &Queue) -> Result<Option<Value>> {
    let row = server
        .first(SHAPE, &[&queue.id, &queue.name.as_str()])
        .await?;
    Ok(row.map(|row| row.get(0)))
}

/// The settings with which `queue_create` makes tables of this shape.
fn settings(shape: &Value) -> Value {
    let is = |key: &str| shape.get(key).and_then(Value::as_bool) == Some(true);
    let one = |key: &str| if is(key) { json!(1) } else { Value::Null };
    json!({
        "dead_letter": null,
        "rate": null,
        "paused": false,
        "ordered": is("ordered"),
        "max_active": one("max_active"),
        "max_active_per_key": one("max_active_per_key"),
        "notify": is("notify"),
        "history": {
            "completed": if is("history") { json!("1 day") } else { Value::Null },
            "killed": null,
            "dropped": null,
        },
    })
}

// Until the queue is live here, calls on the new server say where it lives. Such a record refuses the
// creation of the queue, so it is taken away for a moment.
const TAKE_PLACE: &str =
    "delete from fetchq.queue_places where queue = $1 returning place, since::text";

const GIVE_PLACE: &str = "insert into fetchq.queue_places (queue, place, since)
    values ($1, $2, coalesce($3::text::timestamptz, now()))";

// The queues keep what they have, whatever new queues of the new server start with.
const NO_DEFAULTS: &str = "set local fetchq.queue_defaults = '{}'";

const CREATE: &str = "select queue_id::bigint from fetchq.queue_create($1::text, $2::text::jsonb)";

const UNREGISTER: [&str; 4] = [
    "delete from fetchq.lease_slots where queue_id::bigint = $1",
    "delete from fetchq.rate_permits where queue_id::bigint = $1",
    "delete from fetchq.ordering_keys where queue_id::bigint = $1",
    "delete from fetchq.queues where id::bigint = $1",
];

const UNPLAN: &str = "delete from fetchq.jobs where queue = $1";

/// What was made on the new server.
pub struct Staged {
    /// The shapes of the tables.
    pub shapes: Vec<Value>,
    /// The queues with their numbers in the registry of the new server.
    pub queues: Vec<Queue>,
}

/// Makes the tables of the queues, and records that in the same transaction.
pub async fn make(old: &Server, new: &Server, id: &str, queues: &[Queue]) -> Result<Staged> {
    let mut shapes = Vec::new();
    for queue in queues {
        let shape = shape(old, queue).await?;
        shapes.push(shape.ok_or_else(|| gone(queue))?);
    }
    let names: Vec<QueueName> = queues.iter().map(|queue| queue.name.clone()).collect();
    let indexes = added_indexes(old, &names).await?;
    new.run("begin").await?;
    let made = async {
        new.run(NO_DEFAULTS).await?;
        let (mut placed, mut made, mut ids) = (Vec::new(), Vec::new(), Map::new());
        for (queue, shape) in queues.iter().zip(&shapes) {
            let name = &queue.name;
            let (number, is_placed) = make_one(new, name, shape, &old.place).await?;
            if !is_placed {
                placed.push(name.as_str());
            }
            ids.insert(name.as_str().to_owned(), json!(number));
            made.push(Queue {
                name: name.clone(),
                id: number,
            });
        }
        for (name, definition) in &indexes {
            if !new.one(HAS_INDEX, &[name]).await?.get::<_, bool>(0) {
                new.run(definition).await?;
            }
        }
        strangers::require_none(new, &names).await?;
        compare_columns(old, new, &names).await?;
        let detail = json!({"placed": placed, "ids": ids});
        records::set(new, id, records::COPYING, &detail).await?;
        new.run("commit").await?;
        Ok(made)
    };
    match made.await {
        Ok(queues) => Ok(Staged { shapes, queues }),
        Err(failure) => {
            new.roll_back().await;
            Err(failure)
        }
    }
}

fn gone(queue: &Queue) -> Failure {
    Failure::new(format!(
        "queue \"{}\" was dropped on the old server meanwhile",
        queue.name.as_str()
    ))
}

/// Makes the tables of a queue. `place`: where it lives now. Returns the number that the queue had, and
/// will have, in the registry, and whether the new server knew before that it lives elsewhere.
async fn make_one(
    new: &Server,
    name: &QueueName,
    shape: &Value,
    place: &str,
) -> Result<(i64, bool)> {
    let known = new.first(TAKE_PLACE, &[&name.as_str()]).await?;
    let settings = settings(shape).to_string();
    let number: Option<i64> = new.one(CREATE, &[&name.as_str(), &settings]).await?.get(0);
    let number = number.ok_or_else(|| Failure::new("queue_create() made no queue"))?;
    for sql in UNREGISTER {
        new.execute(sql, &[&number]).await?;
    }
    new.execute(UNPLAN, &[&name.as_str()]).await?;
    let (place, since): (String, Option<String>) = match &known {
        Some(row) => (row.get(0), row.get(1)),
        None => (place.to_owned(), None),
    };
    new.execute(GIVE_PLACE, &[&name.as_str(), &place, &since])
        .await?;
    Ok((number, known.is_some()))
}

const REMOVE_PLACES: &str = "delete from fetchq.queue_places p
    using fetchq_move.moves m
    where m.id = $1 and m.side = 'new' and jsonb_exists(m.detail -> 'placed', p.queue)";

/// Removes the records of places that a move has made on the new server.
pub async fn remove_places(new: &Server, id: &str) -> Result<()> {
    new.execute(REMOVE_PLACES, &[&id]).await?;
    Ok(())
}

// Indexes that back no constraint. Those that fetchq makes exist on the new server already.
const INDEXES: &str = "select i.relname::text, pg_get_indexdef(i.oid) from pg_class c
    join pg_index x on x.indrelid = c.oid
    join pg_class i on i.oid = x.indexrelid
    where c.relnamespace = 'fetchq_data'::regnamespace and c.relkind = 'r'
        and c.relname = any ($1::text[]) and x.indisvalid
        and not exists (select from pg_constraint k where k.conindid = i.oid)
    order by 1";

const HAS_INDEX: &str = "select exists (
    select from pg_class c where c.relnamespace = 'fetchq_data'::regnamespace and c.relname = $1::text)";

/// The indexes of the tables on the old server: names and definitions.
async fn added_indexes(old: &Server, names: &[QueueName]) -> Result<Vec<(String, String)>> {
    let rows = old.rows(INDEXES, &[&table_names(names)]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

// Their order may differ: an upgrade adds columns at the end.
const COLUMNS: &str = "select c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relnamespace = 'fetchq_data'::regnamespace and c.relkind = 'r'
        and c.relname = any ($1::text[])
    order by c.relname, a.attname";

async fn compare_columns(old: &Server, new: &Server, names: &[QueueName]) -> Result<()> {
    let tables = table_names(names);
    let here = old.texts(COLUMNS, &[&tables]).await?;
    let there = new.texts(COLUMNS, &[&tables]).await?;
    let only = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter()
            .filter(|column| !other.contains(column))
            .cloned()
            .collect()
    };
    let (left, right) = (only(&here, &there), only(&there, &here));
    if left.is_empty() && right.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the columns of the tables differ: only on the old server: {}; only on the new one: {}",
        left.join(", "),
        right.join(", ")
    ))
    .with_hint("Only what fetchq makes is moved. Columns that an older version lacks come with alter extension fetchq update."))
}

const IS_REGISTERED: &str =
    "select q.name::text from fetchq.queues q where q.name = any ($1::text[])";

/// Drops the tables that a move has made, unless they belong to a queue.
pub async fn drop_tables(new: &Server, names: &[QueueName]) -> Result<()> {
    let registered = new.texts(IS_REGISTERED, &[&texts(names)]).await?;
    for name in names
        .iter()
        .filter(|name| !registered.iter().any(|other| other == name.as_str()))
    {
        for suffix in TABLES {
            new.run(&format!("drop table if exists {}", name.qualified(suffix)))
                .await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_the_tables_leave_nothing_to_the_defaults() {
        let plain = settings(&json!({}));
        assert_eq!(plain["ordered"], json!(false));
        assert_eq!(plain["history"]["completed"], Value::Null);
        let shape = json!({"ordered": true, "max_active": true, "history": true, "notify": true});
        let all = settings(&shape);
        assert_eq!(all["max_active"], json!(1));
        assert_eq!(all["max_active_per_key"], Value::Null);
        assert_eq!(all["history"]["completed"], json!("1 day"));
    }
}
