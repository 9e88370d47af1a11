//! `fetchq doctor`
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fetchq_connect::{DbError, DbErrorKind};
use serde_json::{Value, json};

use super::error::CommandError;
use super::output::Output;
use super::session::Session;

/// A difference of the clocks that is worth a line.
const SKEW: Duration = Duration::from_secs(2);

/// What was looked at, and what was found.
struct Finding {
    check: &'static str,
    state: &'static str,
    detail: String,
    hint: Option<String>,
}

const OK: &str = "ok";
const WARNING: &str = "warning";
const ERROR: &str = "error";

impl Finding {
    fn new(check: &'static str, state: &'static str, detail: impl Into<String>) -> Self {
        Self {
            check,
            state,
            detail: detail.into(),
            hint: None,
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Looks at everything that can be wrong, the first things first. The status tells whether an error was found.
///
/// # Errors
/// The connection string cannot be read, or the output cannot be written.
pub async fn run(url: Option<&str>, out: &Output) -> Result<ExitCode, CommandError> {
    let findings = match Session::open(url).await {
        Ok(session) => {
            let mut findings = Vec::new();
            if let Err(error) = examine(&session, &mut findings).await {
                findings.push(refused("examination", &error));
            }
            findings
        }
        Err(CommandError::Call(error)) => vec![refused("connection", &error)],
        Err(error) => return Err(error),
    };
    let rows: Vec<Value> = findings
        .iter()
        .map(|found| json!({"check": found.check, "state": found.state, "detail": found.detail, "hint": found.hint}))
        .collect();
    if out.json {
        out.value(&rows.into())?;
    } else {
        out.table(&rows, &["check", "state", "detail"], "")?;
        for row in rows.iter().filter(|row| row["hint"].is_string()) {
            println!();
            out.line(std::slice::from_ref(row), |row| {
                let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
                format!(
                    "{}: {}\n  {}",
                    text("check"),
                    text("detail"),
                    text("hint").replace('\n', "\n  ")
                )
            })?;
        }
    }
    Ok(super::output::status(
        findings.iter().all(|found| found.state != ERROR),
    ))
}

fn refused(check: &'static str, error: &DbError) -> Finding {
    let finding = Finding::new(check, ERROR, error.message.clone());
    match &error.hint {
        Some(hint) => finding.hint(hint.clone()),
        None => finding,
    }
}

async fn examine(session: &Session, findings: &mut Vec<Finding>) -> Result<(), DbError> {
    let server = session
        .rows(
            "select pg_catalog.current_setting('server_version') as version, current_user::text as role, \
                    pg_catalog.pg_is_in_recovery() as is_standby, pg_catalog.inet_server_port() as port",
            &[],
        )
        .await?;
    let Some(server) = server.first() else {
        return Ok(());
    };
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let role = text(server, "role");
    let kind = if server["is_standby"] == true {
        ", a standby"
    } else {
        ""
    };
    findings.push(Finding::new(
        "connection",
        OK,
        format!(
            "{}: PostgreSQL {}{kind}, as {role}",
            session.place(),
            text(server, "version")
        ),
    ));
    findings.push(pooler(session, server["port"].as_i64()).await?);
    findings.push(clock(session).await?);
    let info = match session.rows("select * from fetchq.info()", &[]).await {
        Ok(rows) => rows.into_iter().next().unwrap_or_default(),
        Err(error) if error.kind == DbErrorKind::NoExtension => {
            findings.push(
                Finding::new("extension", ERROR, "this database has no extension fetchq")
                    .hint("create extension fetchq; or connect to the database that has it: the name of the database is part of --url"),
            );
            return Ok(());
        }
        Err(error) => {
            findings.push(refused("extension", &error));
            return Ok(());
        }
    };
    let (extension, library) = (
        text(&info, "extension_version"),
        text(&info, "library_version"),
    );
    let ours = env!("CARGO_PKG_VERSION");
    findings.push(if extension == library {
        let finding = Finding::new("extension", OK, format!("fetchq {extension}"));
        if extension == ours {
            finding
        } else {
            Finding {
                state: WARNING,
                ..finding
            }
            .hint(format!(
                "this program is of version {ours}: use the one of version {extension}"
            ))
        }
    } else {
        Finding::new(
            "extension",
            ERROR,
            format!("the database has version {extension}, the library is {library}"),
        )
        .hint("alter extension fetchq update;")
    });
    findings.push(if info["is_preloaded"] == true {
        Finding::new("preloading", OK, "fetchq is in shared_preload_libraries")
    } else {
        Finding::new("preloading", WARNING, "fetchq is not in shared_preload_libraries")
            .hint("shared_preload_libraries = 'fetchq' and a restart: without it nothing runs in the background, and waiting calls poll")
    });
    findings.push(rights(session, &role).await?);
    // What runs, what is late, what blocks, and which session holds back the removal of dead rows.
    for row in session.rows("select * from fetchq.status()", &[]).await? {
        let hint = row["hint"].as_str();
        let state = if hint.is_some() { WARNING } else { OK };
        let detail = [
            text(&row, "component"),
            text(&row, "state"),
            text(&row, "detail"),
        ]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>();
        let finding = Finding::new("status", state, detail.join(": "));
        findings.push(match hint {
            Some(hint) => finding.hint(hint),
            None => finding,
        });
    }
    Ok(())
}

/// Whether statements of one connection reach several sessions of the server.
async fn pooler(session: &Session, port: Option<i64>) -> Result<Finding, DbError> {
    let mut pids = Vec::new();
    for _ in 0..5 {
        let rows = session
            .rows("select pg_catalog.pg_backend_pid() as pid", &[])
            .await?;
        pids.push(rows.first().and_then(|row| row["pid"].as_i64()));
    }
    pids.dedup();
    let asked = session.place().rsplit_once(':').and_then(|(_, rest)| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<i64>().ok()
    });
    if pids.len() > 1 {
        return Ok(Finding::new("pooler", WARNING, "a pooler in transaction mode is between: statements reach several sessions")
            .hint("leases cannot be bound to a session, and each waiting worker takes a connection of the pooler: see the guide on poolers"));
    }
    Ok(match (port, asked) {
        (Some(port), Some(asked)) if port != asked => Finding::new(
            "pooler",
            OK,
            format!(
                "the server listens on port {port}, and the way to it is port {asked}: a pooler, a proxy or a container is between"
            ),
        ),
        _ => Finding::new("pooler", OK, "none in transaction mode was seen"),
    })
}

/// How far the clock of this machine is from that of the server.
async fn clock(session: &Session) -> Result<Finding, DbError> {
    let before = SystemTime::now();
    let rows = session
        .rows(
            "select extract(epoch from pg_catalog.clock_timestamp())::float8 as now",
            &[],
        )
        .await?;
    let way = before.elapsed().unwrap_or_default();
    let here = before.duration_since(UNIX_EPOCH).unwrap_or_default() + way / 2;
    let there = rows
        .first()
        .and_then(|row| row["now"].as_f64())
        .unwrap_or_default();
    let apart = there - here.as_secs_f64();
    Ok(if apart.abs() < (SKEW + way).as_secs_f64() {
        Finding::new(
            "clock",
            OK,
            "that of this machine and that of the server agree",
        )
    } else {
        Finding::new("clock", WARNING, format!("that of the server is {apart:+.1} seconds from that of this machine"))
            .hint("fetchq uses the clock of the server only. Pass delays and not points in time, and correct the clock that is wrong")
    })
}

/// What the role may do.
async fn rights(session: &Session, role: &str) -> Result<Finding, DbError> {
    let rows = session
        .rows(
            "select pg_catalog.count(distinct queue) as queues, \
                    pg_catalog.string_agg(distinct kind, ', ' order by kind) as kinds \
             from fetchq.queue_grants() \
             where pg_catalog.pg_has_role(current_user, role, 'usage')",
            &[],
        )
        .await?;
    let row = rows.first().cloned().unwrap_or_default();
    let queues = row["queues"].as_i64().unwrap_or(0);
    let kinds = row["kinds"].as_str().unwrap_or("none");
    Ok(if queues == 0 {
        Finding::new("rights", WARNING, format!("{role} has no right on a queue, or there is none"))
            .hint("fetchq.queue_create('NAME') makes a queue, and fetchq.queue_grant('NAME', 'ROLE', 'worker') gives a right on one")
    } else {
        Finding::new(
            "rights",
            OK,
            format!("{role} has rights on {queues} queues: {kinds}"),
        )
    })
}
