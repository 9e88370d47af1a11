//! `fetchq sync`
use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::CommandError;
use super::output::Output;
use super::put::json_of;
use super::session::Session;

#[derive(Debug, Args)]
pub struct SyncArgs {
    /// A JSON file with the keys owner, queues and schedules; -: standard input.
    #[arg(value_name = "FILE")]
    file: String,
    /// Changes nothing, and says what would be changed.
    #[arg(long)]
    dry_run: bool,
}

/// What a file declares.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    /// Whose schedules they are. Those that this owner no longer declares are dropped.
    #[serde(default)]
    owner: Option<String>,
    /// The queues by name, each with the settings that it shall have.
    #[serde(default)]
    queues: Map<String, Value>,
    /// The schedules, as `schedules_sync` takes them.
    #[serde(default)]
    schedules: Option<Value>,
}

/// # Errors
/// The file cannot be read, or the server refuses something in it; then nothing is changed.
pub async fn run(
    session: &Session,
    out: &Output,
    args: &SyncArgs,
) -> Result<ExitCode, CommandError> {
    let name = if args.file == "-" {
        "-".to_owned()
    } else {
        format!("@{}", args.file)
    };
    let declared: Declared = serde_json::from_value(json_of(&name)?)
        .map_err(|error| CommandError::Json(args.file.clone(), error))?;
    session.begin().await?;
    let done = sync(session, declared).await;
    session.end(done.is_ok() && !args.dry_run).await?;
    out.table(&done?, &["what", "name", "action"], "nothing is declared")?;
    Ok(ExitCode::SUCCESS)
}

async fn sync(session: &Session, declared: Declared) -> Result<Vec<Value>, CommandError> {
    let mut done = Vec::new();
    for (queue, settings) in declared.queues {
        let settings = settings.to_string();
        let created = session
            .rows("select was_created from fetchq.queue_create($1)", &[&queue])
            .await?;
        let was_created = created
            .first()
            .is_some_and(|row| row["was_created"] == true);
        let changed = session
            .rows(
                "select was operator(pg_catalog.<>) fetchq.queue_configure($1, $2::text::jsonb) as changed \
                 from fetchq.queue_settings($1) as was",
                &[&queue, &settings],
            )
            .await?;
        let action = match changed.first() {
            _ if was_created => "created",
            Some(row) if row["changed"] == true => "changed",
            _ => "kept",
        };
        done.push(json!({"what": "queue", "name": queue, "action": action}));
    }
    if let Some(schedules) = declared.schedules {
        let Some(owner) = declared.owner else {
            return Err(CommandError::Usage(
                "schedules need an owner: the name of the application that declares them"
                    .to_owned(),
            ));
        };
        let rows = session
            .rows(
                "select 'schedule' as what, name, action from fetchq.schedules_sync($1, $2::text::jsonb)",
                &[&owner, &schedules.to_string()],
            )
            .await?;
        done.extend(rows);
    }
    Ok(done)
}
