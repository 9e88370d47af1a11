//! Tables of a queue that have other columns than fetchq gave them. Every function gives an error or a
//! right value. It never takes the bytes of one type for those of another one: that would read memory of
//! the server, and give it out or crash.

use fetchq_client_tests::{Server, Session, calls, error_of, prepare_calls, state_of, wait_until};
use serde_json::{Value as Json, json};

/// Rows in each of the four tables of the queue `q`, beside those of `prepare_calls`.
const ROWS: &str = "
    select fetchq.doc_put('q', 'dropped');
    select subject, fetchq.doc_drop('q', subject, lease) from fetchq.doc_lease('q', 1);
    select fetchq.doc_put('q', 'due', ordering_key => 'k', headers => '{\"a\": 1}');
    update fetchq_data.q__docs set last_error = 'why', origin = '{}', result = '{}', progress = '{}',
        max_attempts = 9, last_iteration = now(), due_at = now(), picked_at = now(),
        -- As doc_pick leases them, so that the subject settles them too.
        lease = lease / 2 * 2;
    select fetchq.metric_snap('q')";

/// Makes calls, each of which is rolled back, and returns what has become of them.
const TRY: &str = "
    create function public.try(calls jsonb) returns table (name text, outcome text) language plpgsql as $$
    declare call jsonb; statement text; result text;
    begin
        for call in select jsonb_array_elements(calls) loop
            begin
                for statement in select jsonb_array_elements_text(call -> 'before') loop
                    execute statement;
                end loop;
                execute format('select coalesce(string_agg(r::text, chr(10)), '''') from (%s) r', call ->> 'call')
                    into result;
                raise exception sqlstate 'TRY00';
            exception
                when sqlstate 'TRY00' then outcome := 'gives ' || result;
                when others then outcome := sqlstate || ' ' || sqlerrm;
            end;
            name := call ->> 'name';
            return next;
        end loop;
    end $$";

/// Calls of fetchq 4, which tests/contract.json does not have.
const OLD_CALLS: [&str; 34] = [
    "select * from fetchq.doc_pick('q')",
    "select * from fetchq.doc_pick('q', 0, 5, '1 hour')",
    "select fetchq.doc_push('q', 'pushed')",
    "select fetchq.doc_push('q', 'pushed', '{\"a\": 1}', now() + '1 hour')",
    "select fetchq.doc_push('q', 0, now(), '(''m1'', 0, ''{}'', {DATA}), (''m2'', 5, ''{}'', {DATA})')",
    "select fetchq.doc_upsert('q', 'due', 0, 1, now(), '{}')",
    "select fetchq.doc_upsert('q', 'upserted', 0, 1, now(), '{}')",
    "select fetchq.doc_append('q', '{}')",
    "select fetchq.doc_complete('q', 'active')",
    "select fetchq.doc_reject('q', 'active', 'why', '{}')",
    "select fetchq.doc_reschedule('q', 'active', now())",
    "select fetchq.doc_kill('q', 'active')",
    "select fetchq.doc_drop('q', 'active')",
    "select * from fetchq.lease_list()",
    "select * from fetchq.queue_top('q', 0, 10, 0)",
    "select * from fetchq.queue_status('q')",
    "select * from fetchq.metric_compute('q')",
    "select * from fetchq.metric_compute_all()",
    "select * from fetchq.metric_get('q')",
    "select * from fetchq.metric_get_common('q')",
    "select fetchq.metric_snap('q')",
    "select fetchq.metric_reset('q')",
    "select fetchq.mnt_make_pending('q', 10)",
    "select fetchq.mnt_reschedule_orphans('q', 10)",
    "select fetchq.mnt_mark_dead('q', 10)",
    "select fetchq.queue_create_indexes('q')",
    "select fetchq.queue_enable_notify('q')",
    "select fetchq.queue_drop_logs('q', '0 s')",
    "select fetchq.queue_drop_metrics('q')",
    "select fetchq.queue_set_metrics_retention('q', '[]')",
    "select fetchq.queue_set_current_version('q', 1)",
    "select fetchq.queue_configure('q', '{\"ordered\": true}')",
    "select fetchq.queue_configure('q', '{\"max_active\": 3}')",
    "select fetchq.queue_configure('q', '{\"dead_letter\": \"other\"}'), fetchq.doc_kill('q', 'active')",
];

/// Slow calls, which are made once for each column.
const SLOW: [&str; 10] = [
    "metric_log_pack",
    "mnt",
    "queue_create",
    "queue_drop",
    "queue_grant",
    "queue_grants",
    "queue_revoke",
    "queue_truncate",
    "queue_truncate_all",
    "status",
];

/// All calls that a condition accepts, as the argument of `try`.
fn calls_of(accepts: impl Fn(&str) -> bool) -> Json {
    let new = calls()
        .into_iter()
        .filter(|call| !call.is_procedure && accepts(&call.name));
    let new = new.map(
        |call| json!({"name": call.name, "before": call.before, "call": call.with_literals()}),
    );
    let old = OLD_CALLS
        .iter()
        .map(|call| json!({"name": call, "before": [], "call": call}));
    Json::from_iter(new.chain(old))
}

/// The columns of the tables of `q`: the table, the column, its type, and whether it is in the primary key.
const COLUMNS: &str = "select c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
    where c.relnamespace = 'fetchq_data'::regnamespace
        and c.relname in ('q__docs', 'q__logs', 'q__metrics', 'q__history')
    order by c.oid, a.attnum";

/// What a value becomes of a column with another type: what looks like an address, a length of some
/// gigabytes, or the entries of a JSON array. The values of a column stay different ones.
const HOSTILE: [(&str, &str); 5] = [
    ("text", "'zzz/' || repeat('p~~~', 100) || {c}::text"),
    ("text", "{c}::text"),
    ("bigint", "94293790593024 + abs(hashtext({c}::text))"),
    (
        "bytea",
        "convert_to(repeat('~~~p', 100) || {c}::text, 'UTF8')",
    ),
    ("int", "hashtext(coalesce({c}::text, ''))"),
];

/// The statements that alter a column, each with what it is called.
fn alterations(table: &str, column: &str, ty: &str) -> Vec<String> {
    let alter = format!("alter table fetchq_data.{table}");
    let mut all: Vec<String> = HOSTILE
        .iter()
        .filter(|(new, _)| *new != ty && !(*new == "int" && ty == "integer"))
        .map(|(new, value)| {
            let value = value.replace("{c}", column);
            format!(
                "{alter} alter column {column} drop identity if exists, alter column {column} drop default;
                 {alter} alter column {column} type {new} using {value}"
            )
        })
        .collect();
    all.push(format!("{alter} drop column {column} cascade"));
    all.push(format!(
        "{alter} drop column {column} cascade, add column {column} bytea default '\\x7e7e7e70'"
    ));
    all
}

/// Alters a column in a transaction that goes on. What depends on the column goes first, where the server
/// demands that.
async fn alter(session: &Session, table: &str, alteration: &str) {
    session.sql("begin; savepoint s").await;
    if session.state(alteration).await.is_empty() {
        return;
    }
    session
        .sql(&format!(
            "rollback to s;
             do $$ declare i regclass; begin
                 for i in select indexrelid::regclass from pg_index
                     where indrelid = 'fetchq_data.{table}'::regclass and not indisprimary loop
                     execute format('drop index %s', i);
                 end loop;
             end $$"
        ))
        .await;
    session.sql(alteration).await;
}

/// A prepared database, in which `q` has rows in all its tables.
async fn prepared(name: &str) -> (fetchq_client_tests::Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session.sql("set client_min_messages = error").await;
    prepare_calls(&session).await;
    session.sql(ROWS).await;
    session.sql(TRY).await;
    (db, session)
}

#[tokio::test]
async fn every_function_with_every_column_of_another_type() {
    let (db, session) = prepared("altered_columns").await;
    let (all, fast) = (calls_of(|_| true), calls_of(|name| !SLOW.contains(&name)));
    let call = session
        .prepare_typed(
            "select name, outcome from public.try($1)",
            &[tokio_postgres::types::Type::JSONB],
        )
        .await
        .expect("a statement");
    let columns = session.rows(COLUMNS).await;
    assert_eq!(columns.len(), 25 + 7 + 4 + 24);
    let mut wrong = Vec::new();
    for column in &columns {
        let parts: Vec<&str> = column.split('|').collect();
        let [table, column, ty] = parts[..] else {
            panic!("{column}");
        };
        for (n, alteration) in alterations(table, column, ty).into_iter().enumerate() {
            let calls = if n == 0 { &all } else { &fast };
            alter(&session, table, &alteration).await;
            let outcomes = session.query(&call, &[calls]).await;
            let outcomes = outcomes.unwrap_or_else(|e| panic!("{alteration}: {e:?}"));
            session.sql("rollback").await;
            for outcome in outcomes {
                let (name, outcome): (String, String) = (outcome.get(0), outcome.get(1));
                if opens(&name) && !is_refused(&outcome, table, column) {
                    wrong.push(format!("{alteration}; {name}: {outcome:.300}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{}: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(40)]
    );
    db.remove().await;
}

/// Whether a call opens the queue, and so learns that a column is another one. Of the others some do not
/// read the altered table, and some read it in statements of their own.
fn opens(call: &str) -> bool {
    [
        "doc_append",
        "doc_append_many",
        "doc_complete",
        "doc_complete_many",
        "doc_drop",
        "doc_drop_many",
        "doc_errors",
        "doc_explain",
        "doc_extend",
        "doc_get",
        "doc_kill",
        "doc_lease",
        "doc_lease_any",
        "doc_pop",
        "doc_put",
        "doc_put_many",
        "doc_reject",
        "doc_reschedule",
        "doc_reschedule_many",
        "doc_revive",
        "doc_snooze",
        "docs_drop",
        "docs_kill",
        "docs_list",
        "docs_retry",
        "queue_history",
        "docs_extend",
        "mnt_run",
    ]
    .contains(&call)
        || ["doc_pick(", "doc_push(", "doc_upsert(", "mnt_make_pending("]
            .iter()
            .any(|name| call.contains(name))
}

/// Whether an outcome is the error that names the column. Another one is right where the call has an
/// argument that this test itself reads from the documents.
fn is_refused(outcome: &str, table: &str, column: &str) -> bool {
    let is_named = outcome.starts_with("42P16 ")
        && outcome.contains(&format!("fetchq_data.{table}"))
        && outcome.contains(&format!("\"{column}\""));
    let reads_itself = table == "q__docs" && ["subject", "lease"].contains(&column);
    is_named || reads_itself && !outcome.starts_with("gives")
}

/// The attack as it was found: in a session that has read the queue before, and without a transaction
/// around it.
#[tokio::test]
async fn a_column_of_another_type_is_refused_by_a_session_that_knows_the_queue() {
    let (db, session) = prepared("altered_known").await;
    let other = db.connect().await;
    for call in [
        "select subject, length(payload::text), last_error, headers from fetchq.doc_lease('other', 1)",
        "select subject, length(payload::text), last_error, headers from fetchq.doc_lease_any('{other}', max_docs => 1)",
        "select * from fetchq.docs_next('other', max_docs => 1)",
        "select * from fetchq.doc_pick('other')",
        "call fetchq.work('other', 'public.handle', max_docs => 1, idle_timeout => '1 ms')",
    ] {
        for (column, ty, value) in [
            ("payload", "text", "'zzz/' || repeat('p~~~', 100)"),
            ("last_error", "bigint", "94293790593024"),
            ("headers", "int", "2147483647"),
            ("iterations", "bytea", "'\\x7e7e7e70'"),
        ] {
            let case = format!("{call} with {column} {ty}");
            session
                .sql(
                    "select fetchq.queue_drop('other'); select fetchq.queue_create('other');
                     select fetchq.doc_put('other', 'a')",
                )
                .await;
            // The session knows the queue, and has plans for its statements.
            for direct in ["off", "on"] {
                other
                    .sql(&format!("set fetchq.direct = {direct}; begin"))
                    .await;
                let _ = other.state(call).await;
                other.sql("rollback").await;
            }
            session
                .sql(&format!(
                    "alter table fetchq_data.other__docs alter column {column} drop default;
                     alter table fetchq_data.other__docs alter column {column} type {ty} using {value}"
                ))
                .await;
            let error = other.simple_query(call).await.expect_err(&case);
            assert_eq!(state_of(&error), "42P16", "{case}: {error:?}");
            let said = error_of(&error).message();
            assert!(said.contains(&format!("\"{column}\"")), "{case}: {said}");
        }
    }
    db.remove().await;
}

/// The tables beside that of the documents are looked at again when they change, and a queue can be
/// dropped whatever it looks like.
#[tokio::test]
async fn a_change_of_each_table_is_noticed_and_undone() {
    let (db, session) = prepared("altered_tables").await;
    let other = db.connect().await;
    let lease = "select subject from fetchq.doc_lease('q', 1, duration => '1 ms')";
    for (table, column, before, after) in [
        ("logs", "message", "varchar", "text"),
        ("metrics", "value", "bigint", "numeric"),
        ("history", "subject", "varchar(255)", "text"),
        ("docs", "last_error", "text", "varchar"),
    ] {
        let alter = |ty: &str| {
            format!("alter table fetchq_data.q__{table} alter column {column} type {ty}")
        };
        other.sql(lease).await;
        session.sql(&alter(after)).await;
        let error = other.simple_query(lease).await.expect_err(table);
        assert_eq!(state_of(&error), "42P16", "{table}: {error:?}");
        session.sql(&alter(before)).await;
        other.sql(lease).await;
    }
    // Columns of the administrator, wherever they are.
    for table in ["docs", "logs", "metrics", "history"] {
        session
            .sql(&format!(
                "alter table fetchq_data.q__{table} add column mine int default 7"
            ))
            .await;
        other.sql(lease).await;
    }
    // A column that was dropped and added again is not where it was.
    session
        .sql(
            "alter table fetchq_data.q__docs drop column result;
             alter table fetchq_data.q__docs add column result jsonb",
        )
        .await;
    other.sql("select fetchq.doc_put('q', 'after')").await;
    wait_until("the document is leased", async || {
        other.column(lease).await.contains(&"after".to_owned())
    })
    .await;
    session
        .sql(
            "alter table fetchq_data.q__docs drop column payload;
             alter table fetchq_data.q__logs alter column message type bytea using '\\x';
             select fetchq.queue_drop('q')",
        )
        .await;
    db.remove().await;
}
