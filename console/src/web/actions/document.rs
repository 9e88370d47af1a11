//! Actions on one document.
use maud::html;

use super::{Failure, Fields, Outcome, Question, affected, was};
use crate::row;
use crate::web::context::Context;
use crate::web::filter::exactly;

row! {
    /// The answer of `doc_cancel`.
    struct Cancelled {
        was_cancelled: Option<bool>,
        status: Option<String>,
    }
}

pub async fn document(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
    let (queue, subject) = (fields.needed("queue")?, fields.needed("subject")?);
    let only = serde_json::json!({"subject": exactly(subject)});
    let nothing = || {
        Outcome::Nothing(format!(
            "Document {subject} is as it was: its status changed meanwhile."
        ))
    };
    let (number, done) = match what {
        "doc_retry" => {
            let sql = "select fetchq.docs_retry($1, $2, max_docs => 1) as affected";
            (
                affected(context, sql, &[&queue, &only]).await?,
                "is due now",
            )
        }
        "doc_revive" => {
            let sql = "select fetchq.doc_revive($1, $2) as affected";
            (
                affected(context, sql, &[&queue, &subject]).await?,
                "is planned again, with all its attempts",
            )
        }
        "doc_release" => {
            let sql = "select fetchq.doc_snooze($1, $2)::bigint as affected";
            (
                affected(context, sql, &[&queue, &subject]).await?,
                "was given back; the attempt does not count",
            )
        }
        "doc_priority" => {
            let priority = fields.number("priority")?;
            let sql = "select fetchq.docs_set_priority($1, $2, $3, max_docs => 1) as affected";
            (
                affected(context, sql, &[&queue, &priority, &only]).await?,
                "has the new priority",
            )
        }
        "doc_time" => return time(context, queue, subject, fields.needed("time")?).await,
        "doc_cancel" => return cancel(context, fields, queue, subject).await,
        other => return Err(Failure::Form(format!("There is no action “{other}”."))),
    };
    Ok(if number == 0 {
        nothing()
    } else {
        Outcome::Done(format!("Document {subject} {done}."))
    })
}

/// Gives a document another time. `doc_put` replaces payload and headers too, so it gets those that
/// the document has.
async fn time(
    context: &Context,
    queue: &str,
    subject: &str,
    text: &str,
) -> Result<Outcome, Failure> {
    let is_point = text
        .trim()
        .chars()
        .take(4)
        .filter(char::is_ascii_digit)
        .count()
        == 4
        && text.contains('-');
    let is_point = is_point || text.trim().eq_ignore_ascii_case("infinity");
    let due = if is_point {
        "next_iteration => $3::text::timestamptz"
    } else {
        "delay => $3::text::interval"
    };
    let sql = format!(
        "select fetchq.doc_put($1, $2, payload => d.payload, headers => d.headers, {due}, mode => 'debounce') = 'updated' as was
         from fetchq.doc_get($1, $2) d where not d.is_from_history and d.status in ('planned', 'pending')"
    );
    Ok(
        if was(context, &sql, &[&queue, &subject, &text.trim()]).await? {
            Outcome::Done(format!("Document {subject} has the new time."))
        } else {
            Outcome::Nothing(format!(
                "Document {subject} is as it was: its status changed meanwhile."
            ))
        },
    )
}

async fn cancel(
    context: &Context,
    fields: &Fields,
    queue: &str,
    subject: &str,
) -> Result<Outcome, Failure> {
    if !fields.is_confirmed() {
        return Ok(Outcome::Ask(Question {
            title: "Cancel this document?".to_owned(),
            text: html! {
                p { "Document " strong { (subject) } " of queue " strong { (queue) } " is killed. If a worker has it, that worker loses its lease." }
            },
            label: "Cancel the document".to_owned(),
            call: format!(
                "select * from fetchq.doc_cancel('{queue}', '{}')",
                subject.replace('\'', "''")
            ),
        }));
    }
    let sql = "select was_cancelled, status from fetchq.doc_cancel($1, $2)";
    let answer = context
        .database()
        .first::<Cancelled>(sql, &[&queue, &subject])
        .await?;
    let status = answer.as_ref().and_then(|answer| answer.status.clone());
    Ok(
        match (answer.and_then(|answer| answer.was_cancelled), status) {
            (Some(true), Some(status)) => Outcome::Done(format!(
                "Document {subject} was {status}, and is cancelled."
            )),
            (_, Some(status)) => Outcome::Nothing(format!(
                "Document {subject} is {status}: there is nothing to cancel."
            )),
            _ => Outcome::Nothing(format!("There is no document {subject} any longer.")),
        },
    )
}
