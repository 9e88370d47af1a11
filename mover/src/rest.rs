//! What is in no replicated table: it is read on the old server while the queues are locked, stored on
//! the new one, and written there at the end.
use fetchq_domain::names::QueueName;

use crate::carried::{CARRIED, How, render};
use crate::failure::{Failure, Result};
use crate::server::Server;

/// A queue and its number in the registry of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    pub name: QueueName,
    pub id: i64,
}

// Where the numbers of new rows go on. NULL: the sequence gave none yet.
const READ_SEQUENCES: &str = "select jsonb_build_object('table', s.suffix, 'column', s.col,
        'last', pg_sequence_last_value(
            pg_get_serial_sequence('fetchq_data.\"' || {name} || '__' || s.suffix || '\"', s.col)::regclass))
    from (values ('docs', 'seq'), ('logs', 'id'), ('metrics', 'id'), ('history', 'id')) s (suffix, col)
    where to_regclass('fetchq_data.\"' || {name} || '__' || s.suffix || '\"') is not null";

const WRITE_SEQUENCES: &str = "select setval(
        pg_get_serial_sequence('fetchq_data.\"' || {name} || '__' || (r.content ->> 'table') || '\"',
            r.content ->> 'column'),
        (r.content ->> 'last')::bigint)
    from {rows} r where r.content ->> 'last' is not null";

// The statements that give the tables their owner, their options and their privileges, in this order.
// MAINTAIN is a privilege from PostgreSQL 17 on: nothing of fetchq gives it.
const READ_DEFINITIONS: &str = "with tables as (
        select c.oid, c.relowner, c.relacl, c.reloptions, c.relname,
            format('%I.%I', n.nspname, c.relname) as name
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'fetchq_data' and c.relkind = 'r' and c.relname in (
            {name} || '__docs', {name} || '__logs', {name} || '__metrics', {name} || '__history')
    ), grants as (
        select t.name, t.relowner, a.grantee, a.privilege_type, '' as columns, a.is_grantable
        from tables t cross join aclexplode(t.relacl) a
        union all
        select t.name, t.relowner, a.grantee, a.privilege_type, format(' (%I)', c.attname), a.is_grantable
        from tables t join pg_attribute c on c.attrelid = t.oid and c.attnum > 0 and not c.attisdropped
        cross join aclexplode(c.attacl) a
    )
    select jsonb_build_object('n', s.n, 'sql', s.sql) from (
        select 1 as n, format('alter table %s owner to %I', t.name, pg_get_userbyid(t.relowner)) as sql
        from tables t
        union all
        select 2, format('alter table %s set (%s)', t.name, array_to_string(t.reloptions, ', '))
        from tables t where t.reloptions is not null
        union all
        select 3, format('grant %s%s on table %s to %s%s', g.privilege_type, g.columns, g.name,
            case g.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(g.grantee)) end,
            case when g.is_grantable then ' with grant option' else '' end)
        from grants g where g.grantee <> g.relowner and g.privilege_type <> 'MAINTAIN'
        union all
        select 4, format('grant usage on schema %I to %I', n.nspname, pg_get_userbyid(a.grantee))
        from pg_namespace n cross join aclexplode(n.nspacl) a
        where n.nspname in ('fetchq', 'fetchq_data') and a.privilege_type = 'USAGE'
            and a.grantee <> n.nspowner
            and a.grantee in (
                select g.grantee from grants g where g.grantee <> 0
                union all select t.relowner from tables t)
    ) s";

const READ_STATEMENTS: &str = "select r.content ->> 'sql' from {rows} r
    order by (r.content ->> 'n')::int, r.content ->> 'sql'";

const SEQUENCES: &str = "sequences";
const DEFINITIONS: &str = "definitions";

/// The rows of one source of a move, as a table of a statement.
fn rows_of(id: &str, name: &str, source: &str) -> String {
    format!(
        "(select content from fetchq_move.rows where move = '{id}' and queue = '{name}' and source = '{source}')"
    )
}

/// The statement that reads all that belongs to queues, beside their tables.
fn read_all(id: &str, queues: &[Queue]) -> String {
    let mut parts = Vec::new();
    for queue in queues {
        let name = queue.name.as_str();
        let mut add = |source: &str, read: &str| {
            let read = render(read, name, queue.id, "");
            parts.push(format!(
                "select '{id}'::text, '{name}'::text, '{source}'::text, r.content::text from ({read}) r (content)"
            ));
        };
        for carried in &CARRIED {
            if let How::Copied { read, .. } = carried.how {
                add(carried.table(), read);
            }
        }
        add(SEQUENCES, READ_SEQUENCES);
        add(DEFINITIONS, READ_DEFINITIONS);
    }
    parts.join(" union all ")
}

const STORE: &str = "copy fetchq_move.rows (move, queue, source, content) from stdin";

/// Copies what belongs to queues from the old server, where they are locked, into the records of the
/// new one.
pub async fn copy(id: &str, queues: &[Queue], old: &Server, new: &Server) -> Result<u64> {
    let read = format!("copy ({}) to stdout", read_all(id, queues));
    old.copy_to(&read, new, STORE).await
}

