//! Every verb keeps or writes the columns as it must.

use fetchq_client_tests::{Server, Session};

use super::{COLUMNS, DOCS, KEEP, PICKED_AGAIN, PICKS, pick};

/// A verb, and the columns of the document afterwards.
struct Verb {
    name: &'static str,
    /// Statements before the document is picked: settings of the queue.
    before: &'static str,
    /// The statement, which may use the lease of the pick as `:lease`. "": the pick alone.
    call: &'static str,
    /// The columns of [`COLUMNS`] where the document is afterwards.
    expected: &'static str,
    /// Where that is: the table, and a condition.
    at: &'static str,
}

const HISTORY: &str = "fetchq_data.q__history d";
const LETTERS: &str = "fetchq_data.letters__docs d";

/// What a document has that was picked, with a result of before and the progress of this lease.
const PICKED: &str = r#"{"of": "producer"}|1577836800|t|{"old": 1}|{"done": 7}"#;
const WITHOUT_RESULT: &str = r#"{"of": "producer"}|1577836800|t||{"done": 7}"#;
/// A document that has succeeded needs no progress any more.
const SUCCEEDED: &str = r#"{"of": "producer"}|1577836800|t||"#;
const RESULT: &str = r#"{"of": "producer"}|1577836800|t|{"new": 2}|"#;

const NO_WAIT: &str =
    "update fetchq_data.q__docs set next_iteration = now() - interval '1 second' where status = 2;";

const fn verb(
    name: &'static str,
    before: &'static str,
    call: &'static str,
    at: &'static str,
    expected: &'static str,
) -> Verb {
    Verb {
        name,
        before,
        call,
        expected,
        at,
    }
}

