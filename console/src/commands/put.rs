//! `fetchq put`
use std::io::Read;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::error::CommandError;
use super::output::Output;
use super::session::Session;

#[derive(Debug, Args)]
pub struct PutArgs {
    /// Name of the queue.
    queue: String,
    /// Subject of the document. Without it the server makes one.
    subject: Option<String>,
    /// The payload as JSON; @FILE: what a file has; -: what standard input has.
    #[arg(long, short, value_name = "JSON")]
    payload: Option<String>,
    /// What happens if the subject exists: ignore, replace, merge, earliest, debounce, reset, once.
    #[arg(long)]
    mode: Option<String>,
    /// Time until it is due, such as '10 minutes'.
    #[arg(long, value_name = "INTERVAL", conflicts_with = "at")]
    delay: Option<String>,
    /// When it is due, such as '2027-01-01 00:00+00'.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Documents with a greater priority are leased first.
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Version of the document: it is leased by workers of that version.
    #[arg(long = "doc-version", value_name = "VERSION")]
    version: Option<i32>,
    /// Documents with the same key run one at a time, if the queue is ordered.
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// Attempts until it is killed.
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<i32>,
    /// A header, as NAME=TEXT; once for each.
    #[arg(long = "header", value_name = "NAME=TEXT", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// How long after its time it expires if it has not begun.
    #[arg(long, value_name = "INTERVAL")]
    expires_in: Option<String>,
    /// A field of the payload that makes it unique; once for each.
    #[arg(long, value_name = "FIELD", conflicts_with = "subject")]
    unique_by: Vec<String>,
    /// For how long it is unique, such as '1 hour'.
    #[arg(long, value_name = "INTERVAL", requires = "unique_by")]
    unique_per: Option<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header is NAME=TEXT")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// # Errors
/// The payload cannot be read, or the server refuses the document.
pub async fn run(session: &Session, out: &Output, args: PutArgs) -> Result<ExitCode, CommandError> {
    let mut document = Map::new();
    document.insert("queue".to_owned(), args.queue.into());
    if let Some(text) = &args.payload {
        document.insert("payload".to_owned(), json_of(text)?);
    }
    if !args.headers.is_empty() {
        let headers: Map<_, _> = args
            .headers
            .into_iter()
            .map(|(name, text)| (name, text.into()))
            .collect();
        document.insert("headers".to_owned(), headers.into());
    }
    if !args.unique_by.is_empty() {
        document.insert("unique_by".to_owned(), args.unique_by.into());
    }
    let given = [
        ("subject", args.subject.map(Value::from)),
        ("mode", args.mode.map(Value::from)),
        ("delay", args.delay.map(Value::from)),
        ("due_at", args.at.map(Value::from)),
        ("priority", args.priority.map(Value::from)),
        ("version", args.version.map(Value::from)),
        ("ordering_key", args.ordering_key.map(Value::from)),
        ("max_attempts", args.max_attempts.map(Value::from)),
        ("expires_in", args.expires_in.map(Value::from)),
        ("unique_per", args.unique_per.map(Value::from)),
    ];
    document.extend(
        given
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?))),
    );
    let documents = json!([document]).to_string();
    let rows = session
        .change(
            "select * from fetchq.doc_put_many(null, $1::text::jsonb)",
            &[&documents],
        )
        .await?;
    out.line(&rows, |row| {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        format!("{} {}", text("action"), text("subject"))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads JSON: the text itself, or from where it says.
pub fn json_of(text: &str) -> Result<Value, CommandError> {
    let (name, text) = match text.strip_prefix('@') {
        Some(file) => (
            file,
            std::fs::read_to_string(file)
                .map_err(|error| CommandError::File(file.to_owned(), error))?,
        ),
        None if text == "-" => {
            let mut read = String::new();
            let done = std::io::stdin().read_to_string(&mut read);
            done.map_err(|error| CommandError::File("standard input".to_owned(), error))?;
            ("standard input", read)
        }
        None => ("the payload", text.to_owned()),
    };
    serde_json::from_str(&text).map_err(|error| CommandError::Json(name.to_owned(), error))
}
