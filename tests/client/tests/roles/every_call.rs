//! Every function, procedure, view and table, with each right alone.

use std::collections::BTreeMap;

use fetchq_client_tests::{calls, needs};

use super::*;

/// What a call gave: its rows or its error as text, and the SQLSTATE, "" for none.
struct Outcome {
    state: String,
    text: String,
}

/// Calls a function with arguments that are right for the queues of application a.
async fn outcome(session: &Session, function: &Function) -> Outcome {
    let statement = function.prepare(session).await;
    match Function::call(session, &statement, &function.valid()).await {
        Ok(rows) => {
            let values = rows
                .iter()
                .flat_map(|row| (0..row.len()).map(|at| text_of(row, at)));
            Outcome {
                state: String::new(),
                text: values.collect::<Vec<_>>().join("|"),
            }
        }
        Err(e) => Outcome {
            state: fetchq_client_tests::state_of(&e),
            text: format!("{e:?}"),
        },
    }
}

/// Calls every function, and makes the calls of procedures. Returns what was returned or refused.
async fn call_all(session: &Session, all: &[Function]) -> Vec<String> {
    let mut seen = Vec::new();
    for function in all {
        let Outcome { state, text } = outcome(session, function).await;
        seen.push(format!("{}: {text}: {state}", function.signature()));
    }
    for call in calls().into_iter().filter(|call| call.is_procedure) {
        let sql = call.with_literals();
        seen.push(match session.simple_query(&sql).await {
            Ok(rows) => format!("{sql}: {rows:?}: "),
            Err(e) => format!("{sql}: {e:?}: {}", fetchq_client_tests::state_of(&e)),
        });
    }
    let notices = session.notices();
    seen.extend(notices.iter().map(|notice| format!("{notice:?}")));
    seen
}

/// Fails when a document, a message or a schedule of application a is shown.
fn shows_nothing(role: &str, seen: &[String]) {
    shows_none(role, seen, &["secret"]);
}

fn shows_none(role: &str, seen: &[String], markers: &[&str]) {
    let is_shown = |line: &&String| markers.iter().any(|marker| line.contains(marker));
    let shown: Vec<&String> = seen.iter().filter(is_shown).collect();
    assert!(shown.is_empty(), "{role}: {shown:#?}");
}

#[tokio::test]
async fn no_call_of_another_application_reads_changes_or_gains_anything() {
    let mut cast = Cast::new("roles_calls").await;
    let all = functions(&cast.admin).await;
    let before = (state(&cast.admin).await, rights(&cast.admin).await);
    for role in cast.strangers() {
        let session = cast.session(&role).await;
        let seen = call_all(&session, &all).await;
        let after = (state(&cast.admin).await, rights(&cast.admin).await);
        assert_eq!(after, before, "{role}: {seen:#?}");
        shows_none(&role, &seen, &["secret", "concealed"]);
        // Most calls are refused with the error that names the queue.
        let refused = seen.iter().filter(|line| line.ends_with(": 42501")).count();
        assert!(refused > 70, "{role}: {refused} of {seen:#?}");
    }
    // The queue works as before.
    let push = "select fetchq.doc_push('q', 'after')";
    assert_eq!(cast.a.text(push).await, "1");
    counters_are_exact(&mut cast.admin, "q").await;
    cast.remove().await;
}

/// A reader changes nothing in the queue, and a producer reads no document of it.
#[tokio::test]
async fn a_reader_changes_nothing_and_a_producer_reads_nothing() {
    let cast = Cast::new("roles_narrow").await;
    let all = functions(&cast.admin).await;
    let before = (state(&cast.admin).await, rights(&cast.admin).await);
    let reader = cast.session("fetchq_app_a_reader").await;
    let seen = call_all(&reader, &all).await;
    let after = (state(&cast.admin).await, rights(&cast.admin).await);
    assert_eq!(after, before, "{seen:#?}");
    let producer = cast.session("fetchq_app_a_producer").await;
    let mut seen = call_all(&producer, &all).await;
    // Who knows the subject may wait for the result.
    seen.retain(|line| !line.starts_with("call fetchq.doc_await("));
    shows_nothing("a producer", &seen);
    assert_eq!(rights(&cast.admin).await, before.1);
    cast.remove().await;
}

