//! What an action does to a leased document, written once: the columns that change, what the document
//! becomes, where it goes, and what is counted. The statements come from here, and so do the rows that
//! are written without one.
//!
//! A list is written by the same statement as one document, beside the list. A document that moves to
//! the history takes along what the action writes, see `history::SETTLE`.

use Argument::{At, Error, Payload};
use Value::{AttemptBack, IfGiven, Is, NextIterations, Now, Null, SettledBy, Zero};

use crate::domain::counter_events::Event;
use crate::domain::document::InHistory;
use crate::domain::settlement::Action;
use crate::domain::status::Status;
use crate::pg::documents::{Column, Row};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::documents::history::{self, Outcome};
use crate::store::queues::statement::{Scope, Statement};

/// What a column becomes. A column that is not listed stays as it is.
#[derive(Clone, Copy)]
pub enum Value {
    Null,
    Zero,
    /// The start of the transaction.
    Now,
    /// The iterations and one more.
    NextIterations,
    /// The attempts and one less.
    AttemptBack,
    /// The worker session, and that this is what it did: see `ACTION_BITS`.
    SettledBy(Action),
    /// What the call says.
    Is(Argument),
    /// What the call says, unless it says nothing.
    IfGiven(Argument),
}

/// What a call says about a document.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    Status,
    /// When the document is due.
    At,
    Payload,
    Result,
    /// The last error.
    Error,
}

impl Argument {
    /// The name of the column of a list, if each document of a list has a value of its own.
    pub fn in_list(self) -> Option<&'static str> {
        match self {
            Self::Status | Self::At => None,
            Self::Payload => Some("payload"),
            Self::Result => Some("result"),
            Self::Error => Some("last_error"),
        }
    }
}

/// What becomes of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Becomes {
    /// It gets this status.
    Settled(Status),
    /// It is pending, or planned until the call says.
    Due,
    /// As `Due`, unless it has had all its attempts: then [`REJECT_LAST`] is what happens.
    Retried,
    /// It is removed, or moves to the history.
    Removed,
}

/// What a statement is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    One,
    Many,
    /// Many documents, which move to the history.
    History,
    /// The same for documents whose leases are not in their rows: a list says what the rows would have.
    LateHistory,
}

/// What a lease writes into a row and the history keeps.
pub const OF_LEASE: [Column; 5] = [
    Column::Attempts,
    Column::Lease,
    Column::WorkerSession,
    Column::DueAt,
    Column::PickedAt,
];

impl Form {
    /// Which columns are those of the list, and not of the row.
    fn of_list(self) -> &'static [Column] {
        match self {
            Self::LateHistory => &OF_LEASE,
            _ => &[],
        }
    }
}

/// What an action does to a document.
pub struct Effect {
    pub becomes: Becomes,
    columns: &'static [(Column, Value)],
    /// The outcome in the history, which says where the document goes. None: it stays in the table.
    pub outcome: Option<Outcome>,
    /// What is counted for a document that stays with a status.
    pub stays: fn(Status) -> Event,
    /// What is counted for a document that leaves the table.
    pub leaves: Event,
    one: Statement,
    many: Statement,
    history: Statement,
    late_history: Statement,
}

