//! Grants on queues: `queue_grant`, `queue_revoke` and `queue_grants`.
//!
//! A grant is nothing but privileges on the tables of the queue. So a dump keeps it, and what GRANT
//! and REVOKE do counts as well. Readers and managers have the privileges that their plain SQL needs.
//! What producers and workers do goes through the calls of fetchq alone: they have a mark, REFERENCES
//! on a column that no foreign key can refer to, which gives plain SQL nothing. Tables that are
//! created later get their privileges from those on the docs table.

use crate::domain::names::{QueueName, TABLES};
use crate::error::{Error, Result};
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::pg::{acl, relation, role};
use crate::store::queues::rights::{self, Right};

/// A kind of grant: its name, and its privileges on the tables of a queue.
struct Kind {
    name: &'static str,
    /// The kinds that it includes.
    includes: &'static [&'static str],
    /// The tables by their suffix, and the privileges.
    privileges: &'static [(&'static str, &'static str)],
}

const ALL_OF_A_TABLE: &str = "select, insert, update, delete, truncate";

/// The kinds, each after those that it includes. Nobody gets TRIGGER, or REFERENCES on a column that
/// has a unique index, with which a role could run code as the role that changes a document.
const KINDS: [Kind; 4] = [
    Kind {
        name: "reader",
        includes: &[],
        privileges: &[
            ("docs", "select"),
            ("logs", "select"),
            ("metrics", "select"),
            ("history", "select"),
        ],
    },
    Kind {
        name: "producer",
        includes: &[],
        privileges: &[("docs", "references (payload)")],
    },
    Kind {
        name: "worker",
        includes: &["reader", "producer"],
        privileges: &[
            ("docs", "select, references (payload, result)"),
            ("logs", "select"),
            ("metrics", "select"),
            ("history", "select"),
        ],
    },
    Kind {
        name: "manager",
        includes: &["reader", "producer", "worker"],
        privileges: &[
            ("docs", ALL_OF_A_TABLE),
            ("logs", ALL_OF_A_TABLE),
            ("metrics", ALL_OF_A_TABLE),
            ("history", ALL_OF_A_TABLE),
        ],
    },
];

/// Finds a kind by its name.
///
/// Fails with `Error::BadValue`.
fn kind(name: &str) -> Result<&'static Kind> {
    KINDS
        .iter()
        .find(|kind| kind.name == name)
        .ok_or_else(|| Error::BadValue {
            argument: "kind",
            value: name.to_owned(),
            rule: "'reader', 'producer', 'worker' or 'manager'",
        })
}

// $1: the name of the role, $2 and $3: what comes before and after it.
const QUOTE_ROLE: &str =
    "select $2 {||} pg_catalog.quote_ident(r.rolname) {||} $3 from pg_catalog.pg_roles r
    where r.rolname {=} $1";

/// Returns a statement that names a role. The server quotes the name.
///
/// Fails with `Error::UnknownRole`.
fn sql_for_role(spi: &Spi, role: &str, before: &str, after: &str) -> Result<String> {
    let args = [Arg::from(role), Arg::from(before), Arg::from(after)];
    let rows = spi.once(QUOTE_ROLE, &args);
    (!rows.is_empty())
        .then(|| rows.get(0, 1))
        .flatten()
        .ok_or_else(|| Error::UnknownRole(role.to_owned()))
}

/// Runs a statement that names a role.
///
/// Fails with `Error::UnknownRole`.
fn run_for_role(spi: &Spi, role: &str, before: &str, after: &str) -> Result<()> {
    spi.once_verbatim(&sql_for_role(spi, role, before, after)?, &[]);
    Ok(())
}

