//! SQL statements as this crate writes them.
//!
//! A statement is written with markers in braces. [`render`] replaces the markers for the
//! tables of a queue, for statuses, and for predicates that many statements share.
//! `pg::operators` replaces the markers for operators.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::domain::document::{InHistory, kept};
use crate::domain::names::{QueueName, SUBJECT_MAX};
use crate::domain::settlement::ACTION_BITS;
use crate::domain::status::Status;
use crate::late::memory;
use crate::pg::lasting::{Lasting, lasting};

/// A statement that is planned once in a session, with a generic plan.
pub struct Statement {
    sql: Sql,
    scope: Option<Scope>,
}

/// Which leases a statement has to see in the rows of the documents, see `late_leases`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// None: it does not look at the documents, or not at those that are ready or leased.
    Nothing,
    /// Those that others see. It changes nothing.
    Reading,
    /// That of the document whose subject is the parameter with this number, which it may change.
    Subject(usize),
    /// Those of the documents whose subjects are the parameter with this number, which it may change.
    Subjects(usize),
    /// All that no other transaction has: it may change any of them, and passes over the others.
    Unlocked,
    /// All: it may change any document.
    Table,
}

/// The number of the parameter that follows `before` where that occurs first.
fn number(sql: &str, before: &str) -> Option<usize> {
    let after = &sql[sql.find(before)? + before.len()..];
    let digits = after.find(|c: char| !c.is_ascii_digit());
    after[..digits.unwrap_or(after.len())].parse().ok()
}

impl Scope {
    /// Returns what SQL with markers has to see.
    pub fn of(sql: &str) -> Self {
        let has = |text: &str| sql.contains(text);
        let writes = !sql.trim_start().starts_with("select ")
            || has("for update")
            || has("for share")
            || has("for no key update");
        match () {
            () if !has("{docs}") => Self::Nothing,
            () if !writes => Self::Reading,
            () if has("insert into {docs}") && !has("do update") => Self::Nothing,
            () => {
                // The list `i` has the subjects first.
                let list =
                    || has(".subject {=} i.subject").then(|| number(sql, "pg_catalog.unnest($"));
                number(sql, ".subject {=} $")
                    .map(Self::Subject)
                    .or_else(|| number(sql, ".subject {=} any ($").map(Self::Subjects))
                    .or_else(|| list().flatten().map(Self::Subjects))
                    .unwrap_or(Self::Table)
            }
        }
    }
}

thread_local! {
    /// What the statements have to see, by their keys.
    static SCOPES: Lasting<HashMap<usize, Scope>> = lasting(HashMap::new());
}

/// The SQL of a statement, with markers.
enum Sql {
    Written(&'static str),
    /// It is made when the statement is planned.
    Made(fn() -> String),
}

impl Statement {
    /// Makes a statement of SQL with markers. Statements are statics, because their address
    /// is the key of their plan.
    pub const fn new(sql: &'static str) -> Self {
        Self {
            sql: Sql::Written(sql),
            scope: None,
        }
    }

    /// Makes a statement whose SQL is made of parts.
    pub const fn made(sql: fn() -> String) -> Self {
        Self {
            sql: Sql::Made(sql),
            scope: None,
        }
    }

    /// Says what the statement has to see, where its SQL does not say so.
    pub const fn in_scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// What the statement has to see, which is found out once.
    pub fn scope(&'static self) -> Scope {
        SCOPES.with(|scopes| {
            *scopes
                .borrow_mut()
                .entry(self.key())
                .or_insert_with(|| self.scope.unwrap_or_else(|| Scope::of(&self.sql())))
        })
    }

    fn sql(&self) -> Cow<'static, str> {
        match self.sql {
            Sql::Written(sql) => Cow::Borrowed(sql),
            Sql::Made(make) => Cow::Owned(make()),
        }
    }

    /// The key that distinguishes this statement from all others: its address.
    pub fn key(&'static self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The text of a statement that names no queue.
    pub fn text(&self) -> String {
        render_shared(&self.sql())
    }

    /// The text of the statement for a queue.
    pub fn text_for(&self, queue: &QueueName) -> String {
        render(&self.sql(), queue)
    }
}

/// The document `d` is leased, by the lease `$2` if that is not NULL. With NULL it is one that the
/// subject alone settles (`lease_number::needs_number`). `status + 0` keeps
/// the planner from using the due index, whose predicate `status = 2` would prove: only the
/// primary key may serve a look-up by subject (docs/internals/engine.md).
const IS_LEASED: &str = "d.status {+} 0 {=} {active}
         and (d.lease {=} $2 or $2 is null and not {needs_number})";

/// The number of the lease of a document that its row does not have.
fn late_lease(document: &str) -> String {
    format!(
        "fetchq.late_lease({document}.tableoid::pg_catalog.int8, {document}.subject::pg_catalog.text,
             {document}.seq, {document}.created_at)"
    )
}

/// A document has no lease that its row does not have yet. A statement that locks rows in order to change them
/// also asks after that: nobody leases a document late whose row is locked.
fn not_late(document: &str) -> String {
    match memory::exists() {
        false => String::new(),
        true => format!(
            "and ({document}.status {{<>}} {{pending}} or {} is null)",
            late_lease(document)
        ),
    }
}