macro_rules! effects {
    ($($(#[$doc:meta])* $name:ident: $becomes:expr, [$($column:ident <- $value:expr),*],
        $outcome:expr, $stays:expr, $leaves:expr;)*) => {$(
        $(#[$doc])*
        pub static $name: Effect = Effect {
            becomes: $becomes,
            columns: &[$((Column::$column, $value)),*],
            outcome: $outcome,
            stays: $stays,
            leaves: $leaves,
            one: Statement::made(|| $name.sql(Form::One)),
            many: Statement::made(|| $name.sql(Form::Many)),
            history: Statement::made(|| $name.history_sql(Form::History)),
            // Its documents are held.
            late_history: Statement::made(|| $name.history_sql(Form::LateHistory)).in_scope(Scope::Nothing),
        };
    )*};
}

// All of them end the lease by the status alone. The lease number stays, so that the next one is
// greater, and so does the worker session, with what it did.
effects! {
    /// Completes a document. What comes after it begins without its progress.
    COMPLETE: Becomes::Settled(Status::Completed), [
        Attempts <- Zero, Iterations <- NextIterations, LastIteration <- Now,
        NextIteration <- Is(At), WorkerSession <- SettledBy(Action::Complete), Progress <- Null,
        Payload <- IfGiven(Payload), Result <- Is(Argument::Result), LastError <- Null
    ], Some(Outcome::Completed), |_| Event::Complete, Event::Drop;

    /// Kills a document. It keeps its last error, unless the worker says why.
    KILL: Becomes::Settled(Status::Killed), [
        Attempts <- Zero, Iterations <- NextIterations, LastIteration <- Now,
        WorkerSession <- SettledBy(Action::Kill), Payload <- IfGiven(Payload), Result <- Null,
        LastError <- IfGiven(Error)
    ], Some(Outcome::Killed), |_| Event::Kill, Event::KillRemoved;

    /// Drops a document. What it writes is for the history.
    DROP: Becomes::Removed, [
        Iterations <- NextIterations, WorkerSession <- SettledBy(Action::Drop), Result <- Null
    ], Some(Outcome::Dropped), |_| Event::Drop, Event::Drop;

    /// Gives a document back after a failure. Attempts and result stay.
    REJECT: Becomes::Retried, [
        Iterations <- NextIterations, LastIteration <- Now, NextIteration <- Is(At),
        WorkerSession <- SettledBy(Action::Reject), LastError <- Is(Error)
    ], None, Event::reject, Event::RejectRemoved;

    /// Kills a document that is rejected and has had all its attempts. These and its time stay. It is
    /// moved afterwards, see `dead_letters::settle_failed`.
    REJECT_LAST: Becomes::Settled(Status::Killed), [
        Iterations <- NextIterations, LastIteration <- Now,
        WorkerSession <- SettledBy(Action::Reject), Result <- Null, LastError <- Is(Error)
    ], None, Event::reject, Event::RejectRemoved;

    /// Gives a document back as if it had not been picked.
    SNOOZE: Becomes::Due, [
        Attempts <- AttemptBack, NextIteration <- Is(At),
        WorkerSession <- SettledBy(Action::Snooze)
    ], None, Event::put_back, Event::Drop;

    /// Plans the next iteration of a document.
    RESCHEDULE: Becomes::Due, [
        Attempts <- Zero, Iterations <- NextIterations, LastIteration <- Now,
        NextIteration <- Is(At), WorkerSession <- SettledBy(Action::Reschedule),
        Progress <- Null, Payload <- IfGiven(Payload), Result <- Null, LastError <- Null,
        ExpiresAt <- Null
    ], None, Event::reschedule, Event::Drop;
}

/// What a statement returns of each document as it was written, or as it was removed, after the subject
/// that the caller knows: a trigger of the user's may change it. `history::SETTLE` returns the same.
const RETURNED: &str =
    "d.version, d.picked_at, d.attempts, d.priority, d.seq, d.queued, d.max_attempts";

impl Effect {
    /// The effect of an action.
    pub fn of(action: Action) -> &'static Self {
        match action {
            Action::Complete => &COMPLETE,
            Action::Drop => &DROP,
            Action::Reject => &REJECT,
            Action::Kill => &KILL,
            Action::Snooze => &SNOOZE,
            Action::Reschedule => &RESCHEDULE,
        }
    }

    /// Changes a document. `says` returns what the call says about it.
    pub fn write(&self, row: &mut Row, says: impl Fn(Argument) -> Arg) {
        for (column, value) in self.columns {
            let value = match value {
                Null => Arg::from(None::<&str>),
                Zero => Arg::from(0),
                Now => Arg::timestamp(time::now()),
                NextIterations => Arg::from(row.int8(*column).saturating_add(1)),
                AttemptBack => Arg::from(row.int4(*column).saturating_sub(1).max(0)),
                SettledBy(_) if row.is_null(*column) => continue,
                SettledBy(action) => Arg::from(row.int8(*column) | action.code()),
                Is(argument) => says(*argument),
                IfGiven(argument) => {
                    let given = says(*argument);
                    if given.is_null() {
                        continue;
                    }
                    given
                }
            };
            row.set(*column, &value);
        }
        row.set(Column::Status, &says(Argument::Status));
    }

    /// The statement that does this. Its parameters are the subject or a list of subjects, the lease
    /// number or NULL, for the history two more (see `history::SETTLE`), the lists [`OF_LEASE`] where the rows do
    /// not have the leases, and the [`Self::arguments`].
    pub fn statement(&'static self, form: Form) -> &'static Statement {
        match form {
            Form::One => &self.one,
            Form::Many => &self.many,
            Form::History => &self.history,
            Form::LateHistory => &self.late_history,
        }
    }

    /// What the statement takes after the other parameters.
    pub fn arguments(&self, form: Form) -> impl Iterator<Item = Argument> + '_ {
        let takes_status = matches!(self.becomes, Becomes::Due | Becomes::Retried);
        let status = takes_status.then_some(Argument::Status);
        let columns = self.columns.iter().filter_map(|(_, value)| match value {
            Is(argument) | IfGiven(argument) => Some(*argument),
            _ => None,
        });
        let is_taken = move |argument: &Argument| match form {
            Form::History | Form::LateHistory => argument.in_list().is_some(),
            Form::One | Form::Many => true,
        };
        status.into_iter().chain(columns).filter(is_taken)
    }

    /// The arguments with the numbers of their parameters.
    fn parameters(&self, form: Form) -> impl Iterator<Item = (usize, Argument)> + '_ {
        let first = match form {
            Form::History | Form::LateHistory => {
                history::SETTLE_PARAMETERS + form.of_list().len() + 1
            }
            Form::One | Form::Many => 3,
        };
        (first..).zip(self.arguments(form))
    }

    /// An argument as an expression.
    fn says(&self, form: Form, argument: Argument) -> String {
        let number = self
            .parameters(form)
            .find(|(_, taken)| *taken == argument)
            .map_or(0, |(number, _)| number);
        match argument.in_list() {
            Some(name) if form != Form::One => format!("i.{name}"),
            _ => format!("${number}"),
        }
    }

    /// What a column becomes, as an expression.
    fn expression(&self, form: Form, column: Column) -> String {
        let name = column.name();
        let row = match form.of_list().contains(&column) {
            true => "i",
            false => "d",
        };
        let value = self.columns.iter().find(|(changed, _)| *changed == column);
        match value.map(|(_, value)| value) {
            None => format!("{row}.{name}"),
            Some(Null) => "null".to_owned(),
            Some(Zero) => "0".to_owned(),
            Some(Now) => "pg_catalog.now()".to_owned(),
            Some(NextIterations) => "{next_iterations}".to_owned(),
            Some(AttemptBack) => format!("greatest(d.{name} {{-}} 1, 0)"),
            Some(SettledBy(action)) => format!("{row}.{name} {{|}} {}", action.code()),
            Some(Is(argument)) => self.says(form, *argument),
            Some(IfGiven(argument)) => {
                format!("coalesce({}, d.{name})", self.says(form, *argument))
            }
        }
    }

    /// The list of documents `i` of a statement for many.
    fn list(&self, form: Form) -> String {
        let mut unnested = "pg_catalog.unnest($1)".to_owned();
        let mut names = "subject".to_owned();
        for (number, column) in (history::SETTLE_PARAMETERS + 1..).zip(form.of_list()) {
            unnested += &format!(", pg_catalog.unnest(${number})");
            names += &format!(", {}", column.name());
        }
        for (number, argument) in self.parameters(form) {
            if let Some(name) = argument.in_list() {
                unnested += &format!(", pg_catalog.unnest(${number})");
                names += &format!(", {name}");
            }
        }
        ["rows from (", &unnested, ") as i", " (", &names, ")"].concat()
    }

    /// The statement for the table. Its index: the primary key, once for each document. No other index
    /// can serve `{is_leased}`.
    fn sql(&self, form: Form) -> String {
        let (change, list) = match self.becomes {
            Becomes::Removed => ("delete from only {docs} d".to_owned(), "using"),
            _ => (self.update(form), "from"),
        };
        let (list, subject) = match form {
            Form::One => (String::new(), "$1"),
            _ => (format!("\n     {list} {}", self.list(form)), "i.subject"),
        };
        format!(
            "{change}{list}
     where d.subject {{=}} {subject}
         and {{is_leased}}
     returning {subject}::pg_catalog.text, {RETURNED}"
        )
    }

    fn update(&self, form: Form) -> String {
        let status = match self.becomes {
            Becomes::Settled(status) => format!("{{{}}}", status.word()),
            _ => self.says(form, Argument::Status),
        };
        let mut update = format!("update only {{docs}} d set\n         status = {status}");
        for (column, _) in self.columns {
            let value = self.expression(form, *column);
            update += &format!(",\n         {} = {value}", column.name());
        }
        update
    }

    fn history_sql(&self, form: Form) -> String {
        let outcome = self.outcome.map_or("", Outcome::word);
        let sql = history::SETTLE
            .replace("{list}", &self.list(form))
            .replace("{outcome}", &format!("'{outcome}'"))
            .replace("{settled}", &self.columns_as(form, InHistory::AsSettled));
        if form == Form::History {
            return sql;
        }
        // No index can serve the status.
        let is_leased = "d.status {+} 0 {=} {pending} and {late_lease d} {=} i.lease";
        sql.replace("{is_leased}", is_leased)
            .replace("{kept_as_it_is}", &self.columns_as(form, InHistory::AsItIs))
            .replace(
                "d.worker_session as leased_by",
                "i.worker_session as leased_by",
            )
    }

    /// What the history gets of the columns of this kind.
    fn columns_as(&self, form: Form, kind: InHistory) -> String {
        let columns = Column::ALL.into_iter();
        let columns = columns.filter(|column| column.def().in_history == kind);
        let columns = columns.map(|column| {
            let def = column.def();
            let value = match kind {
                InHistory::AsItIs if form.of_list().contains(&column) => format!("i.{}", def.name),
                InHistory::AsItIs => format!("d.{}", def.name),
                _ => self.expression(form, column),
            };
            // A NULL has no type of its own.
            let value = match value.as_str() {
                "null" => format!("null::{}", def.type_.sql()),
                _ => value,
            };
            format!("{value} as {}", def.name)
        });
        columns.collect::<Vec<String>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that no parameter has would be `$0`.
    #[test]
    fn every_value_of_a_statement_has_a_parameter() {
        let all = [
            &COMPLETE,
            &KILL,
            &DROP,
            &REJECT,
            &REJECT_LAST,
            &SNOOZE,
            &RESCHEDULE,
        ];
        for effect in all {
            let mut statements = vec![effect.sql(Form::One), effect.sql(Form::Many)];
            if effect.outcome.is_some() {
                statements.push(effect.history_sql(Form::History));
                statements.push(effect.history_sql(Form::LateHistory));
            }
            for sql in statements {
                assert!(!sql.contains("$0"), "{sql}");
            }
        }
    }
}