/// The privileges on a docs table `c` that are rights on its queue, one row each: `grantee, privilege`.
/// The marks are PUSH and WORK; TRUNCATE with the grant option is OWN.
macro_rules! privileges_of_table {
    () => {
        "(select a.grantee, a.privilege_type as privilege
            from pg_catalog.aclexplode(c.relacl) a
            union all
            select a.grantee, 'OWN' from pg_catalog.aclexplode(c.relacl) a
            where a.privilege_type {=} 'TRUNCATE' and a.is_grantable
            union all
            select a.grantee, case when t.attname {=} 'payload' then 'PUSH' else 'WORK' end
            from pg_catalog.pg_attribute t
            cross join pg_catalog.aclexplode(t.attacl) a
            where t.attrelid {=} c.oid and t.attacl is not null
                and t.attname {=} any ('{payload,result}'::pg_catalog.name[])
                and a.privilege_type {=} 'REFERENCES')"
    };
}

/// The kinds that an array `privileges` says, the widest ones, as `k (kind)`.
macro_rules! kinds_of_privileges {
    () => {
        "cross join pg_catalog.unnest(case
            when 'OWN' {=} any (privileges) then array['owner']
            when 'TRUNCATE' {=} any (privileges) then array['manager']
            when privileges {&&} array['WORK', 'UPDATE'] then array['worker']
            else pg_catalog.array_remove(array[
                case when 'SELECT' {=} any (privileges) then 'reader' end,
                case when privileges {&&} array['PUSH', 'INSERT'] then 'producer' end], null)
        end) as k (kind)"
    };
}

// The kinds that the docs table $1 says, the widest of each role: `held (grantee, kind)`.
const HELD: &str = concat!(
    "with listed as (
        select p.grantee, pg_catalog.array_agg(p.privilege) as privileges
        from pg_catalog.pg_class c
        cross join lateral ",
    privileges_of_table!(),
    " p
        where c.oid {=} pg_catalog.to_regclass($1) and p.grantee {<>} c.relowner
        group by p.grantee
    ),
    held as (
        select grantee, k.kind
        from listed
        ",
    kinds_of_privileges!(),
    "
    )"
);

const LIST_HELD: &str = "select h.kind from held h
    join pg_catalog.pg_roles r on r.oid {=} h.grantee
    where r.rolname {=} $2";

/// The kinds that a role has been granted on a queue: a manager or a worker, or up to two others. An
/// owner is a manager here.
fn held(spi: &Spi, name: &QueueName, role: &str) -> Vec<&'static Kind> {
    let docs = name.qualified("docs");
    let sql = format!("{HELD} {LIST_HELD}");
    let rows = spi.once(&sql, &[Arg::from(docs.as_str()), Arg::from(role)]);
    let kinds: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    let has = |kind: &Kind| {
        kinds
            .iter()
            .any(|name| name == kind.name || name == "owner" && kind.name == "manager")
    };
    KINDS.iter().filter(|kind| has(kind)).collect()
}

fn includes(outer: &Kind, inner: &Kind) -> bool {
    outer.name == inner.name || outer.includes.contains(&inner.name)
}

const ROLE_EXISTS: &str = "select from pg_catalog.pg_roles where rolname {=} $1";

fn check_role(spi: &Spi, role: &str) -> Result<()> {
    match spi.once(ROLE_EXISTS, &[Arg::from(role)]).is_empty() {
        true => Err(Error::UnknownRole(role.to_owned())),
        false => Ok(()),
    }
}

const LACKS_USAGE: &str = "select from pg_catalog.pg_namespace n
    where n.nspname {=} any (array['fetchq', 'fetchq_data'])
        and not pg_catalog.has_schema_privilege($1::pg_catalog.name, n.oid, 'usage')";

/// Makes a role a reader, producer, worker or manager of a queue, and gives it USAGE on the schemas
/// of fetchq. The caller owns the queue, and has locked its registry row. Returns false when the
/// role was one before.
///
/// Fails with `Error::UnknownRole` and `Error::BadValue`.
pub fn grant(name: &QueueName, role: &str, kind_name: &str) -> Result<bool> {
    let wanted = kind(kind_name)?;
    spi::connect(|spi| {
        check_role(spi, role)?;
        // Without rights on a queue, USAGE gives nothing but the right to be refused by the
        // functions.
        let lacks_usage = || !spi.once(LACKS_USAGE, &[Arg::from(role)]).is_empty();
        if lacks_usage() {
            // Of two transactions that change the privileges on a schema, PostgreSQL fails one.
            // So the second one waits.
            if let Some(registry) = relation::lookup("fetchq", "queues") {
                relation::serialize(registry);
            }
            if lacks_usage() {
                let usage = "grant usage on schema fetchq, fetchq_data to ";
                spi.once_as_extension_owner(&sql_for_role(spi, role, usage, "")?, &[]);
            }
        }
        if held(spi, name, role)
            .iter()
            .any(|held| includes(held, wanted))
        {
            return Ok(false);
        }
        for (table, privileges) in wanted.privileges {
            if relation::lookup_data_table(&name.relation(table)).is_some() {
                let table = name.qualified(table);
                let before = format!("grant {privileges} on table {table} to ");
                run_for_role(spi, role, &before, "")?;
            }
        }
        Ok(true)
    })
}

