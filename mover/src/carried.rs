//! What belongs to a queue in the tables of fetchq, and how a move carries it. Every column of a table
//! of the schema `fetchq` that names a queue is in the list; a test compares it with the catalog. A table
//! that inherits from another one is carried with that one.
//!
//! A statement that reads gives one column, a jsonb. A statement that writes finds it again as `content`
//! of `{rows}`. `{name}` is the queue, a literal; `{id}` is its number in the registry: the old one for
//! what reads, the new one for what writes.

/// How a move carries what a table has of a queue.
pub enum How {
    /// Its rows are read on the old server while the queue is locked, and written on the new one.
    Copied {
        read: &'static str,
        write: &'static str,
    },
    /// There can be as many rows as documents, so they are copied into the table itself while the queue
    /// is locked: until the queue is registered, nothing knows its new number. These columns get
    /// another value; `{id}` is the new number of the queue.
    Direct(&'static [(&'static str, &'static str)]),
    /// It is read and written with another table of the list.
    #[allow(dead_code)] // The tests read it.
    With(&'static str),
    /// It is not carried, for this reason.
    #[allow(dead_code)] // People read it.
    Left(&'static str),
}

/// A column that names a queue, and how its rows are carried.
pub struct Carried {
    /// Table and column, as `jobs.queue`.
    pub column: &'static str,
    pub how: How,
}

impl Carried {
    /// The table without the column.
    pub fn table(&self) -> &'static str {
        self.column.split('.').next().unwrap_or(self.column)
    }
}

/// A column whose rows are read and written with another table of the list.
const fn with(column: &'static str, table: &'static str) -> Carried {
    Carried {
        column,
        how: How::With(table),
    }
}

/// The registry comes first: the other tables refer to its number.
pub const CARRIED: [Carried; 14] = [
    Carried {
        column: "queues.id",
        how: How::Copied {
            read: "select to_jsonb(q) from fetchq.queues q where q.name = {name}",
            write: "insert into fetchq.queues
                select t.* from {rows} r,
                    jsonb_populate_record(null::fetchq.queues, r.content || '{\"id\": {id}}') t",
        },
    },
    Carried {
        column: "jobs.queue",
        how: How::Copied {
            read: "select to_jsonb(j) from fetchq.jobs j where j.queue = {name}",
            write: "insert into fetchq.jobs
                select t.* from {rows} r,
                    jsonb_populate_record(null::fetchq.jobs, r.content || jsonb_build_object(
                        'id', nextval(pg_get_serial_sequence('fetchq.jobs', 'id')))) t",
        },
    },
    // A payload that is the null of JSON would become that of SQL.
    Carried {
        column: "schedules.queue",
        how: How::Copied {
            read: "select to_jsonb(s) from fetchq.schedules s where s.queue = {name}",
            write: "insert into fetchq.schedules
                select t.* from {rows} r, jsonb_populate_record(null::fetchq.schedules,
                    r.content || case when r.content -> 'payload' = 'null'
                        then '{\"payload\": \"fetchq move: null\"}' else '{}' end::jsonb) t;
                update fetchq.schedules set payload = 'null'
                where queue = {name} and payload = '\"fetchq move: null\"'",
        },
    },
    // The sessions are those of the old server. A lease that was bound to one of them would be taken
    // back at once, because there is no such session here. It lasts until it expires.
    Carried {
        column: "worker_sessions.queue_id",
        how: How::Copied {
            read: "select to_jsonb(w) from fetchq.worker_sessions w where w.queue_id = {id}",
            write: "insert into fetchq.worker_sessions
                select t.* from {rows} r, jsonb_populate_record(
                    null::fetchq.worker_sessions, r.content || '{\"queue_id\": {id}, \"binding\": 0, \"known_stops\": []}') t",
        },
    },
    // A request for all queues holds for this one as well.
    Carried {
        column: "stop_requests.queue_id",
        how: How::Copied {
            read: "select jsonb_build_object('name', s.name, 'since', max(s.since))
                from fetchq.stop_requests s where s.queue_id in (0, {id}) group by s.name",
            write: "insert into fetchq.stop_requests (name, queue_id, since)
                select t.name, t.queue_id, t.since from {rows} r, jsonb_populate_record(
                    null::fetchq.stop_requests, r.content || '{\"queue_id\": {id}}') t
                on conflict (name, queue_id) do nothing",
        },
    },
    // What somebody has written for a queue of this name, which was not there, gives way.
    Carried {
        column: "metrics.queue",
        how: How::Copied {
            read: "select to_jsonb(m) from fetchq.metrics m where m.queue = {name}",
            write: "with others as (delete from fetchq.metrics m where m.queue = {name}
                    and not exists (select from {rows} r where r.content ->> 'metric' = m.metric))
                insert into fetchq.metrics
                select t.* from {rows} r,
                    jsonb_populate_record(null::fetchq.metrics, r.content || jsonb_build_object(
                        'id', nextval(pg_get_serial_sequence('fetchq.metrics', 'id')))) t
                on conflict (queue, metric) do update
                    set value = excluded.value, updated_at = excluded.updated_at",
        },
    },
    Carried {
        column: "metrics_writes.queue",
        how: How::Copied {
            read: "select to_jsonb(w) from fetchq.metrics_writes w where w.queue = {name}",
            write: "with others as (delete from fetchq.metrics_writes w where w.queue = {name})
                insert into fetchq.metrics_writes
                select t.* from {rows} r, jsonb_populate_record(null::fetchq.metrics_writes, r.content) t",
        },
    },
    Carried {
        column: "timings.queue_id",
        how: How::Copied {
            read: "select to_jsonb(t) from fetchq.timings t where t.queue_id = {id}",
            write: "insert into fetchq.timings
                select t.* from {rows} r, jsonb_populate_record(
                    null::fetchq.timings, r.content || '{\"queue_id\": {id}}') t",
        },
    },
    // The events that are not packed yet, added up. They are written into the parent of the segments,
    // which the next pack empties. A number of the log has 32 bits.
    Carried {
        column: "counter_log.queue_id",
        how: How::Copied {
            read: "select to_jsonb(s) from (
                    select t.version, t.event, t.bucket, sum(t.n)::bigint as n
                    from fetchq.counter_tail t where t.queue_id = {id}
                    group by t.version, t.event, t.bucket) s",
            write: "insert into fetchq.counter_log (queue_id, version, n, event, bucket)
                select {id}, t.version, least(t.n - part * 2000000000, 2000000000)::int, t.event, t.bucket
                from {rows} r,
                    jsonb_to_record(r.content) as t (version int, n bigint, event smallint, bucket smallint),
                    generate_series(0, (t.n - 1) / 2000000000) part",
        },
    },
    Carried {
        column: "lease_slots.queue_id",
        how: How::Direct(&[("queue_id", "{id}")]),
    },
    Carried {
        column: "rate_permits.queue_id",
        how: How::Direct(&[("queue_id", "{id}")]),
    },
    // made_by is a transaction of the old server.
    Carried {
        column: "ordering_keys.queue_id",
        how: How::Direct(&[("queue_id", "{id}"), ("made_by", "0")]),
    },
    Carried {
        column: "queue_places.queue",
        how: How::Left("the old server gets a record, and that of the new one is removed"),
    },
    with("queues.dead_letter", "queues"),
];

/// Replaces the markers of a statement.
pub fn render(sql: &str, name: &str, id: i64, rows: &str) -> String {
    sql.replace("{rows}", rows)
        .replace("{name}", &format!("'{name}'"))
        .replace("{id}", &id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_marker_is_left_in_a_statement() {
        for carried in &CARRIED {
            if let How::Copied { read, write } = carried.how {
                let read = render(read, "q", 7, "none");
                let write = render(write, "q", 7, "fetchq_move.rows");
                for marker in ["{rows}", "{name}", "{id}"] {
                    assert!(!read.contains(marker) && !write.contains(marker), "{write}");
                }
                assert!(read.contains("'q'") || read.contains('7'), "{read}");
                assert!(write.contains("fetchq_move.rows"), "{write}");
            }
        }
    }

    #[test]
    fn what_comes_with_another_table_names_one_that_is_copied() {
        for carried in &CARRIED {
            if let How::With(table) = carried.how {
                let is_copied = |other: &Carried| {
                    other.table() == table && matches!(other.how, How::Copied { .. })
                };
                assert!(CARRIED.iter().any(is_copied), "{}", carried.column);
            }
            if let How::Left(why) = carried.how {
                assert!(!why.is_empty());
            }
        }
    }
}
