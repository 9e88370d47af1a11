//! No statement of fetchq uses an operator that is looked up through the search_path.
//! pg_stat_statements records the statements as the server received them.

use fetchq_client_tests::{
    Cluster, Function, Session, functions, prepare_queue, skips_test, wait_until,
};

/// Finds the first operator of a statement that does not name its schema.
///
/// Quoted text, comments, casts, named arguments, assignments of UPDATE and SET, storage
/// parameters, `count(*)` and `select *` are not operators.
fn bare_operator(sql: &str) -> Option<String> {
    const CHARACTERS: &str = "+-*/<>=~!@#%^&|`?";
    let bytes: Vec<char> = sql.chars().collect();
    let mut at = 0;
    // The words and signs before the position, and where a list of assignments is open.
    let mut before: Vec<String> = Vec::new();
    let mut depth = 0;
    let mut assignments: Vec<usize> = Vec::new();
    let ends_with = |at: usize, text: &str| {
        let end: Vec<char> = text.chars().collect();
        bytes[at..].starts_with(&end)
    };
    while at < bytes.len() {
        let c = bytes[at];
        let start = at;
        if c.is_whitespace() {
            at += 1;
            continue;
        }
        if ends_with(at, "--") {
            while at < bytes.len() && bytes[at] != '\n' {
                at += 1;
            }
            continue;
        }
        if ends_with(at, "/*") {
            while at < bytes.len() && !ends_with(at, "*/") {
                at += 1;
            }
            at += 2;
            continue;
        }
        if c == '\'' || c == '"' {
            at += 1;
            while at < bytes.len() && (bytes[at] != c || bytes.get(at + 1) == Some(&c)) {
                at += if bytes[at] == c { 2 } else { 1 };
            }
            at += 1;
            before.push("quoted".to_owned());
            continue;
        }
        if c.is_alphanumeric() || c == '_' || c == '$' {
            while at < bytes.len() && (bytes[at].is_alphanumeric() || "_$".contains(bytes[at])) {
                at += 1;
            }
            let word: String = bytes[start..at].iter().collect::<String>().to_lowercase();
            if word == "operator" {
                // operator(pg_catalog.=)
                while at < bytes.len() && bytes[at] != ')' {
                    at += 1;
                }
                let named: String = bytes[start..at].iter().collect();
                if !named.replace(' ', "").starts_with("operator(pg_catalog.") {
                    return Some(named);
                }
                at += 1;
            }
            if word == "set" {
                assignments.push(depth);
            } else if ["where", "from", "returning"].contains(&word.as_str()) {
                assignments.retain(|open| *open != depth);
            } else if ["like", "ilike", "similar", "between"].contains(&word.as_str()) {
                return Some(word);
            }
            if word == "in" && sql_after(&bytes, at).starts_with('(') {
                return Some("in".to_owned());
            }
            before.push(word);
            continue;
        }
        if CHARACTERS.contains(c) {
            while at < bytes.len() && CHARACTERS.contains(bytes[at]) {
                at += 1;
            }
            let operator: String = bytes[start..at].iter().collect();
            let last = before.last().map_or("(", String::as_str);
            let is_star = operator == "*"
                && ["(", ",", ".", "select", "returning", "distinct"].contains(&last);
            let is_sign = operator == "-"
                && !(last == "quoted"
                    || last == ")"
                    || last == "]"
                    || last.starts_with('$')
                    || last.starts_with(|c: char| c.is_ascii_digit()));
            let is_assignment = operator == "=" && assignments.contains(&depth);
            if operator != "=>" && !is_star && !is_sign && !is_assignment {
                return Some(operator);
            }
            before.push(operator);
            continue;
        }
        at += 1;
        match c {
            // A cast, or an assignment of PL/pgSQL.
            ':' if at < bytes.len() && (bytes[at] == ':' || bytes[at] == '=') => at += 1,
            '(' => {
                depth += 1;
                if ["with", "set"].contains(&before.last().map_or("", String::as_str)) {
                    assignments.push(depth);
                }
            }
            ')' => {
                assignments.retain(|open| *open < depth);
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        before.push(c.to_string());
    }
    None
}

fn sql_after(text: &[char], at: usize) -> String {
    text[at..]
        .iter()
        .skip_while(|c| c.is_whitespace())
        .collect()
}

#[test]
fn bare_operators_are_found() {
    for sql in [
        "select a = b",
        "select a from t where x operator(pg_catalog.=) 1 and y <> 2",
        "update t set a = b where c = 1",
        "update t set a = b + 1 where c operator(pg_catalog.=) 1",
        "select x * 2",
        "select x from t where y in (1, 2)",
        "select d ->> 'a'",
        "select a operator(public.=) b",
        "select now() - $1",
    ] {
        assert!(bare_operator(sql).is_some(), "{sql}");
    }
    for sql in [
        "select a operator(pg_catalog.=) b, 'x = y', \"a=b\", c::text -- d = e",
        "update only t d set a = $1, b = coalesce($2, d.b) where d.c operator(pg_catalog.=) $3 returning *",
        "insert into t (a) values ($1) on conflict (a) do update set a = excluded.a returning a",
        "select count(*), t.* from t, f(a => 1)",
        "select * from t where a operator(pg_catalog.=) any ($1)",
        "create table t (a int) with (fillfactor = 80, autovacuum_vacuum_threshold = 2000)",
        "select -1, (-1), f(-1)",
        "set local x = 'y'",
        "select '{}' /* a = b */",
    ] {
        assert_eq!(bare_operator(sql), None, "{sql}");
    }
}

/// Calls that need a queue with settings: limits, order, history, dead letters, sessions.
const CALLS: [&str; 89] = [
    "queue_create('dead')",
    "queue_create('life')",
    "queue_enable_notify('life')",
    "queue_configure('life', '{\"dead_letter\": \"dead\"}')",
    "queue_configure('life', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}}')",
    "queue_configure('life', '{\"retry\": {\"base\": \"1 second\", \"factor\": 2, \"max_delay\": \"1 minute\", \"jitter\": 0.1}, \"max_attempts\": 2}')",
    "doc_push('life', 'a', '{}', now() - interval '1 second')",
    "doc_push('life', 0, now(), '(''l1'', 0, ''{}'', {DATA}), (''l2'', 1, ''{}'', {DATA})')",
    "doc_put_many('life', '[{\"subject\": \"m1\"}, {\"subject\": \"m2\", \"priority\": 3}, {\"subject\": \"n1\"}, {\"subject\": \"n2\"}]')",
    "doc_append_many('life', array['{}', '{}']::jsonb[])",
    "doc_upsert('life', 'a', 0, 1, now(), '{}')",
    "doc_put('life', 'a', '{\"x\": 1}', mode => 'merge')",
    "doc_put('life', 'p1', '{}', now() + interval '1 hour', mode => 'earliest')",
    "doc_put('life', 'p1', '{}', now() + interval '1 minute', mode => 'earliest')",
    "doc_put_many('life', '[{\"subject\": \"p1\", \"mode\": \"replace\"}, {\"subject\": \"a\", \"mode\": \"replace\"}, {\"subject\": \"u1\"}, {\"subject\": \"p2\"}]')",
    "doc_pick('life', 0, 3, '1 minute')",
    "doc_extend('life', 'm2', '2 minutes')",
    "doc_reject('life', 'm2', 'failed', '{}')",
    "doc_complete_many('life', array(select subject::text from fetchq.leases where queue = 'life'))",
    "doc_pick('life', 0, 3, '1 minute')",
    "doc_reschedule_many('life', array(select subject::text from fetchq.leases where queue = 'life'), now())",
    "doc_pick('life', 0, 3, '1 minute')",
    "doc_drop_many('life', array(select subject::text from fetchq.leases where queue = 'life'))",
    "doc_pop('life', max_docs => 1)",
    "doc_cancel('life', 'p1')",
    "docs_kill('life', '{\"subject\": \"u1\"}')",
    "queue_create('plain')",
    "doc_push('plain', 'r1')",
    "doc_pick('plain')",
    "doc_kill('plain', 'r1')",
    "doc_revive('plain', 'r1')",
    "docs_kill('plain', '{\"all\": true}')",
    "docs_retry('plain')",
    "docs_set_priority('plain', 3)",
    "docs_set_due('plain', now(), filter => '{\"all\": true}')",
    "doc_set_due('plain', 'r1', '2030-01-01')",
    "doc_set_priority('plain', 'r1', 5)",
    "metric_snap('plain')",
    "metric_history('plain')",
    "metric_history('plain', step => '5 minutes')",
    "lease_list('plain', 5)",
    "queue_history('life', '{\"subject_like\": \"a%\"}', 5)",
    "queue_history('life', '{}', 5)",
    "queue_redrive('dead', dry_run => true)",
    "docs_move('plain', 'dead', '{\"all\": true}')",
    "queue_redrive('life')",
    "queue_redrive('dead')",
    "queue_trim_history('life')",
    "queue_history('life')",
    "queue_configure('life', '{\"max_active\": 5}')",
    "queue_configure('life', '{\"rate\": {\"picks\": 100, \"per\": \"1 second\"}}')",
    "doc_push('life', 'c1', '{}', now() - interval '1 second')",
    "doc_pick('life', 0, 3, '1 minute')",
    "doc_kill('life', 'c1')",
    "queue_configure('life', '{\"max_active\": 2}')",
    "queue_configure('life', '{\"ordered\": true}')",
    "doc_put('life', 'o1', '{}', ordering_key => 'k')",
    "doc_put('life', 'o2', '{}', ordering_key => 'k')",
    "doc_put('life', 'o3', '{}', ordering_key => 'k')",
    "doc_pick('life', 0, 9, '0 seconds')",
    "mnt_run('life', 100)",
    "doc_pick('life', 0, 9, '1 minute')",
    "doc_snooze('life', 'o1')",
    "doc_drop('life', 'o1')",
    "docs_drop('life', '{\"status\": [\"pending\"]}')",
    "queue_configure('life', '{\"ordered\": false, \"max_active\": 9, \"max_active_per_key\": 2}')",
    "doc_put('life', 'p1', '{}', ordering_key => 'p')",
    "doc_put('life', 'p2', '{}', ordering_key => 'p')",
    "doc_put('life', 'p3', '{}', ordering_key => 'p')",
    "doc_put('life', 'p4', '{}', ordering_key => 'q')",
    "doc_put('life', 'p5', '{}', ordering_key => 'q')",
    "doc_pick('life', 0, 9, '0 seconds')",
    "mnt_run('life', 100)",
    "doc_pick('life', 0, 9, '1 minute')",
    "docs_settle('life', '[{\"subject\": \"p1\", \"action\": \"complete\"}, {\"subject\": \"p4\", \"action\": \"complete\"}, {\"subject\": \"p5\", \"action\": \"snooze\", \"delay\": \"0 s\"}]')",
    "docs_drop('life', '{\"status\": [\"pending\"]}')",
    "worker_release('operators')",
    "worker_stop('operators')",
    "queue_pause('life')",
    "queue_resume('life')",
    "queue_drop_indexes('life')",
    "queue_create_indexes('life')",
    "queue_configure('life', '{\"max_active_per_key\": null}')",
    "queue_truncate('life', true)",
    "schedule_create('s', 'life', '* * * * * *')",
    "mnt()",
    "queue_drop('life')",
    "queue_drop('plain')",
    "queue_drop('dead')",
];

/// Calls every function with valid arguments, and `CALLS`.
async fn call_everything(session: &Session, all: &[Function]) {
    for function in all {
        session.sql("begin").await;
        let statement = function.prepare(session).await;
        let result = Function::call(session, &statement, &function.valid()).await;
        session.sql("rollback").await;
        assert!(result.is_ok(), "{}: {result:?}", function.signature());
    }
    for call in CALLS {
        session.sql(&format!("select fetchq.{call}")).await;
    }
}

#[tokio::test]
async fn every_statement_names_the_schema_of_its_operators() {
    if skips_test("pg_stat_statements") {
        return;
    }
    let preload = match std::env::var("FETCHQ_NO_PRELOAD").as_deref() {
        Ok("1") => "pg_stat_statements",
        _ => "fetchq,pg_stat_statements",
    };
    let cluster = Cluster::new(
        "operators",
        &format!(
            "shared_preload_libraries = '{preload}'\npg_stat_statements.track = all\npg_stat_statements.max = 20000\nfsync = off"
        ),
    );
    cluster.start();
    let db = cluster.server().database("operators").await;
    let session = db.connect().await;
    session.sql("create extension pg_stat_statements").await;
    prepare_queue(&session).await;
    session
        .sql("set fetchq.worker = 'operators'; set fetchq.session_leases = 'keep'")
        .await;
    // The statements of the install script are not those of the library.
    session.sql("select pg_stat_statements_reset()").await;
    let all = functions(&session).await;
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        call_everything(&session, &all).await;
    }
    // The background worker also runs statements.
    if preload.starts_with("fetchq") {
        session
            .sql("alter system set fetchq.background_worker = on")
            .await;
        session.sql("select pg_reload_conf()").await;
        // A planned document gives it document maintenance to do; its job is not run by the clock.
        session
            .sql("update fetchq.jobs set next_iteration = now()")
            .await;
        session
            .sql("select fetchq.doc_push('q', 'soon', 0, 0, now() + interval '200 milliseconds', '{}')")
            .await;
        let late = "select (select count(*) from fetchq.jobs where task <> 'mnt' and next_iteration <= now())
            + (select count(*) from fetchq_data.q__docs where subject = 'soon' and status = 0)";
        wait_until("the background worker has run the jobs", async || {
            session.column(late).await == ["0"]
        })
        .await;
    }
    let rows = session
        .query(
            "select query from pg_stat_statements(true) s
             where s.dbid = (select oid from pg_database where datname = current_database())",
            &[],
        )
        .await
        .expect("pg_stat_statements");
    let mut checked = 0;
    let mut bare = Vec::new();
    for row in rows {
        let query: String = row.get(0);
        // What this test sends itself, and the install script.
        let is_ours = [
            "select fetchq.",
            "select * from fetchq.",
            "call fetchq.",
            "create ",
            "select query from",
            "select (select count(*) from fetchq.jobs",
        ]
        .iter()
        .any(|start| query.to_lowercase().starts_with(start))
            || !query.contains("fetchq");
        if is_ours {
            continue;
        }
        checked += 1;
        if let Some(operator) = bare_operator(&query) {
            bare.push(format!("{operator}: {query}"));
        }
    }
    assert!(checked > 150, "only {checked} statements were recorded");
    assert!(
        bare.is_empty(),
        "{} of {checked}:\n{}",
        bare.len(),
        bare.join("\n---\n")
    );
}
