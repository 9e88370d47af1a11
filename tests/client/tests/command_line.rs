//! The commands of the program `fetchq` for the shell.

use std::process::Command;

use fetchq_client_tests::{Database, Pooler, Server, program, run_with_input};
use serde_json::{Value, json};

/// The program, on one database.
struct Shell<'a> {
    program: String,
    db: &'a Database,
    role: Option<&'static str>,
}

/// What a command has printed, and whether its status was 0.
struct Said {
    is_done: bool,
    out: String,
    err: String,
}

impl<'a> Shell<'a> {
    fn new(db: &'a Database) -> Self {
        Self {
            program: program("fetchq-console"),
            db,
            role: None,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.db.connect_by(Command::new(&self.program));
        command.args(args).env_remove("FETCHQ_URL");
        if let Some(role) = self.role {
            command.env("PGUSER", role).env("PGPASSWORD", role);
        }
        command
    }

    fn said(&self, args: &[&str]) -> Said {
        let output = self.command(args).output().expect("run fetchq");
        Said {
            is_done: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The JSON that a command prints, which must have the status 0.
    fn json(&self, args: &[&str]) -> Value {
        let said = self.said(&[args, &["--json"]].concat());
        assert!(said.is_done, "{args:?}: {}{}", said.out, said.err);
        serde_json::from_str(&said.out).expect("JSON")
    }

    /// The error of a command.
    fn error(&self, args: &[&str]) -> String {
        let said = self.said(args);
        assert!(!said.is_done, "{args:?}: {}", said.out);
        said.err
    }
}

#[tokio::test]
async fn documents_are_put_listed_shown_cancelled_and_retried() {
    let db = Server::of_suite().database("cli_documents").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('mail')").await;
    let shell = Shell::new(&db);

    let put = shell.json(&[
        "put",
        "mail",
        "ann",
        "-p",
        r#"{"to": "ann"}"#,
        "--delay",
        "1 hour",
        "--priority",
        "-3",
        "--header",
        "by=cli=1",
        "--max-attempts",
        "7",
        "--doc-version",
        "2",
        "--expires-in",
        "1 day",
    ]);
    assert_eq!(put, json!({"subject": "ann", "action": "created"}));
    let shown = shell.json(&["show", "mail", "ann"]);
    assert_eq!(shown["payload"], json!({"to": "ann"}));
    assert_eq!(shown["headers"], json!({"by": "cli=1"}));
    assert_eq!(shown["status"], "planned");
    assert_eq!(
        (&shown["priority"], &shown["max_attempts"]),
        (&json!(-3), &json!(7))
    );
    assert_eq!(
        (&shown["version"], &shown["errors"]),
        (&json!(2), &json!([]))
    );
    assert!(shown["expires_at"].is_string());

    // A payload from standard input, and a subject of the server.
    let out = run_with_input(
        &mut shell.command(&["put", "mail", "-p", "-"]),
        r#"{"n": 1}"#,
    );
    let subject = out.trim().strip_prefix("created ").expect("a subject");
    assert_eq!(
        shell.json(&["show", "mail", subject])["payload"],
        json!({"n": 1})
    );

    assert_eq!(
        shell.json(&["list", "mail"]).as_array().map(Vec::len),
        Some(2)
    );
    let planned = shell.json(&["list", "mail", "--status", "planned", "--like", "a%"]);
    assert_eq!(planned[0]["subject"], "ann");
    assert_eq!(shell.json(&["list"])[0]["planned"], 1);
    let page = shell.json(&["list", "mail", "--after", "ann", "--limit", "1"]);
    assert_eq!(page.as_array().map(Vec::len), Some(0));

    let reasons = shell.json(&["explain", "mail", "ann"]);
    assert_eq!(reasons[0]["reason"], "not_due");

    // Who cancels two documents, one of which is not there, learns that.
    let said = shell.said(&["cancel", "mail", "ann", "nobody"]);
    assert!(!said.is_done && said.out.contains("ann"), "{}", said.out);
    assert_eq!(shell.json(&["show", "mail", "ann"])["status"], "killed");
    assert_eq!(shell.json(&["retry", "mail", "ann"])["affected"], 1);
    assert_eq!(shell.json(&["show", "mail", "ann"])["status"], "pending");
    assert!(shell.error(&["retry", "mail"]).contains("--all"));
    // Nothing has failed, so nothing is retried.
    assert_eq!(
        shell.json(&["retry", "mail", "--all", "--dry-run"])["affected"],
        0
    );
    db.remove().await;
}

#[tokio::test]
async fn a_drain_ends_when_the_queue_has_nothing_to_do() {
    let db = Server::of_suite().database("cli_drain").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('mail')").await;
    session
        .sql("select fetchq.doc_put('mail', 'later', delay => '1 hour')")
        .await;
    session.sql("select fetchq.doc_put('mail', 'now')").await;
    let shell = Shell::new(&db);
    let said = shell.said(&["drain", "mail", "--timeout", "1"]);
    assert!(
        !said.is_done && said.out.starts_with("1 documents are left"),
        "{}",
        said.out
    );

    let mut waiting = shell
        .command(&["drain", "mail"])
        .spawn()
        .expect("run fetchq");
    session.sql("select from fetchq.doc_pop('mail')").await;
    assert!(waiting.wait().expect("its status").success());
    assert!(
        !shell
            .said(&["drain", "mail", "--planned", "--timeout", "0"])
            .is_done
    );
    db.remove().await;
}

#[tokio::test]
async fn a_file_declares_queues_and_schedules() {
    let db = Server::of_suite().database("cli_sync").await;
    let session = db.connect().await;
    let shell = Shell::new(&db);
    let file = std::env::temp_dir().join(format!("{}-declared.json", db.name));
    let name = file.to_string_lossy().into_owned();
    let declare = |text: Value| std::fs::write(&file, text.to_string()).expect("write the file");
    let actions = |rows: Value| -> Vec<String> {
        let rows = rows.as_array().cloned().unwrap_or_default();
        let word = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        rows.iter()
            .map(|row| format!("{} {}", word(row, "name"), word(row, "action")))
            .collect()
    };

    let nightly = json!({"name": "nightly", "queue": "mail", "schedule": "30 2 * * *"});
    declare(
        json!({"owner": "shop", "queues": {"mail": {"max_active": 5}}, "schedules": [nightly]}),
    );
    let planned = actions(shell.json(&["sync", &name, "--dry-run"]));
    assert_eq!(planned, ["mail created", "nightly created"]);
    assert_eq!(
        session.text("select count(*) from fetchq.queues").await,
        "0"
    );
    assert_eq!(actions(shell.json(&["sync", &name])), planned);
    assert_eq!(
        actions(shell.json(&["sync", &name])),
        ["mail kept", "nightly kept"]
    );

    declare(json!({"owner": "shop", "queues": {"mail": {"max_active": 6}}, "schedules": []}));
    assert_eq!(
        actions(shell.json(&["sync", &name])),
        ["mail changed", "nightly dropped"]
    );
    let max = "select fetchq.queue_settings('mail')->>'max_active'";
    assert_eq!(session.text(max).await, "6");

    // All or nothing.
    let bad = json!({"name": "bad", "queue": "mail", "schedule": "x"});
    declare(json!({"owner": "shop", "queues": {"mail": {"max_active": 7}}, "schedules": [bad]}));
    assert!(shell.error(&["sync", &name]).contains("schedule"));
    assert_eq!(session.text(max).await, "6");
    declare(json!({"queue": {}}));
    assert!(shell.error(&["sync", &name]).contains("unknown field"));
    std::fs::remove_file(&file).expect("remove the file");
    db.remove().await;
}

#[tokio::test]
async fn the_doctor_says_what_is_wrong() {
    let server = Server::of_suite();
    let db = server.database("cli_doctor").await;
    let state = |rows: &Value, check: &str| -> String {
        let rows = rows.as_array().cloned().unwrap_or_default();
        let found = rows.iter().find(|row| row["check"] == check);
        found.map_or_else(String::new, |row| {
            row["state"].as_str().unwrap_or_default().to_owned()
        })
    };
    let shell = Shell::new(&db);
    let found = shell.json(&["doctor"]);
    for check in [
        "connection",
        "pooler",
        "clock",
        "extension",
        "preloading",
        "status",
    ] {
        assert_eq!(state(&found, check), "ok", "{check}: {found}");
    }
    assert_eq!(state(&found, "rights"), "warning");

    let pooler = Pooler::start(&db).await;
    let behind = pooler.behind(&db);
    let through = Shell::new(&behind);
    // Both connections of the pooler are in use now and then.
    let session = behind.connect().await;
    session.sql("begin").await;
    let found = through.json(&["doctor"]);
    assert_eq!(state(&found, "connection"), "ok", "{found}");
    session.sql("commit").await;
    assert_eq!(through.json(&["list"]), json!([]));

    let empty = server.empty_database("cli_doctor_empty").await;
    let said = Shell::new(&empty).said(&["doctor"]);
    assert!(
        !said.is_done && said.out.contains("create extension fetchq"),
        "{}",
        said.out
    );
    let mut command = shell.command(&["doctor"]);
    let said = command.env("PGPORT", "1").output().expect("run fetchq");
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stdout).contains("connection"));
    empty.remove().await;
    db.remove().await;
}

#[tokio::test]
async fn bad_input_is_refused_and_says_what_to_do() {
    let db = Server::of_suite().database("cli_bad").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('mail')").await;
    session
        .sql("do $$ begin if to_regrole('cli_nobody') is null then create role cli_nobody login password 'cli_nobody'; end if; end $$")
        .await;
    let mut shell = Shell::new(&db);
    shell.role = Some("cli_nobody");
    assert!(
        shell
            .error(&["list"])
            .contains("grant usage on schema fetchq")
    );
    session
        .sql("grant usage on schema fetchq to cli_nobody")
        .await;
    shell.role = None;
    for (args, part) in [
        (&["put", "mails", "a"][..], "fetchq.queue_create"),
        (&["put", "mail", "a", "-p", "{"], "is not JSON"),
        (
            &["put", "mail", "a", "-p", "@/nowhere"],
            "/nowhere cannot be read",
        ),
        (&["put", "mail", "a", "--mode", "x"], "22023"),
        (&["put", "mail", "a", "--delay", "x"], "delay"),
        (&["put", "mail", "a", "--header", "x"], "NAME=TEXT"),
        (&["put", "mail; drop table x", "a"], "42602"),
        (&["list", "mail", "--filter", "[]"], "--filter is not JSON"),
        (&["list", "mail", "--filter", r#"{"colour": 1}"#], "colour"),
        (&["list", "--status", "killed"], "needs the name of a queue"),
        (&["show", "mail", "nope"], "has no document nope"),
        (&["show", "mail", "\u{1b}[2J"], "\\u{1b}[2J"),
        (&["cancel", "mail"], "required"),
        (&["drain", "nope"], "does not exist"),
        (&["sync", "/nowhere"], "/nowhere cannot be read"),
    ] {
        let error = shell.error(args);
        assert!(error.contains(part), "{args:?}: {error}");
        assert!(!error.contains('\u{1b}'), "{args:?}");
    }
    shell.role = Some("cli_nobody");
    for args in [
        &["put", "mail", "a"][..],
        &["list", "mail"],
        &["show", "mail", "a"],
        &["cancel", "mail", "a"],
    ] {
        let error = shell.error(args);
        assert!(
            error.contains("42501") && error.contains("hint: "),
            "{args:?}: {error}"
        );
    }
    assert_eq!(
        session
            .text("select count(*) from fetchq_data.mail__docs")
            .await,
        "0"
    );
    session
        .sql("revoke usage on schema fetchq from cli_nobody; drop role cli_nobody")
        .await;
    db.remove().await;
}
