//! The plans of hot statements, as auto_explain shows them. They always use an index and are
//! always generic, for any statistics and settings of the session.

use fetchq_client_tests::{Server, Session, skips_test};

/// A hot call, the statements that prepare it, and the indexes it may use to read documents.
struct Hot {
    prepare: &'static str,
    call: &'static str,
    indexes: &'static [&'static str],
}

const KEY: &str = "q__docs_pkey";
const PICK: &str = "q__docs_pick_idx";
const DUE: &str = "q__docs_due_idx";

const LEASE: &str = "select fetchq.doc_push('q', 'hot', 7, 0, now(), '{}'); select fetchq.doc_pick('q', 7, 1, '1h')";
const LEASES: &str = "select fetchq.doc_put_many('q', '[{\"subject\": \"hot\", \"version\": 7}, {\"subject\": \"hot2\", \"version\": 7}]'); select fetchq.doc_pick('q', 7, 2, '1h')";
const PLANNED: &str = "insert into fetchq_data.q__docs (subject, status, next_iteration) values ('hot', 0, '2020-01-01')";
const ENDED: &str = "insert into fetchq_data.q__docs (subject, status, next_iteration, attempts) values ('hot', 2, '2020-01-01', 1)";
const LAST: &str = "insert into fetchq_data.q__docs (subject, status, next_iteration, attempts) values ('hot', 2, '2020-01-01', 5)";
const CALLS: &[Hot] = &[
    Hot {
        prepare: "",
        call: "doc_push('q', 'hot')",
        indexes: &[],
    },
    Hot {
        prepare: "",
        call: "doc_push('q', 0, now(), '(''hot'', 0, ''{}'', {DATA}), (''hot2'', 0, ''{}'', {DATA})')",
        indexes: &[],
    },
    Hot {
        prepare: "",
        call: "doc_put_many('q', '[{\"subject\": \"hot\"}, {\"subject\": \"hot2\", \"version\": 3}]')",
        indexes: &[],
    },
    Hot {
        prepare: "",
        call: "doc_append('q', '{}')",
        indexes: &[],
    },
    Hot {
        prepare: "",
        call: "doc_append_many('q', array['{}', '[]']::jsonb[])",
        indexes: &[],
    },
    Hot {
        prepare: "",
        call: "doc_upsert('q', 'hot', 0, 0, now(), '{}')",
        indexes: &[],
    },
    Hot {
        prepare: "select fetchq.doc_push('q', 'hot')",
        call: "doc_upsert('q', 'hot', 0, 1, now(), '{}')",
        indexes: &[KEY],
    },
    Hot {
        prepare: "select fetchq.doc_push('q', 'hot')",
        call: "doc_put_many('q', '[{\"subject\": \"hot\"}, {\"subject\": \"hot2\"}]', 'replace')",
        indexes: &[KEY],
    },
    Hot {
        prepare: "",
        call: "doc_pick('q', 3, 1, '5m')",
        indexes: &[PICK],
    },
    Hot {
        prepare: "",
        call: "doc_pick('q', 3, 10, '5m')",
        indexes: &[PICK],
    },
    Hot {
        prepare: "select fetchq.doc_append('q', '{}')",
        call: "doc_pick('q')",
        indexes: &[PICK],
    },
    Hot {
        prepare: "select fetchq.doc_append('q', '{}') from generate_series(1, 12)",
        call: "doc_pick('q', 10)",
        indexes: &[PICK],
    },
    Hot {
        prepare: LEASE,
        call: "doc_complete('q', 'hot')",
        indexes: &[KEY],
    },
    Hot {
        prepare: LEASE,
        call: "doc_reschedule('q', 'hot', now())",
        indexes: &[KEY],
    },
    Hot {
        prepare: LEASE,
        call: "doc_reject('q', 'hot', 'why', '{}')",
        indexes: &[KEY],
    },
    Hot {
        prepare: LEASE,
        call: "doc_kill('q', 'hot')",
        indexes: &[KEY],
    },
    Hot {
        prepare: LEASE,
        call: "doc_drop('q', 'hot')",
        indexes: &[KEY],
    },
    Hot {
        prepare: LEASES,
        call: "doc_complete_many('q', array['hot', 'hot2', 'nobody'])",
        indexes: &[KEY],
    },
    Hot {
        prepare: LEASES,
        call: "doc_drop_many('q', array['hot', 'hot2', 'nobody'])",
        indexes: &[KEY],
    },
    Hot {
        prepare: LEASES,
        call: "doc_reschedule_many('q', array['hot', 'hot2', 'nobody'], now())",
        indexes: &[KEY],
    },
    // The query that finds the reason for the failure.
    Hot {
        prepare: "",
        call: "doc_complete('q', 'nobody')",
        indexes: &[KEY],
    },
    Hot {
        prepare: PLANNED,
        call: "mnt_make_pending('q', 100)",
        indexes: &[DUE],
    },
    Hot {
        prepare: ENDED,
        call: "mnt_reschedule_orphans('q', 100)",
        indexes: &[DUE],
    },
    Hot {
        prepare: LAST,
        call: "mnt_mark_dead('q', 100)",
        indexes: &[DUE],
    },
];