/// Takes a kind of grant from a role. The caller owns the queue, and has locked its registry row.
/// Returns false when the role did not have it.
///
/// Fails with `Error::IncludedGrant` when the role has a kind that includes this one, with
/// `Error::OtherGrantor` when another role has granted it too, and with `Error::UnknownRole` and
/// `Error::BadValue`.
pub fn revoke(name: &QueueName, role: &str, kind_name: &str) -> Result<bool> {
    let unwanted = kind(kind_name)?;
    spi::connect(|spi| {
        check_role(spi, role)?;
        let held = held(spi, name, role);
        if !held.iter().any(|kind| kind.name == unwanted.name) {
            return match held.iter().find(|kind| includes(kind, unwanted)) {
                Some(wider) => Err(Error::IncludedGrant {
                    role: role.to_owned(),
                    queue: name.to_string(),
                    kind: unwanted.name,
                    held: wider.name,
                }),
                None => Ok(false),
            };
        }
        // A privilege on a table goes with those on its columns. What is left is granted again.
        for table in TABLES {
            if relation::lookup_data_table(&name.relation(table)).is_none() {
                continue;
            }
            let table_name = name.qualified(table);
            let before = format!("revoke {ALL_OF_A_TABLE} on table {table_name} from ");
            run_for_role(spi, role, &before, "")?;
            if table == "docs" {
                let before =
                    format!("revoke references (payload, result) on table {table_name} from ");
                run_for_role(spi, role, &before, "")?;
            }
            for kept in held.iter().filter(|kind| kind.name != unwanted.name) {
                for (_, privileges) in kept.privileges.iter().filter(|(of, _)| *of == table) {
                    let before = format!("grant {privileges} on table {table_name} to ");
                    run_for_role(spi, role, &before, "")?;
                }
            }
        }
        // What a role has granted that got its right with the grant option is still there.
        let is_left = |kind: &&Kind| kind.name == unwanted.name;
        match self::held(spi, name, role).iter().any(is_left) {
            true => Err(Error::OtherGrantor {
                role: role.to_owned(),
                queue: name.to_string(),
                kind: unwanted.name,
            }),
            false => Ok(true),
        }
    })
}

/// Makes the caller, who has just created a queue, its owner: a manager who may drop it and grant
/// rights on it. The role that owns the tables has these rights already.
pub(in crate::store) fn grant_to_creator(spi: &Spi, name: &QueueName) -> Result<()> {
    let creator = role::current();
    if role::data_owner() == Some(creator) {
        return Ok(());
    }
    for table in ["docs", "logs", "metrics"] {
        let table = name.qualified(table);
        let before = format!("grant {ALL_OF_A_TABLE} on table {table} to ");
        run_for_role(spi, &role::name(creator), &before, " with grant option")?;
    }
    Ok(())
}

