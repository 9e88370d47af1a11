//! Actions on one document.
use maud::html;

use super::outcome::{Failure, Fields, Outcome, Question, affected};
use crate::db::row;
use crate::web::context::Context;
use crate::web::format::literal;

row! {
    /// The answer of `doc_cancel`.
    struct Cancelled {
        was_cancelled: Option<bool>,
        status: Option<String>,
    }
}

pub async fn document(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
    let (queue, subject) = (fields.needed("queue")?, fields.needed("subject")?);
    let only = serde_json::json!({"subject": subject});
    let nothing = || {
        Outcome::Nothing(format!(
            "Document {subject} is as it was: it was so already, or its status changed meanwhile."
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
            // Whoever has it, so its number is looked up. A lease of fetchq 4 may have none.
            let sql = "select fetchq.doc_snooze($1, $2, lease => (\
                    select lease from fetchq.lease_list($1) where subject = $2))::bigint as affected";
            (
                affected(context, sql, &[&queue, &subject]).await?,
                "was given back; the attempt does not count",
            )
        }
        "doc_priority" => {
            let priority = fields.number("priority")?;
            let sql = "select fetchq.doc_set_priority($1, $2, $3) as affected";
            (
                affected(context, sql, &[&queue, &subject, &priority]).await?,
                "has the new priority",
            )
        }
        "doc_time" => {
            let text = fields.needed("time")?.trim();
            let sql = format!(
                "select fetchq.doc_set_due($1, $2, {}) as affected",
                due("$3", text)
            );
            (
                affected(context, &sql, &[&queue, &subject, &text]).await?,
                "has the new time",
            )
        }
        "doc_cancel" => return cancel(context, fields, queue, subject).await,
        other => return Err(Failure::Form(format!("There is no action “{other}”."))),
    };
    Ok(if number == 0 {
        nothing()
    } else {
        Outcome::Done(format!("Document {subject} {done}."))
    })
}

/// The argument for a time that somebody typed: a point in time, or an interval from now.
pub fn due(parameter: &str, text: &str) -> String {
    let is_year = |text: &str| text.chars().take(4).filter(char::is_ascii_digit).count() == 4;
    let is_point = is_year(text) && text.contains('-') || text.eq_ignore_ascii_case("infinity");
    if is_point {
        format!("due_at => {parameter}::text::timestamptz")
    } else {
        format!("delay => {parameter}::text::interval")
    }
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
                "select * from fetchq.doc_cancel({}, {})",
                literal(queue),
                literal(subject)
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