/// Registers queues whose tables exist, with all that belongs to them. `queues`: with their new numbers.
pub async fn register(id: &str, queues: &[Queue], new: &Server) -> Result<()> {
    for queue in queues {
        let name = queue.name.as_str();
        let mut statements = Vec::new();
        for carried in &CARRIED {
            if let How::Copied { write, .. } = carried.how {
                let rows = rows_of(id, name, carried.table());
                statements.push(render(write, name, queue.id, &rows));
            }
        }
        // One message for all: workers wait meanwhile.
        new.run(&statements.join(";\n")).await?;
    }
    Ok(())
}

const COLUMNS: &str = "select a.attname::text from pg_attribute a
    where a.attrelid = ('fetchq.' || $1::text)::regclass and a.attnum > 0 and not a.attisdropped
    order by a.attnum";

/// The columns of a table as a list for COPY, and what is read for them.
fn columns(names: &[String], replaced: &[(&str, &str)], number: i64) -> (String, String) {
    let value = |name: &String| {
        let other = replaced.iter().find(|(column, _)| column == name);
        other.map_or_else(
            || format!("t.{name}"),
            |(_, value)| value.replace("{id}", &number.to_string()),
        )
    };
    let values: Vec<String> = names.iter().map(value).collect();
    (names.join(", "), values.join(", "))
}

/// Copies the tables of which there can be as many rows as documents. `before` and `after` are the
/// queues with their old and new numbers, in the same order.
pub async fn copy_direct(
    before: &[Queue],
    after: &[Queue],
    old: &Server,
    new: &Server,
) -> Result<()> {
    for carried in &CARRIED {
        let How::Direct(replaced) = carried.how else {
            continue;
        };
        let table = carried.table();
        let names = new.texts(COLUMNS, &[&table]).await?;
        for (one, other) in before.iter().zip(after) {
            let (list, values) = columns(&names, replaced, other.id);
            let read = format!(
                "copy (select {values} from fetchq.{table} t where t.queue_id = {}) to stdout",
                one.id
            );
            let write = format!("copy fetchq.{table} ({list}) from stdin");
            old.copy_to(&read, new, &write).await?;
        }
    }
    Ok(())
}

/// Removes what `copy_direct` has written for queues that are not registered.
pub async fn remove_direct(id: &str, new: &Server) -> Result<()> {
    for carried in CARRIED
        .iter()
        .filter(|carried| matches!(carried.how, How::Direct(_)))
    {
        let sql = format!(
            "delete from fetchq.{} t using fetchq_move.moves m, jsonb_each_text(m.detail -> 'ids') e
             where m.id = $1 and m.side = 'new' and t.queue_id = e.value::int
                 and not exists (select from fetchq.queues q where q.id = t.queue_id)",
            carried.table()
        );
        new.execute(&sql, &[&id]).await?;
    }
    Ok(())
}

/// The queues with their numbers on the new server. `detail`: of its record.
pub fn numbered(names: &[QueueName], detail: &serde_json::Value) -> Result<Vec<Queue>> {
    let ids = detail.get("ids");
    let numbered = names.iter().map(|name| {
        let id = ids.and_then(|ids| ids.get(name.as_str())?.as_i64());
        id.map(|id| Queue {
            name: name.clone(),
            id,
        })
    });
    let numbered: Option<Vec<Queue>> = numbered.collect();
    numbered.ok_or_else(|| Failure::new("the record of the move lacks the number of a queue"))
}

/// Lets the sequences of a queue go on, and gives its tables the owner, the options and the privileges
/// that they had.
pub async fn define(id: &str, queue: &Queue, new: &Server) -> Result<()> {
    let name = queue.name.as_str();
    let rows = rows_of(id, name, SEQUENCES);
    new.run(&render(WRITE_SEQUENCES, name, queue.id, &rows))
        .await?;
    let rows = rows_of(id, name, DEFINITIONS);
    let statements = new
        .texts(&render(READ_STATEMENTS, name, queue.id, &rows), &[])
        .await?;
    new.run(&statements.join(";\n")).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_read_in_one_statement() {
        let queues = ["a", "b"].map(|name| Queue {
            name: QueueName::parse(name).unwrap(),
            id: 3,
        });
        let sql = read_all("id", &queues);
        let copied = CARRIED
            .iter()
            .filter(|carried| matches!(carried.how, How::Copied { .. }))
            .count();
        assert_eq!(
            sql.matches("union all select 'id'").count() + 1,
            2 * (copied + 2)
        );
        assert!(!sql.contains("{name}") && !sql.contains("{id}"));
    }

    #[test]
    fn a_copied_table_keeps_all_columns_but_those_that_are_replaced() {
        let names = ["queue_id", "key", "made_by"].map(str::to_owned);
        let replaced = [("queue_id", "{id}"), ("made_by", "0")];
        let (list, values) = columns(&names, &replaced, 9);
        assert_eq!(list, "queue_id, key, made_by");
        assert_eq!(values, "9, t.key, 0");
    }
}