// The roles that were granted a kind, and the members of those roles that inherit it. The owner of a
// queue is its creator; the role that owns the tables where that is the creator.
// Each role is asked once for its members, however many queues there are. $1 and $2: the queues.
const LIST: &str = concat!(
    "with queues as materialized (
        select q.name, c.oid, c.relowner, c.relacl from fetchq.queues q
        join pg_catalog.pg_class c on c.relname {=} (q.name {||} '__docs')::pg_catalog.name
            and c.relnamespace {=} 'fetchq_data'::pg_catalog.regnamespace
        where $1 or q.name {=} any ($2)
    ),
    granted as materialized (
        select c.name as queue, a.grantee as role, k.kind from queues c
        cross join lateral (
            select p.grantee, pg_catalog.array_agg(p.privilege) as privileges
            from ",
    privileges_of_table!(),
    " p
            where p.grantee {<>} c.relowner
            group by p.grantee) a
        ",
    kinds_of_privileges!(),
    "
    ),
    direct as materialized (
        select queue, role, kind from granted
        union all
        select q.name, q.relowner, 'owner' from queues q
        where not exists (
            select from granted g where g.queue {=} q.name and g.kind {=} 'owner')
    ),
    members as materialized (
        select d.role, m.rolname from (select distinct role from direct where role {<>} 0) d
        join pg_catalog.pg_roles m on m.oid {<>} d.role and not m.rolsuper
            and pg_catalog.pg_has_role(m.oid, d.role, 'usage')
    )
    select queue, role, kind, pg_catalog.bool_or(is_direct) from (
        select d.queue, case when d.role {=} 0 then 'public'::pg_catalog.name else r.rolname end as role,
            d.kind, true as is_direct
        from direct d
        left join pg_catalog.pg_roles r on r.oid {=} d.role
        union all
        select d.queue, m.rolname, d.kind, false from direct d
        join members m on m.role {=} d.role
    ) listed
    group by queue, role, kind
    order by queue collate pg_catalog.\"C\", role, kind"
);

/// Adds a row to a result for each role and each kind that it has on a queue: queue, role, kind,
/// and whether it was granted to the role itself and not to one of which it is a member. None: of
/// all queues on which the caller has a right.
///
/// Fails as `rights::over` does.
pub fn list(name: Option<&QueueName>, out: &mut RowSink) -> Result<()> {
    rights::over(name, Right::Any, |queues| {
        spi::connect(|spi| out.extend(&spi.once(LIST, &queues.args())));
        Ok(())
    })
}

/// Runs each statement that the first column of a result has. The statements have identifiers of
/// users, which the server has quoted, and no markers.
pub(in crate::store) fn run_each(spi: &Spi, statements: &Rows) {
    for row in 0..statements.len() {
        if let Some(sql) = statements.get::<String>(row, 1) {
            spi.once_verbatim(&sql, &[]);
        }
    }
}

// Privileges on the history, from those on the docs table. $1: the docs table, $2: the history.
const GRANT_HISTORY: &str = "select pg_catalog.format('grant %s on table %s to %s%s',
        case when h.kind {=} any (array['owner', 'manager'])
            then 'select, insert, update, delete, truncate' else 'select' end,
        $2, case when h.grantee {=} 0 then 'public' else pg_catalog.quote_ident(r.rolname) end,
        case when h.kind {=} 'owner' then ' with grant option' end)
    from held h left join pg_catalog.pg_roles r on r.oid {=} h.grantee
    where h.kind {<>} 'producer'";

/// Gives the history of a queue, which was just created, the privileges that fit those on the
/// documents.
pub(in crate::store) fn grant_history(spi: &Spi, name: &QueueName) {
    let (docs, history) = (name.qualified("docs"), name.qualified("history"));
    let tables = [Arg::from(docs.as_str()), Arg::from(history.as_str())];
    let statements = spi.once(&format!("{HELD} {GRANT_HISTORY}"), &tables);
    run_each(spi, &statements);
}

/// Returns whether the caller may pack the counters of all queues.
pub fn may_pack() -> bool {
    may_call("fetchq.metric_log_pack()")
}

/// Returns whether the caller may create queues.
pub fn may_create_queues() -> bool {
    may_call("fetchq.queue_create(text, jsonb)")
}

// $1: the caller, because the statement acts as another role.
const MAY_CALL: &str = "select pg_catalog.has_function_privilege($1, $2, 'execute')";

fn may_call(function: &str) -> bool {
    let args = [Arg::oid(role::current()), Arg::from(function)];
    spi::connect(|spi| spi.once(MAY_CALL, &args).get(0, 1).unwrap_or(false))
        || acl::owns_extension()
}