/// The least right with which a call is not refused, of the calls of fetchq 4 that tests/contract.json
/// does not have.
const NEEDS_OF_FETCHQ_4: &[(&str, &str)] = &[
    (
        "manager",
        "metric_log_set metric_set metric_snap queue_create_indexes queue_disable_notify
         queue_drop_indexes queue_drop_logs queue_drop_metrics queue_enable_notify
         queue_set_current_version queue_set_logs_retention queue_set_max_attempts
         queue_set_metrics_retention",
    ),
    (
        "none",
        "init metric_compute_all metric_get_all metric_get_total metric_reset_all mnt_job_pick
         mnt_job_run queue_status upgrade__310__320 upgrade__320__330 upgrade__330__400",
    ),
    ("producer", "doc_push doc_upsert"),
    ("reader", "metric_compute queue_top"),
    (
        "any right",
        "metric_get metric_get_common queue_drop_version queue_get_id",
    ),
    (
        "owner of the extension",
        "destroy_with_terrible_consequences mnt_job_reschedule utils_ts_retain",
    ),
    (
        "worker",
        "doc_pick metric_increment metric_log_decrement metric_log_increment mnt_make_pending
         mnt_mark_dead mnt_reschedule_orphans",
    ),
];

#[tokio::test]
async fn each_right_allows_these_calls_and_no_others() {
    let cast = Cast::new("roles_needs").await;
    let all = functions(&cast.admin).await;
    let letters = [
        ('n', "fetchq_app_nobody"),
        ('r', "fetchq_app_a_reader"),
        ('p', "fetchq_app_a_producer"),
        ('w', "fetchq_app_a_worker"),
        ('m', "fetchq_app_a_manager"),
        ('o', "fetchq_app_a"),
    ];
    let mut may: BTreeMap<String, String> = BTreeMap::new();
    for (letter, role) in letters {
        let session = cast.session(role).await;
        session.sql("set fetchq.strict = off").await;
        for function in &all {
            session.sql("begin").await;
            let Outcome { state, text } = outcome(&session, function).await;
            session.sql("rollback").await;
            let may = may.entry(function.name.clone()).or_default();
            match state.as_str() {
                "" if !may.contains(letter) => may.push(letter),
                "" | "42501" => {}
                _ => panic!("{role}: {}: {text}", function.signature()),
            }
        }
    }
    // Who may do it with less may do it with more.
    let least = |may: &str| match may {
        "nrpwmo" => "none",
        "rpwmo" => "any right",
        "rwmo" => "reader",
        "pwmo" => "producer",
        "wmo" => "worker",
        "mo" => "manager",
        "o" => "owner",
        "" => "owner of the extension",
        other => panic!("{other}"),
    };
    let of_fetchq4 = |name: &str| {
        NEEDS_OF_FETCHQ_4
            .iter()
            .find(|(_, names)| names.split_whitespace().any(|n| n == name))
            .map(|(right, _)| *right)
    };
    let mut wrong = Vec::new();
    for (name, may) in &may {
        let (found, expected) = (least(may), needs(name).or(of_fetchq4(name)));
        if expected != Some(found) {
            wrong.push(format!("{name} needs {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    cast.remove().await;
}

#[tokio::test]
async fn no_view_or_table_shows_anything_of_another_application() {
    let cast = Cast::new("roles_views").await;
    let relations = cast
        .admin
        .column(
            "select c.oid::regclass::text from pg_class c where c.relkind in ('r', 'v', 'm', 'p', 'S')
                 and (c.relnamespace = 'fetchq'::regnamespace or c.relname ~ '^(q|other)__') order by 1",
        )
        .await;
    assert!(relations.len() > 30, "{relations:?}");
    for role in cast.strangers() {
        let session = cast.session(&role).await;
        let mut readable = Vec::new();
        for relation in &relations {
            match session
                .simple_query(&format!("select * from {relation}"))
                .await
            {
                Ok(rows) => {
                    let seen = [format!("{relation}: {rows:?}")];
                    shows_none(&role, &seen, &["secret", "concealed"]);
                    readable.push(relation.trim_start_matches("fetchq."));
                }
                Err(e) => assert_eq!(fetchq_client_tests::state_of(&e), "42501", "{relation}"),
            }
        }
        let views = "dead_letters history leases metric_samples metrics_live progress workers";
        assert_eq!(readable.join(" "), views, "{role}");
        // The text of the library's own statements changes nothing, and neither does what locks.
        for sql in [
            "select id from fetchq.queues where name operator(pg_catalog.=) 'q' for key share",
            "select from fetchq_data.q__docs for update",
            "copy fetchq_data.q__docs (payload) to stdout",
            "table fetchq_data.q__docs",
            "explain analyze select payload from fetchq_data.q__docs",
            "select query_to_xml('table fetchq_data.q__docs', true, true, '')",
            "select currtid2('fetchq_data.q__docs', '(0,1)')",
            "insert into fetchq_data.q__docs (subject) values ('active') on conflict (subject) do update set payload = excluded.payload returning payload",
            "delete from fetchq_data.q__history",
            "truncate fetchq_data.q__logs",
            "update fetchq.queues set is_active = false",
            "insert into fetchq.schedules (name, queue, every) values ('x', 'q', '1 s')",
        ] {
            let state = session.state(sql).await;
            // Newer servers have no currtid2.
            assert!(
                state == "42501" || state == "42883",
                "{role}: {sql}: {state}"
            );
        }
        // The statistics of the planner have values of the documents.
        cast.admin.sql("analyze fetchq_data.q__docs").await;
        let statistics = "select count(*) from pg_stats where schemaname = 'fetchq_data' and tablename like 'q\\_\\_%'";
        assert_eq!(session.text(statistics).await, "0", "{role}");
    }
    cast.remove().await;
}

/// What is shown of all queues is what the caller has a right on.
#[tokio::test]
async fn each_application_sees_its_own() {
    let cast = Cast::new("roles_own").await;
    let (a, b) = (&cast.a, &cast.b);
    for (sql, own) in [
        ("select name from fetchq.queue_status()", "mine"),
        ("select distinct queue from fetchq.metrics_live", "mine"),
        ("select queue from fetchq.metric_get_all()", "mine"),
        ("select queue from fetchq.metric_compute_all()", "mine"),
        ("select distinct queue from fetchq.queue_grants()", "mine"),
        (
            "select current_value from fetchq.metric_get_total('cnt')",
            "1",
        ),
    ] {
        assert_eq!(b.column(sql).await, [own], "{sql}");
    }
    for sql in [
        "select name from fetchq.schedule_list()",
        "select subject from fetchq.lease_list()",
        "select subject from fetchq.leases",
        "select name from fetchq.workers",
        "select subject from fetchq.queue_history()",
        "select subject from fetchq.history",
        "select queue from fetchq.trace('active')",
        "select queue from fetchq.progress where queue <> 'mine'",
        "select subject from fetchq.doc_lease_any(array['mine']) where subject <> 'm'",
    ] {
        assert_eq!(b.column(sql).await, [] as [&str; 0], "{sql}");
    }
    let names = "select name from fetchq.queue_status() order by 1";
    assert_eq!(a.column(names).await, ["other", "q"]);
    let workers = "select name from fetchq.workers where name = 'mine'";
    assert_eq!(a.column(workers).await, ["mine"]);
    let schedules = "select name from fetchq.schedule_list() order by 1";
    assert_eq!(a.column(schedules).await, ["nightly", "of a secret"]);
    cast.remove().await;
}
