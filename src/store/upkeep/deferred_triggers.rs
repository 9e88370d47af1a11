//! Deferred triggers of users on the tables of queues, which the server would run at the end of the
//! transaction.

use crate::domain::names::{QueueName, TABLES};
use crate::pg::spi;
use crate::pg::value::Arg;

const EXIST: &str = "select exists (
        select from pg_catalog.pg_trigger t
        join pg_catalog.pg_class c on c.oid {=} t.tgrelid
        where t.tginitdeferred and c.relnamespace {=} 'fetchq_data'::pg_catalog.regnamespace)";

// SET CONSTRAINTS takes names, which several tables of a schema may share. Constraints of other
// schemas (a foreign key to documents is one) are left out: their names may be those of other roles'
// triggers, too, which would run with the rights of this call. So is a name that would also defer
// what is not deferred by itself. $1: the tables of a queue.
const LIST: &str = "select pg_catalog.string_agg(
        distinct pg_catalog.format('fetchq_data.%I', c.conname), ', ')
    from pg_catalog.pg_class r
    join pg_catalog.pg_trigger t on t.tgrelid {=} r.oid
    join pg_catalog.pg_constraint c on c.oid {=} t.tgconstraint
    where r.relname {=} any ($1::pg_catalog.name[])
        and r.relnamespace {=} 'fetchq_data'::pg_catalog.regnamespace
        and t.tginitdeferred and c.connamespace {=} 'fetchq_data'::pg_catalog.regnamespace
        and not exists (
            select from pg_catalog.pg_constraint o
            where o.conname {=} c.conname and o.connamespace {=} c.connamespace
                and not o.condeferred)";

/// Whether there are any, as nearly never.
pub struct DeferredTriggers(bool);

impl DeferredTriggers {
    /// Finds out.
    pub fn find() -> Self {
        Self(spi::connect(|spi| spi.once(EXIST, &[]).get(0, 1)).unwrap_or(false))
    }

    /// Runs those on the tables of a queue that wait for the end of the transaction. So one that fails
    /// undoes the work on its queue, if that runs in a subtransaction, and not the transaction of all
    /// queues.
    pub fn run(&self, queue: &str) {
        let Some(queue) = self.0.then(|| QueueName::parse(queue).ok()).flatten() else {
            return;
        };
        let tables: Vec<String> = TABLES.iter().map(|suffix| queue.relation(suffix)).collect();
        let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
        spi::connect(|spi| {
            // As of now: another session may have dropped a trigger since the last queue.
            let names: Option<String> = spi.once_latest(LIST, &[Arg::from(tables)]).get(0, 1);
            if let Some(names) = names {
                spi.once_verbatim(&format!("set constraints {names} immediate"), &[]);
                spi.once_verbatim(&format!("set constraints {names} deferred"), &[]);
            }
        });
    }
}
