//! The commands for the shell: one call of the SQL API each, as a table for people or as JSON for programs.
mod doctor;
mod drain;
pub mod error;
mod filter;
mod output;
mod put;
pub mod session;
mod sync;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use error::CommandError;
use filter::FilterArgs;
use output::{Output, status};
use session::Session;

/// Which database, and how to print. Every command takes these.
#[derive(Debug, Args)]
pub struct On {
    /// A connection string, `postgres://…` or `host=…`. Without it the variables PGHOST, PGPORT, PGDATABASE, PGUSER,
    /// PGPASSWORD and PGSSLMODE count.
    #[arg(long, value_name = "URL", env = "FETCHQ_URL", hide_env_values = true)]
    url: Option<String>,

    /// Prints JSON: all columns, times with their zone.
    #[arg(long)]
    json: bool,
}

/// The arguments of a command, and `On`.
#[derive(Debug, Args)]
pub struct With<T: Args> {
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    args: T,
}

/// No arguments.
#[derive(Debug, Args)]
pub struct Nothing {}

impl On {
    async fn open(&self) -> Result<(Session, Output), CommandError> {
        Ok((
            Session::open(self.url.as_deref()).await?,
            Output::new(self.json),
        ))
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Puts a document into a queue.
    Put(Box<With<put::PutArgs>>),
    /// Lists the documents of a queue, or the queues.
    List(With<ListArgs>),
    /// Shows a document and its errors.
    Show(With<OneArgs>),
    /// Says why a document does not run, and what to do.
    Explain(With<OneArgs>),
    /// Makes failed documents due again.
    Retry(With<RetryArgs>),
    /// Cancels documents, also those that a worker has leased.
    Cancel(With<SomeArgs>),
    /// Waits until a queue has nothing to do.
    Drain(With<drain::DrainArgs>),
    /// Makes queues and schedules what a file declares.
    Sync(With<sync::SyncArgs>),
    /// Looks for what is wrong with the installation, the rights and the way to the server.
    Doctor(With<Nothing>),
}

/// A document.
#[derive(Debug, Args)]
pub struct OneArgs {
    /// Name of the queue.
    queue: String,
    /// Subject of the document.
    subject: String,
}

/// Some documents.
#[derive(Debug, Args)]
pub struct SomeArgs {
    /// Name of the queue.
    queue: String,
    /// Subjects of the documents.
    #[arg(required = true)]
    subjects: Vec<String>,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Name of the queue. Without it the queues are listed.
    queue: Option<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// At most as many documents.
    #[arg(long, default_value_t = 100)]
    limit: i32,
    /// The last subject of the page before.
    #[arg(long, value_name = "SUBJECT")]
    after: Option<String>,
}

#[derive(Debug, Args)]
pub struct RetryArgs {
    /// Name of the queue.
    queue: String,
    /// Subjects of the documents. Without them a filter is needed, or --all.
    subjects: Vec<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// All documents that have failed: killed ones, and those that wait for their next attempt.
    #[arg(long, conflicts_with = "subjects")]
    all: bool,
    /// At most as many documents.
    #[arg(long, default_value_t = 1000)]
    limit: i32,
    /// Changes nothing, and says how many documents would be changed.
    #[arg(long)]
    dry_run: bool,
}

/// Runs a command. The status says whether what was asked for is so.
///
/// # Errors
/// An argument is wrong, the database does not answer, or a call is refused.
pub async fn run(command: Command) -> Result<ExitCode, CommandError> {
    match command {
        Command::Put(with) => {
            let (session, out) = with.on.open().await?;
            put::run(&session, &out, with.args).await
        }
        Command::List(with) => {
            let (session, out) = with.on.open().await?;
            list(&session, &out, with.args).await
        }
        Command::Show(with) => {
            let (session, out) = with.on.open().await?;
            show(&session, &out, &with.args).await
        }
        Command::Explain(with) => {
            let (session, out) = with.on.open().await?;
            explain(&session, &out, &with.args).await
        }
        Command::Retry(with) => {
            let (session, out) = with.on.open().await?;
            retry(&session, &out, with.args).await
        }
        Command::Cancel(with) => {
            let (session, out) = with.on.open().await?;
            cancel(&session, &out, &with.args).await
        }
        Command::Drain(with) => {
            let (session, out) = with.on.open().await?;
            drain::run(&session, &out, &with.args).await
        }
        Command::Sync(with) => {
            let (session, out) = with.on.open().await?;
            sync::run(&session, &out, &with.args).await
        }
        Command::Doctor(with) => {
            doctor::run(with.on.url.as_deref(), &Output::new(with.on.json)).await
        }
    }
}

async fn list(session: &Session, out: &Output, args: ListArgs) -> Result<ExitCode, CommandError> {
    if let Some(queue) = &args.queue {
        let filter = Value::from(args.filter.read()?);
        let rows = session
            .rows(
                "select * from fetchq.docs_list($1, $2::text::jsonb, $3, $4)",
                &[queue, &filter.to_string(), &args.limit, &args.after],
            )
            .await?;
        out.table(
            &rows,
            &[
                "subject",
                "status",
                "due_at",
                "attempts",
                "max_attempts",
                "worker",
                "last_error",
            ],
            "no documents",
        )?;
    } else {
        if args.filter.is_given() {
            return Err(CommandError::Usage(
                "a filter needs the name of a queue".to_owned(),
            ));
        }
        let rows = session
            .rows("select * from fetchq.queue_stats()", &[])
            .await?;
        out.table(
            &rows,
            &[
                "queue",
                "ready",
                "retrying",
                "blocked",
                "planned",
                "active",
                "completed",
                "killed",
                "oldest_ready",
                "is_paused",
            ],
            "no queues on which this role has a right",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(session: &Session, out: &Output, args: &OneArgs) -> Result<ExitCode, CommandError> {
    let document = session
        .rows(
            "select * from fetchq.doc_get($1, $2)",
            &[&args.queue, &args.subject],
        )
        .await?;
    let Some(document) = document.into_iter().next() else {
        return Err(missing(args));
    };
    let errors = session
        .rows(
            "select * from fetchq.doc_errors($1, $2, 10)",
            &[&args.queue, &args.subject],
        )
        .await?;
    if out.json {
        let mut whole = document;
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("errors".to_owned(), errors.into());
        }
        out.value(&whole)?;
    } else {
        out.fields(&document)?;
        if !errors.is_empty() {
            println!();
            out.table(&errors, &["at", "attempt", "message"], "")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn missing(args: &OneArgs) -> CommandError {
    CommandError::Usage(output::printable(&format!(
        "queue {} has no document {}, and its history neither",
        args.queue, args.subject
    )))
}

async fn explain(
    session: &Session,
    out: &Output,
    args: &OneArgs,
) -> Result<ExitCode, CommandError> {
    let rows = session
        .rows(
            "select * from fetchq.doc_explain($1, $2)",
            &[&args.queue, &args.subject],
        )
        .await?;
    if out.json {
        out.value(&rows.into())?;
    } else {
        for row in &rows {
            out.reason(row)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn retry(session: &Session, out: &Output, args: RetryArgs) -> Result<ExitCode, CommandError> {
    let mut filter = args.filter.read()?;
    if !args.subjects.is_empty() {
        filter.insert("subject".to_owned(), args.subjects.clone().into());
    } else if args.all || args.filter.is_given() {
        // Planned documents have not failed: they are made due only by their name.
        filter
            .entry("status")
            .or_insert_with(|| json!(["pending", "killed"]));
    } else {
        return Err(CommandError::Usage(
            "name the subjects of documents, or a filter, or --all".to_owned(),
        ));
    }
    let filter = Value::from(filter).to_string();
    let rows = session
        .change(
            "select affected from fetchq.docs_retry($1, $2::text::jsonb, $3, $4) as affected",
            &[&args.queue, &filter, &args.limit, &args.dry_run],
        )
        .await?;
    out.line(&rows, |row| {
        let verb = if args.dry_run {
            "would be made"
        } else {
            "were made"
        };
        format!("{} documents {verb} due", row["affected"])
    })?;
    let affected = rows
        .first()
        .and_then(|row| row["affected"].as_i64())
        .unwrap_or(0);
    let wanted = i64::try_from(args.subjects.len()).unwrap_or(i64::MAX);
    Ok(status(affected >= wanted))
}

async fn cancel(
    session: &Session,
    out: &Output,
    args: &SomeArgs,
) -> Result<ExitCode, CommandError> {
    let rows = session
        .change(
            "select s.subject, c.was_cancelled, c.status \
             from pg_catalog.unnest($2::text[]) with ordinality as s(subject, n), fetchq.doc_cancel($1, s.subject) as c \
             order by s.n",
            &[&args.queue, &args.subjects],
        )
        .await?;
    out.table(&rows, &["subject", "was_cancelled", "status"], "")?;
    Ok(status(rows.iter().all(|row| row["was_cancelled"] == true)))
}