const VERBS: &[Verb] = &[
    verb("pick", "", "", DOCS, PICKED_AGAIN),
    verb(
        "complete",
        "",
        "{progress} select fetchq.doc_complete('q', 'a', lease => :lease)",
        DOCS,
        SUCCEEDED,
    ),
    verb(
        "complete_many",
        "",
        "{progress} select fetchq.doc_complete_many('q', '{a}', lease => :lease)",
        DOCS,
        SUCCEEDED,
    ),
    verb(
        "complete_many with payloads",
        "",
        "{progress} select fetchq.doc_complete_many('q', '{a}', array['{}']::jsonb[], :lease)",
        DOCS,
        SUCCEEDED,
    ),
    verb(
        "complete into the history",
        KEEP,
        "{progress} select fetchq.doc_complete('q', 'a', lease => :lease)",
        HISTORY,
        SUCCEEDED,
    ),
    verb(
        "kill",
        "",
        "{progress} select fetchq.doc_kill('q', 'a', lease => :lease)",
        DOCS,
        WITHOUT_RESULT,
    ),
    verb(
        "kill into the history",
        KEEP,
        "{progress} select fetchq.doc_kill('q', 'a', lease => :lease)",
        HISTORY,
        WITHOUT_RESULT,
    ),
    verb(
        "kill into dead letters",
        "select fetchq.queue_configure('q', '{\"dead_letter\": \"letters\"}')",
        "{progress} select fetchq.doc_kill('q', 'a', lease => :lease)",
        LETTERS,
        WITHOUT_RESULT,
    ),
    verb(
        "drop into the history",
        KEEP,
        "{progress} select fetchq.doc_drop('q', 'a', lease => :lease)",
        HISTORY,
        WITHOUT_RESULT,
    ),
    verb(
        "drop_many into the history",
        KEEP,
        "{progress} select fetchq.doc_drop_many('q', '{a}', :lease)",
        HISTORY,
        WITHOUT_RESULT,
    ),
    verb(
        "reject",
        "",
        "{progress} select fetchq.doc_reject('q', 'a', 'no', null, lease => :lease)",
        DOCS,
        PICKED,
    ),
    verb(
        "reject for the last time",
        "select fetchq.queue_set_max_attempts('q', 1)",
        "{progress} select fetchq.doc_reject('q', 'a', 'no', null, lease => :lease)",
        DOCS,
        WITHOUT_RESULT,
    ),
    verb(
        "reject into dead letters",
        "select fetchq.queue_set_max_attempts('q', 1), fetchq.queue_configure('q', '{\"dead_letter\": \"letters\"}')",
        "{progress} select fetchq.doc_reject('q', 'a', 'no', null, lease => :lease)",
        LETTERS,
        WITHOUT_RESULT,
    ),
    verb(
        "reschedule",
        "",
        "{progress} select fetchq.doc_reschedule('q', 'a', '2100-01-01', lease => :lease)",
        DOCS,
        SUCCEEDED,
    ),
    verb(
        "reschedule_many",
        "",
        "{progress} select fetchq.doc_reschedule_many('q', '{a}', '2100-01-01', lease => :lease)",
        DOCS,
        SUCCEEDED,
    ),
    verb(
        "snooze",
        "",
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease)",
        DOCS,
        PICKED,
    ),
    verb(
        "extend",
        "",
        "{progress} select fetchq.doc_extend('q', 'a', '1 hour', :lease)",
        DOCS,
        PICKED,
    ),
    verb(
        "cancel",
        "",
        "{progress} select fetchq.doc_cancel('q', 'a')",
        DOCS,
        WITHOUT_RESULT,
    ),
    verb(
        "docs_kill",
        "",
        "{progress} select fetchq.docs_kill('q', '{\"status\": \"active\"}')",
        DOCS,
        WITHOUT_RESULT,
    ),
    verb(
        "an orphan",
        "",
        "{progress} {no_wait} select fetchq.mnt_run('q', 100)",
        DOCS,
        PICKED,
    ),
    verb(
        "an orphan alone",
        "",
        "{progress} {no_wait} select fetchq.mnt_reschedule_orphans('q', 100)",
        DOCS,
        PICKED,
    ),
    verb(
        "dead",
        "select fetchq.queue_set_max_attempts('q', 1)",
        "{progress} {no_wait} select fetchq.mnt_run('q', 100)",
        DOCS,
        WITHOUT_RESULT,
    ),
    verb(
        "dead alone",
        "select fetchq.queue_set_max_attempts('q', 1)",
        "{progress} {no_wait} select fetchq.mnt_mark_dead('q', 100)",
        DOCS,
        WITHOUT_RESULT,
    ),
    verb(
        "release",
        "",
        "{progress} select fetchq.worker_release('columns')",
        DOCS,
        PICKED,
    ),
    verb(
        "put of an active document",
        "",
        "{progress} select fetchq.doc_put('q', 'a', '{}', mode => 'replace,reset')",
        DOCS,
        PICKED,
    ),
    verb(
        "replace",
        "",
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease); select fetchq.doc_put('q', 'a', '{}', mode => 'replace')",
        DOCS,
        "|1577836800|t||",
    ),
    verb(
        "reset",
        "",
        "{progress} select fetchq.doc_complete('q', 'a', lease => :lease); select fetchq.doc_put('q', 'a', '{}', mode => 'reset')",
        DOCS,
        "||||",
    ),
    verb(
        "merge",
        "",
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease); select fetchq.doc_put('q', 'a', '{}', mode => 'merge')",
        DOCS,
        PICKED,
    ),
    verb(
        "upsert",
        "",
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease); select fetchq.doc_upsert('q', 'a', 0, 0, now(), '{}')",
        DOCS,
        PICKED,
    ),
    verb(
        "put_many",
        "",
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease); select fetchq.doc_put_many('q', '[{\"subject\": \"a\"}]', 'replace')",
        DOCS,
        "|1577836800|t||",
    ),
    verb(
        "revive",
        "",
        "{progress} select fetchq.doc_complete('q', 'a', lease => :lease); select fetchq.doc_revive('q', 'a')",
        DOCS,
        SUCCEEDED,
    ),
    verb(
        "retry",
        "",
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease); select fetchq.docs_retry('q', '{\"subject\": \"a\"}')",
        DOCS,
        PICKED,
    ),
    verb(
        "priority",
        "",
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease); select fetchq.docs_set_priority('q', 9, '{\"subject\": \"a\"}')",
        DOCS,
        PICKED,
    ),
    verb(
        "move",
        "",
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease); select fetchq.docs_move('q', 'letters', '{\"subject\": \"a\"}')",
        LETTERS,
        PICKED,
    ),
    verb(
        "redrive of a killed document",
        "",
        "{progress} select fetchq.doc_kill('q', 'a', lease => :lease); select fetchq.queue_redrive('q')",
        DOCS,
        WITHOUT_RESULT,
    ),
    verb(
        "redrive of a dead letter",
        "select fetchq.queue_configure('q', '{\"dead_letter\": \"letters\"}')",
        "{progress} select fetchq.doc_kill('q', 'a', lease => :lease); select fetchq.queue_redrive('q')",
        DOCS,
        WITHOUT_RESULT,
    ),
    verb(
        "a sweep into the history",
        "",
        "{progress} select fetchq.doc_complete('q', 'a', lease => :lease); select fetchq.queue_configure('q', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}}'); update fetchq.jobs set next_iteration = now(); select fetchq.mnt_job_run(100)",
        HISTORY,
        SUCCEEDED,
    ),
    verb(
        "docs_drop into the history",
        KEEP,
        "{progress} select fetchq.doc_snooze('q', 'a', '2100-01-01', :lease); select fetchq.docs_drop('q', '{\"subject\": \"a\"}')",
        HISTORY,
        PICKED,
    ),
    verb(
        "complete with a result",
        "",
        "{progress} select fetchq.doc_complete('q', 'a', lease => :lease, result => '{\"new\": 2}')",
        DOCS,
        RESULT,
    ),
    verb(
        "complete with a payload and a result",
        "",
        "{progress} select fetchq.doc_complete('q', 'a', '{}', :lease, '{\"new\": 2}')",
        DOCS,
        RESULT,
    ),
    verb(
        "complete with a result into the history",
        KEEP,
        "{progress} select fetchq.doc_complete('q', 'a', lease => :lease, result => '{\"new\": 2}')",
        HISTORY,
        RESULT,
    ),
    verb(
        "complete_many with results",
        "",
        "{progress} select fetchq.doc_complete_many('q', '{a}', lease => :lease, results => array['{\"new\": 2}']::jsonb[])",
        DOCS,
        RESULT,
    ),
    verb(
        "complete_many with payloads and results into the history",
        KEEP,
        "{progress} select fetchq.doc_complete_many('q', '{a}', array['{}']::jsonb[], :lease, array['{\"new\": 2}']::jsonb[])",
        HISTORY,
        RESULT,
    ),
    verb(
        "extend with progress",
        "",
        "select fetchq.doc_extend('q', 'a', '1 hour', :lease, '{\"done\": 7}')",
        DOCS,
        PICKED,
    ),
    verb(
        "revive with a result",
        "",
        "{progress} select fetchq.doc_complete('q', 'a', lease => :lease, result => '{\"new\": 2}'); select fetchq.doc_revive('q', 'a')",
        DOCS,
        RESULT,
    ),
    verb(
        "kill with a message",
        "",
        "{progress} select fetchq.doc_kill('q', 'a', lease => :lease, message => 'no', details => '{}')",
        DOCS,
        WITHOUT_RESULT,
    ),
];

async fn each_verb(session: &Session, what: &str) {
    for verb in VERBS {
        let lease = pick(session, verb.before, PICKS[0].1).await;
        let call = verb
            .call
            .replace(
                "{progress}",
                "update fetchq_data.q__docs set progress = '{\"done\": 7}';",
            )
            .replace("{no_wait}", NO_WAIT)
            .replace(":lease", &lease);
        session.sql(&call).await;
        let found = session.rows(&format!("{COLUMNS} from {}", verb.at)).await;
        assert_eq!(found, [verb.expected], "{} {what}", verb.name);
    }
}

#[tokio::test]
async fn every_verb_keeps_the_columns_on_the_direct_path_and_by_statements() {
    let db = Server::of_suite().database("columns").await;
    let session = db.connect().await;
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        each_verb(&session, &format!("with fetchq.direct = {direct}")).await;
    }
    drop(session);
    db.remove().await;
}
