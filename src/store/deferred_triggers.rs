//! Deferred triggers of users on the tables of queues, which the server would run at the end of the
//! transaction.

use crate::pg::spi;

// SET CONSTRAINTS takes names, which several tables of a schema may share. Constraints of other
// schemas (a foreign key to documents is one) are left out: their names may be those of other roles'
// triggers, too, which would run with the rights of this call. So is a name that would also defer
// what is not deferred by itself.
const LIST: &str = "select pg_catalog.string_agg(
        distinct pg_catalog.format('fetchq_data.%I', c.conname), ', ')
    from pg_catalog.pg_trigger t
    join pg_catalog.pg_constraint c on c.oid {=} t.tgconstraint
    where t.tginitdeferred and c.connamespace {=} 'fetchq_data'::pg_catalog.regnamespace
        and not exists (
            select from pg_catalog.pg_constraint o
            where o.conname {=} c.conname and o.connamespace {=} c.connamespace
                and not o.condeferred)";

/// The deferred triggers on the tables of all queues.
pub struct DeferredTriggers {
    /// The names of their constraints, for SET CONSTRAINTS. None where there are none, as nearly
    /// always.
    names: Option<String>,
}

impl DeferredTriggers {
    /// Finds them.
    pub fn find() -> Self {
        let names = spi::connect(|spi| spi.once(LIST, &[]).get(0, 1));
        Self { names }
    }

    /// Runs those that wait for the end of the transaction. So one that fails undoes the work on its
    /// queue, if that runs in a subtransaction, and not the transaction of all queues.
    pub fn run(&self) {
        let Some(names) = &self.names else {
            return;
        };
        spi::connect(|spi| {
            spi.once_verbatim(&format!("set constraints {names} immediate"), &[]);
            spi.once_verbatim(&format!("set constraints {names} deferred"), &[]);
        });
    }
}
