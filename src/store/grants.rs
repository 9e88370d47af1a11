//! Grants on queues: `queue_grant`, `queue_revoke` and `queue_grants`.
//!
//! A grant is nothing but privileges on the tables of the queue. So a dump keeps it, and what GRANT
//! and REVOKE do counts as well. Tables that are created later get their privileges from those on
//! the docs table.

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::role::as_extension_owner;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::pg::{acl, relation, role};
use crate::store::rights::{self, Right, Scope};

/// A kind of grant: its name, and its privileges on the tables of a queue.
struct Kind {
    name: &'static str,
    /// The kinds that it includes.
    includes: &'static [&'static str],
    /// The tables by their suffix, and the privileges.
    privileges: &'static [(&'static str, &'static str)],
}

/// The columns of a document that pushing, upserting and putting read. Payload, error, lease,
/// worker and origin are not among them: a producer cannot read what others have pushed.
macro_rules! read_to_push {
    () => {
        "select (subject, version, priority, status, attempts, next_iteration, lock_upgrade, seq, ordering_key)"
    };
}

/// The columns that an upsert and a put change.
macro_rules! changed_to_push {
    () => {
        "update (version, priority, status, attempts, next_iteration, lock_upgrade, payload, ordering_key, max_attempts, last_error, headers, result, progress)"
    };
}

const ALL_OF_A_TABLE: &str = "select, insert, update, delete, truncate";

/// The kinds, each after those that it includes. The privileges of a manager are those of a
/// worker, and TRUNCATE, which nobody else has. Nobody gets TRIGGER or REFERENCES, with which a
/// role could run code as the role that changes a document.
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
        privileges: &[(
            "docs",
            concat!("insert, ", read_to_push!(), ", ", changed_to_push!()),
        )],
    },
    Kind {
        name: "worker",
        includes: &["reader", "producer"],
        privileges: &[
            ("docs", "select, insert, update, delete"),
            ("logs", "select, insert"),
            ("metrics", "select"),
            ("history", "select, insert"),
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

/// Runs a statement that names a role, with the privileges of the caller. The server quotes the
/// name.
///
/// Fails with `Error::UnknownRole`.
fn run_for_role(spi: &Spi, role: &str, before: &str, after: &str) -> Result<()> {
    let args = [Arg::from(role), Arg::from(before), Arg::from(after)];
    let rows = spi.once(QUOTE_ROLE, &args);
    match (!rows.is_empty())
        .then(|| rows.get::<String>(0, 1))
        .flatten()
    {
        Some(sql) => {
            spi.once_verbatim(&sql, &[]);
            Ok(())
        }
        None => Err(Error::UnknownRole(role.to_owned())),
    }
}

/// The kinds that an array `privileges` says, as `k (kind)`.
macro_rules! kinds_of_privileges {
    () => {
        "cross join pg_catalog.unnest(case
            when 'TRUNCATE' {=} any (privileges) then array['manager']
            when privileges {@>} array['SELECT', 'INSERT', 'UPDATE', 'DELETE'] then array['worker']
            else pg_catalog.array_remove(array[
                case when 'SELECT' {=} any (privileges) then 'reader' end,
                case when 'INSERT' {=} any (privileges) then 'producer' end], null)
        end) as k (kind)"
    };
}

// The kinds that a queue's docs table says, the widest of each role: `held (relid, grantee, kind)`.
const HELD: &str = concat!(
    "with listed as (
        select c.oid as relid, a.grantee, pg_catalog.array_agg(a.privilege_type) as privileges
        from pg_catalog.pg_class c
        cross join pg_catalog.aclexplode(c.relacl) a
        where c.relkind {=} 'r' and a.grantee {<>} c.relowner
        group by c.oid, a.grantee
    ),
    held as (
        select relid, grantee, k.kind
        from listed
        ",
    kinds_of_privileges!(),
    "
    )"
);

const LIST_HELD: &str = "select h.kind from held h
    join pg_catalog.pg_roles r on r.oid {=} h.grantee
    where h.relid {=} pg_catalog.to_regclass($1) and r.rolname {=} $2";