/// Calls that may use the ready floors in memory alone, without any query.
fn may_be_silent(hot: &Hot) -> bool {
    hot.prepare.is_empty() && hot.call.starts_with("doc_pick(")
}

// Direct changes run no statements, so there would be no plans.
const EXPLAIN: &str = "load 'auto_explain';
    set fetchq.direct = off;
    set fetchq.strict = off;
    set auto_explain.log_min_duration = 0;
    set auto_explain.log_nested_statements = on;
    set auto_explain.log_level = notice;
    set auto_explain.log_format = text;
    set client_min_messages = notice";

/// Whether a notice is the plan of a statement on the documents. The statement that reads a
/// queue's catalog entries has the names of its indexes as parameters, which newer versions of
/// PostgreSQL show.
fn is_of_documents(notice: &str) -> bool {
    notice.contains("plan:") && notice.contains("q__docs") && !notice.contains("q.id as id,")
}

/// Runs every hot call twice, as a session with cached plans does.
async fn plans_are_right(session: &Session, circumstances: &str) {
    session.sql(EXPLAIN).await;
    let mut wrong = Vec::new();
    for hot in CALLS {
        for round in 1..=2 {
            session.sql(&format!("begin; {}", hot.prepare)).await;
            session.notices();
            session
                .sql(&format!("select * from fetchq.{}", hot.call))
                .await;
            let plans: Vec<String> = session
                .notices()
                .iter()
                .map(|n| n.message().to_owned())
                .filter(|m| is_of_documents(m))
                .collect();
            session.sql("rollback").await;
            let mut problem = |what: &str, plan: &str| {
                wrong.push(format!(
                    "{circumstances}, fetchq.{}, round {round}: {what}\n{plan}",
                    hot.call
                ));
            };
            if plans.is_empty() {
                if !may_be_silent(hot) {
                    problem("no plan was shown", "");
                }
                continue;
            }
            for plan in &plans {
                let (_, nodes) = plan
                    .split_once("Query Text:")
                    .expect("a plan of auto_explain");
                // The text after the statement.
                let at = nodes.find("(cost=").unwrap_or(0);
                let nodes = &nodes[nodes[..at].rfind('\n').unwrap_or(0)..];
                for bad in ["Seq Scan", "Bitmap", "Sort", "JIT:"] {
                    // A list that was passed in may be sorted, documents may not.
                    let of_list = bad == "Sort" && nodes.contains("Function Scan");
                    if nodes.contains(bad) && !of_list {
                        problem(bad, plan);
                    }
                }
                for line in nodes
                    .lines()
                    .filter(|line| line.contains("q__docs") && line.contains("Scan"))
                {
                    let allowed = (line.contains("Tid Scan on q__docs"))
                        || hot
                            .indexes
                            .iter()
                            .any(|index| line.contains(&format!("using {index} on ")));
                    if !allowed {
                        problem(&format!("reads by {line}"), plan);
                    }
                }
                // A custom plan would show values in place of parameters.
                for line in nodes
                    .lines()
                    .filter(|line| line.contains("Index Cond:") || line.contains("TID Cond:"))
                {
                    let generic = line.contains('$')
                        || line.contains("InitPlan")
                        || CONDITIONS.iter().any(|c| line.contains(c));
                    if !generic || line.contains("'hot'") || line.contains("'nobody'") {
                        problem(&format!("no generic plan: {line}"), plan);
                    }
                }
            }
            let used = |index: &&&str| {
                plans
                    .iter()
                    .any(|p| p.contains(&format!("using {index} on ")))
            };
            for index in hot.indexes.iter().filter(|index| !used(index)) {
                problem(&format!("{index} is not used"), &plans.join("\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Conditions without a parameter: those on the due index are constants of the statement, and
/// lists are joined.
const CONDITIONS: [&str; 3] = [
    "((status = 0) AND (next_iteration <= now()))",
    "((status = 2) AND (next_iteration < now()))",
    "((subject)::text = (i.subject)::text)",
];

/// Session settings that would mislead the planner.
const HOSTILE: &[&str] = &[
    "set plan_cache_mode = force_custom_plan",
    "set enable_indexscan = off",
    "set enable_tidscan = off; set enable_indexscan = off; set enable_indexonlyscan = off",
    "set random_page_cost = 1000000; set cpu_index_tuple_cost = 1000000",
    "set jit = on; set jit_above_cost = 0; set jit_inline_above_cost = 0; set jit_optimize_above_cost = 0",
    "set cursor_tuple_fraction = 1; set from_collapse_limit = 1; set geqo = on; set geqo_threshold = 2",
];

async fn under_all_settings(session: &Session, circumstances: &str) {
    plans_are_right(session, circumstances).await;
    for settings in HOSTILE {
        // Twice: with cached plans, and with plans that are made under these settings.
        session.sql(settings).await;
        plans_are_right(session, &format!("{circumstances}, then {settings}")).await;
        session.sql("discard all").await;
        session
            .sql(&format!(
                "{settings}; alter table fetchq_data.q__docs set (fillfactor = 80)"
            ))
            .await;
        plans_are_right(session, &format!("{circumstances}, {settings}")).await;
        session.sql("discard all").await;
    }
}

#[tokio::test]
async fn plans_on_empty_and_on_large_tables() {
    if skips_test("auto_explain") {
        return;
    }
    let db = Server::of_suite().database("plans").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q'); alter table fetchq_data.q__docs set (autovacuum_enabled = off)").await;
    under_all_settings(&session, "never analyzed").await;
    session
        .sql("analyze fetchq_data.q__docs; analyze fetchq.queues; analyze fetchq.counter_log")
        .await;
    under_all_settings(&db.connect().await, "analyzed when empty").await;

    // This session keeps the plans of the empty table.
    let old = db.connect().await;
    plans_are_right(&old, "analyzed when empty").await;
    session
        .sql(
            "insert into fetchq_data.q__docs (subject, version, priority, status, attempts, next_iteration, payload)
             select 'd' || i, i % 3, i % 5, s, (s = 2)::int * (i % 7),
                 case s when 3 then '2970-01-01' else now() + (i - 500000) * interval '1 second' end, '{}'
             from (select i, (array[0, 1, 1, 2, 3, 3, 3, -1])[1 + i % 8] as s from generate_series(1, 1000000) i) d",
        )
        .await;
    plans_are_right(&old, "a million documents, not analyzed").await;
    session.sql("vacuum analyze fetchq_data.q__docs").await;
    plans_are_right(&old, "a million documents, plans kept").await;
    under_all_settings(&db.connect().await, "a million documents").await;
    db.remove().await;
}

/// Calls that change documents without the executor, with the statements that prepare them.
const DIRECT: &[(&str, &str)] = &[
    ("", "doc_push('q', 'hot')"),
    ("", "doc_append('q', '{}')"),
    (
        "",
        "doc_append('q', '{}', max_attempts => 3, delay => '1 hour', headers => '{\"a\": 1}')",
    ),
    (
        "",
        "doc_put('q', 'hot', delay => '1 hour', headers => '{\"a\": 1}')",
    ),
    ("select fetchq.doc_append('q', '{}')", "doc_pick('q')"),
    (
        "select fetchq.doc_append('q', '{}') from generate_series(1, 12)",
        "doc_pick('q', 10)",
    ),
    (LEASE, "doc_complete('q', 'hot')"),
    (LEASE, "doc_reschedule('q', 'hot', now())"),
    (LEASE, "doc_kill('q', 'hot')"),
    (LEASE, "doc_drop('q', 'hot')"),
];

/// Returns the calls that showed the plan of a statement on the documents.
async fn with_statements(session: &Session, begin: &str) -> Vec<&'static str> {
    session.sql(EXPLAIN).await;
    session.sql("set fetchq.direct = on").await;
    let mut told = Vec::new();
    for (prepare, call) in DIRECT {
        session.sql(&format!("{begin}; {prepare}")).await;
        session.notices();
        session.sql(&format!("select * from fetchq.{call}")).await;
        let notices = session.notices();
        if notices.iter().any(|n| is_of_documents(n.message())) {
            told.push(*call);
        }
        session.sql("rollback").await;
    }
    told
}

#[tokio::test]
async fn single_documents_are_changed_directly_when_possible() {
    if skips_test("auto_explain") {
        return;
    }
    let db = Server::of_suite().database("plans_direct").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let all: Vec<&str> = DIRECT.iter().map(|(_, call)| *call).collect();
    assert_eq!(with_statements(&session, "begin").await, [""; 0]);
    let repeatable = "begin isolation level repeatable read";
    assert_eq!(with_statements(&session, repeatable).await, all);
    for (change, back) in [
        (
            "create index extra on fetchq_data.q__docs (created_at)",
            "drop index fetchq_data.extra",
        ),
        (
            "alter table fetchq_data.q__docs enable row level security, force row level security",
            "alter table fetchq_data.q__docs disable row level security, no force row level security",
        ),
        (
            "create trigger heard before update on fetchq_data.q__docs
                 for each row execute function suppress_redundant_updates_trigger()",
            "drop trigger heard on fetchq_data.q__docs",
        ),
        (
            "alter table fetchq_data.q__docs add check (priority < 100)",
            "alter table fetchq_data.q__docs drop constraint q__docs_priority_check",
        ),
    ] {
        session.sql(change).await;
        assert_eq!(with_statements(&session, "begin").await, all, "{change}");
        session.sql(back).await;
        assert_eq!(with_statements(&session, "begin").await, [""; 0], "{back}");
    }
    // With an additional column, existing rows keep its value, and new rows may need its default.
    session
        .sql("alter table fetchq_data.q__docs add column extra int")
        .await;
    assert_eq!(with_statements(&session, "begin").await, all[..4]);
    db.remove().await;
}