/// The document `d` has a lease number, and only that settles it: `lease_number::needs_number`.
const NEEDS_NUMBER: &str = "coalesce((d.lease {&} 1) {=} 1, false)";

/// What the worker of the document `d` did with it, as `Action::code`, or 0. What else ends a lease leaves
/// `worker_session` as it is, or removes it: see `ACTION_BITS`.
const SETTLED_BY: &str = "(d.worker_session {&} 7)";

/// The worker session that had the last lease of the document `d`.
const LEASED_BY: &str = "(d.worker_session {&} (-8))";

const _: () = assert!(1 << ACTION_BITS == 8);

/// The last error of a document `d` in this queue: that of a dead letter is of its origin. A document
/// to which a caller gives another payload loses its origin, and keeps this error. It is no dead
/// letter any more: a redrive must not bring a payload into a queue into which the caller may not
/// push.
const OWN_ERROR: &str = "case when d.origin is null then d.last_error end";

/// The iterations of the document `d` and one more. A manager may have written any number, and one
/// document must not fail all that are settled with it.
const NEXT_ITERATIONS: &str = "(least(d.iterations, 9223372036854775806) {+} 1)";

/// When the waiting document `d` expires that becomes due at `$2` instead: as long after that as before.
/// One that is never due does not expire.
const MOVED_EXPIRY: &str =
    "case when d.expires_at is null or not pg_catalog.isfinite(d.next_iteration)
             or not pg_catalog.isfinite($2) then null
         else d.expires_at {+} (greatest($2, pg_catalog.now())
             {-} greatest(d.next_iteration, d.created_at)) end";

/// Replaces the markers that do not depend on a queue.
pub(in crate::store) fn render_shared(sql: &str) -> String {
    let mut text = sql
        .replace("{is_leased}", IS_LEASED)
        .replace("{late_lease c}", &late_lease("c"))
        .replace("{late_lease d}", &late_lease("d"))
        .replace("{not_late c}", &not_late("c"))
        .replace("{not_late d}", &not_late("d"))
        .replace("{needs_number}", NEEDS_NUMBER)
        .replace("{settled_by}", SETTLED_BY)
        .replace("{leased_by}", LEASED_BY)
        .replace("{own_error}", OWN_ERROR)
        .replace("{moved_expiry}", MOVED_EXPIRY)
        .replace("{next_iterations}", NEXT_ITERATIONS);
    if text.contains("{kept}") {
        let as_it_is = kept("d.", Some(InHistory::AsItIs));
        text = text
            .replace("{kept_as_it_is}", &as_it_is)
            .replace("{kept}", &kept("", None));
    }
    for status in Status::ALL {
        let code = match status {
            Status::Killed => format!("({})", status.code()),
            _ => status.code().to_string(),
        };
        text = text.replace(&format!("{{{}}}", status.word()), &code);
    }
    text.replace("{subject_max}", &SUBJECT_MAX.to_string())
}

/// Replaces all markers of a statement except those for operators, and returns its text.
///
/// `{docs}`, `{logs}`, `{metrics}` and `{history}` are the tables of the queue, `{q}` is its
/// name within an identifier, `{planned}`, `{pending}`, `{active}`, `{completed}` and
/// `{killed}` are the codes of the statuses, `{subject_max}` is the length of a subject in
/// characters, `{is_leased}`, `{not_late c}`, `{not_late d}` and `{needs_number}` are the predicates of these names,
/// `{late_lease c}` and `{late_lease d}` the lease number that a row does not have, `{settled_by}` and
/// `{leased_by}` say what the last worker did with the document and who it was, `{own_error}` is the error that a document
/// keeps when it gets another payload, and `{next_iterations}` are the iterations of the document and
/// one more. `{kept}` are the columns of the documents that the history has, and `{kept_as_it_is}`
/// those of a document `d` that it has as they are.
pub fn render(sql: &str, name: &QueueName) -> String {
    render_shared(sql)
        .replace("{docs}", &name.qualified("docs"))
        .replace("{logs}", &name.qualified("logs"))
        .replace("{metrics}", &name.qualified("metrics"))
        .replace("{history}", &name.qualified("history"))
        .replace("{q}", name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_sees_the_leases_that_it_may_change() {
        for (sql, scope) in [
            ("select 1 from fetchq.queues", Scope::Nothing),
            ("select d.status from only {docs} d where d.subject {=} $1", Scope::Reading),
            ("select d.status from only {docs} d where d.subject {=} $1 for update", Scope::Subject(1)),
            ("update only {docs} d set payload = $1 where d.subject {=} $12", Scope::Subject(12)),
            ("delete from only {docs} d where d.subject {=} any ($2)", Scope::Subjects(2)),
            (
                "update only {docs} d set payload = i.payload from rows from (pg_catalog.unnest($3)) as i (subject)
                 where d.subject {=} i.subject",
                Scope::Subjects(3),
            ),
            ("update only {docs} d set priority = $1", Scope::Table),
            ("insert into {docs} (subject) values ($1) on conflict do nothing", Scope::Nothing),
        ] {
            assert_eq!(Scope::of(sql), scope, "{sql}");
        }
    }
}