/// The kinds that a role has been granted on a queue: a manager or a worker, or up to two others.
fn held(spi: &Spi, name: &QueueName, role: &str) -> Vec<&'static Kind> {
    let docs = name.qualified("docs");
    let sql = format!("{HELD} {LIST_HELD}");
    let rows = spi.once(&sql, &[Arg::from(docs.as_str()), Arg::from(role)]);
    let kinds: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    let all = KINDS.iter();
    all.filter(|kind| kinds.iter().any(|name| name == kind.name))
        .collect()
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
        // The schemas belong to the owner of the extension. Without rights on a queue, USAGE
        // gives nothing but the right to be refused by the functions.
        let lacks_usage = || !spi.once(LACKS_USAGE, &[Arg::from(role)]).is_empty();
        if lacks_usage() {
            // Of two transactions that change the privileges on a schema, PostgreSQL fails one.
            // So the second one waits.
            if let Some(registry) = relation::lookup("fetchq", "queues") {
                relation::serialize(registry);
            }
            if lacks_usage() {
                as_extension_owner(|| {
                    let usage = "grant usage on schema fetchq, fetchq_data to ";
                    run_for_role(spi, role, usage, "")
                })?;
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
        for table in ["docs", "logs", "metrics", "history"] {
            if relation::lookup_data_table(&name.relation(table)).is_none() {
                continue;
            }
            let table_name = name.qualified(table);
            let before = format!("revoke {ALL_OF_A_TABLE} on table {table_name} from ");
            run_for_role(spi, role, &before, "")?;
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

/// Lets the owner of a queue move documents to its dead-letter queue: makes it a producer there if
/// the caller owns the dead-letter queue.
///
/// Fails with `Error::MayNotMove` otherwise.
pub fn extend_to_dead_letters(name: &QueueName, target: &QueueName) -> Result<()> {
    let docs = |name: &QueueName| relation::lookup_data_table(&name.relation("docs"));
    let (Some(owner), Some(target_table)) = (docs(name).and_then(relation::owner_of), docs(target))
    else {
        return Ok(());
    };
    if rights::may_push(owner, target_table) {
        return Ok(());
    }
    if rights::has(target, Right::Own) {
        grant(target, &role::name(owner), "producer")?;
    }
    // Policies may restrict a producer.
    match rights::may_push(owner, target_table) {
        true => Ok(()),
        false => Err(Error::MayNotMove {
            queue: name.to_string(),
            owner: role::name(owner),
            target: target.to_string(),
        }),
    }
}

// The owner, the roles that were granted a kind, and the members of those roles that inherit it.
// Each role is asked once for its members, however many queues there are. $1 and $2: the queues.
const LIST: &str = concat!(
    "with queues as materialized (
        select q.name, c.relowner, c.relacl from fetchq.queues q
        join pg_catalog.pg_class c on c.relname {=} (q.name {||} '__docs')::pg_catalog.name
            and c.relnamespace {=} 'fetchq_data'::pg_catalog.regnamespace
        where $1 or q.name {=} any ($2)
    ),
    direct as materialized (
        select q.name as queue, a.grantee as role, k.kind from queues q
        cross join lateral (
            select e.grantee, pg_catalog.array_agg(e.privilege_type) as privileges
            from pg_catalog.aclexplode(q.relacl) e
            where e.grantee {<>} q.relowner
            group by e.grantee) a
        ",
    kinds_of_privileges!(),
    "
        union all
        select q.name, q.relowner, 'owner' from queues q
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
pub fn list(name: Option<&QueueName>, out: &mut RowSink) {
    let args = match name {
        Some(name) => [Arg::from(false), Arg::from(vec![name.as_str()])],
        None => Scope::of(Right::Any).args(),
    };
    spi::connect(|spi| out.extend(&spi.once(LIST, &args)));
}

/// Runs each statement that the first column of a result has. The statements have identifiers of
/// users, which the server has quoted, and no markers.
pub(super) fn run_each(spi: &Spi, statements: &Rows) {
    for row in 0..statements.len() {
        if let Some(sql) = statements.get::<String>(row, 1) {
            spi.once_verbatim(&sql, &[]);
        }
    }
}

// Privileges on the history, from those on the docs table. $1: the docs table, $2: the history.
const GRANT_HISTORY: &str = "select pg_catalog.format('grant %s on table %s to %s',
        case when h.kind {=} 'manager' then 'select, insert, update, delete, truncate'
            when h.kind {=} 'worker' then 'select, insert'
            else 'select' end,
        $2, case when h.grantee {=} 0 then 'public' else pg_catalog.quote_ident(r.rolname) end)
    from held h left join pg_catalog.pg_roles r on r.oid {=} h.grantee
    where h.relid {=} pg_catalog.to_regclass($1) and h.kind {<>} 'producer'
    union all
    select pg_catalog.format('grant insert on table %s to %s', $2,
        case when a.grantee {=} 0 then 'public' else pg_catalog.quote_ident(r.rolname) end)
    from pg_catalog.pg_class c
    cross join pg_catalog.aclexplode(c.relacl) a
    left join pg_catalog.pg_roles r on r.oid {=} a.grantee
    where c.oid {=} pg_catalog.to_regclass($1) and a.grantee {<>} c.relowner
        and a.privilege_type {=} any (array['UPDATE', 'DELETE'])";

/// Gives the history of a queue, which was just created, the privileges that fit those on the
/// documents. A role that settles documents inserts into the history.
pub(super) fn grant_history(spi: &Spi, name: &QueueName) {
    let (docs, history) = (name.qualified("docs"), name.qualified("history"));
    let tables = [Arg::from(docs.as_str()), Arg::from(history.as_str())];
    let statements = spi.once(&format!("{HELD} {GRANT_HISTORY}"), &tables);
    run_each(spi, &statements);
}

const CHANGE_OWNER: &str =
    "select pg_catalog.format('alter table %s owner to %I', $1, pg_catalog.pg_get_userbyid($2))";

/// Hands a table that was just created to its owner.
pub(super) fn change_owner(spi: &Spi, table: &str, owner: pgrx::pg_sys::Oid) {
    if role::current() != owner {
        let statements = spi.once(CHANGE_OWNER, &[Arg::from(table), Arg::oid(owner)]);
        run_each(spi, &statements);
    }
}

/// Returns whether the caller may pack the counters of all queues.
pub fn may_pack() -> bool {
    spi::connect(|spi| spi.once(MAY_PACK, &[]).get(0, 1).unwrap_or(false)) || acl::owns_extension()
}

/// Returns whether the caller may create queues.
pub fn may_create_queues() -> bool {
    spi::connect(|spi| spi.once(MAY_CREATE, &[]).get(0, 1).unwrap_or(false))
        || acl::owns_extension()
}

const MAY_CREATE: &str =
    "select pg_catalog.has_function_privilege('fetchq.queue_create(text, jsonb)', 'execute')";

const MAY_PACK: &str =
    "select pg_catalog.has_function_privilege('fetchq.metric_log_pack()', 'execute')";
