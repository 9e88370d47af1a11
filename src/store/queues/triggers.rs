//! The triggers of a queue's documents: making, enabling and dropping them.

use crate::domain::names::QueueName;
use crate::pg::relation::{self, LockMode};
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::store::queues::statement::render;

// The trigger notes every row that a pick or maintenance can find in shared memory, whatever
// wrote it: also COPY, logical replication, and a session with session_replication_role =
// replica. And it tells `cmp` that somebody else has written or removed documents. It does not see the rows of fetchq's own statements, which note their entries
// themselves, because that costs less.
const CREATE_READY_TRIGGER: &str =
    "create trigger fetchq_ready after insert or update or delete on {docs}
    for each row execute function fetchq.trigger_docs_ready()";

const ENABLE_READY_TRIGGER: &str = "alter table {docs} enable always trigger fetchq_ready";

// The mode of the trigger.
const GET_READY_TRIGGER: &str = "select (
        select t.tgenabled::pg_catalog.text from pg_catalog.pg_trigger t
        where t.tgrelid {=} c.oid and t.tgname {=} 'fetchq_ready')
    from pg_catalog.pg_class c
    where c.oid {=} pg_catalog.to_regclass($1)";

/// Makes the trigger of the ready floors where it is missing, and lets it fire always. A
/// restore with --disable-triggers leaves it in another mode, in which the floors are not
/// used.
pub fn create_ready_trigger(spi: &Spi, name: &QueueName) {
    let table = name.qualified("docs");
    let rows = spi.once(GET_READY_TRIGGER, &[Arg::from(table.as_str())]);
    if rows.is_empty() {
        return;
    }
    let mode: Option<String> = rows.get(0, 1);
    if mode.is_none() {
        spi.once(&render(CREATE_READY_TRIGGER, name), &[]);
    }
    if mode.as_deref() != Some("A") {
        spi.once(&render(ENABLE_READY_TRIGGER, name), &[]);
    }
}

/// Repairs the ready trigger for maintenance, which never waits: does nothing when the documents
/// cannot be locked at once.
pub fn repair_ready_trigger(name: &QueueName) {
    if let Some(table) = relation::lookup_data_table(&name.relation("docs"))
        && relation::try_lock(table, LockMode::Writers)
    {
        spi::connect(|spi| create_ready_trigger(spi, name));
    }
}

const NOTIFY_TRIGGERS: [(&str, &str); 2] = [
    (
        "fetchq_notify_insert",
        "create trigger fetchq_notify_insert after insert on {docs}
         for each row execute function fetchq.trigger_docs_notify('{q}')",
    ),
    (
        "fetchq_notify_update",
        "create trigger fetchq_notify_update after update of status on {docs}
         for each row when (old.status {<>} new.status)
         execute function fetchq.trigger_docs_notify('{q}')",
    ),
];

/// Switches the notifications of the statuses of documents on or off. The npm client switches them on
/// at every start.
pub fn set_notify(name: &QueueName, on: bool) {
    spi::connect(|spi| set_triggers(spi, name, &NOTIFY_TRIGGERS, on));
}

const LIST_NOTIFYING: &str =
    "select tgrelid from pg_catalog.pg_trigger where tgname {=} 'fetchq_notify_insert'";

/// The tables of documents whose statuses are announced, by OID.
pub fn tables_with_notifications() -> Vec<u32> {
    spi::connect(|spi| {
        let rows = spi.once(LIST_NOTIFYING, &[]);
        (0..rows.len())
            .filter_map(|row| rows.number(row, 1))
            .collect()
    })
}

// $2: the names, as text.
const LIST_TRIGGERS: &str =
    "select tgname::pg_catalog.text, tgenabled {<>} 'D' from pg_catalog.pg_trigger
    where tgrelid {=} pg_catalog.to_regclass($1) and tgname {=} any ($2)";

/// Makes those triggers of a list that are missing and enables the others, or drops all that
/// exist. `triggers`: their names, and the statements that create them. Without a change there is no
/// lock on the table, and no plan is invalidated.
pub(in crate::store) fn set_triggers(
    spi: &Spi,
    name: &QueueName,
    triggers: &[(&str, &str)],
    on: bool,
) {
    let table = name.qualified("docs");
    let names: Vec<&str> = triggers.iter().map(|(trigger, _)| *trigger).collect();
    let rows = spi.once(
        LIST_TRIGGERS,
        &[Arg::from(table.as_str()), Arg::from(names)],
    );
    let existing: Vec<(String, bool)> = (0..rows.len())
        .filter_map(|row| Some((rows.get(row, 1)?, rows.get(row, 2)?)))
        .collect();
    for (trigger, create) in triggers {
        let sql = match existing.iter().find(|(name, _)| name == trigger) {
            None if on => render(create, name),
            Some((_, false)) if on => format!("alter table {table} enable trigger {trigger}"),
            Some(_) if !on => format!("drop trigger {trigger} on {table}"),
            _ => continue,
        };
        spi.once(&sql, &[]);
    }
}

/// Returns whether all triggers of a list exist and are enabled.
pub(in crate::store) fn has_triggers(
    spi: &Spi,
    name: &QueueName,
    triggers: &[(&str, &str)],
) -> bool {
    let table = name.qualified("docs");
    let names: Vec<&str> = triggers.iter().map(|(trigger, _)| *trigger).collect();
    let args = [Arg::from(table.as_str()), Arg::from(names)];
    let rows = spi.once(LIST_TRIGGERS, &args);
    let enabled = (0..rows.len()).filter(|row| rows.get(*row, 2) == Some(true));
    enabled.count() == triggers.len()
}
