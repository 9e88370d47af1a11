//! The role that owns the tables of all queues, as which fetchq acts: what it has, what it lacks, and
//! giving it all of that.

use pgrx::pg_sys::Oid;

use crate::error::{Error, Result};
use crate::late::memory;
use crate::pg::role;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;

// The row of `fetchq.status()`, and whether fetchq can read its own tables. The schema belongs to the
// extension, so a restore gives it to the role that restores, and each table to the role that had it.
// What is restored belongs to the owner of most tables.
const STATE: &str = "with owner as (
        select n.oid as schema, r.oid, r.rolname::pg_catalog.text as rolname, r.rolsuper
        from pg_catalog.pg_namespace n join pg_catalog.pg_roles r on r.oid {=} n.nspowner
        where n.nspname {=} 'fetchq_data'
    ),
    tables as (
        select pg_catalog.mode() within group (order by c.relowner) as usual_owner,
            pg_catalog.count(*) filter (where c.relowner {<>} o.oid) as others,
            pg_catalog.min(pg_catalog.format('%s belongs to %s', c.relname, pg_catalog.pg_get_userbyid(c.relowner)))
                filter (where c.relowner {<>} o.oid) as other
        from owner o
        join pg_catalog.pg_class c on c.relnamespace {=} o.schema and c.relkind {=} 'r'
    ),
    lacking as (
        select 1 as n, 'USAGE on schema fetchq' as what
        from owner o where not pg_catalog.has_schema_privilege(o.oid, 'fetchq', 'usage')
        union all
        select 2, pg_catalog.format('%s on fetchq.%I', p.privilege, c.relname)
        from owner o
        join pg_catalog.pg_class c on c.relnamespace {=} 'fetchq'::pg_catalog.regnamespace
            and c.relkind {=} any (array['r', 'p', 'v']::pg_catalog.\"char\"[])
        cross join pg_catalog.unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p (privilege)
        where not pg_catalog.has_table_privilege(o.oid, c.oid, p.privilege)
        union all
        select 3, 'EXECUTE on function fetchq.late_lease'
        from owner o where $1 and not pg_catalog.has_function_privilege(o.oid,
            'fetchq.late_lease(bigint,text,bigint,timestamptz)', 'execute')
        union all
        select 4, 'membership in pg_read_all_stats'
        from owner o where not pg_catalog.pg_has_role(o.oid, 'pg_read_all_stats', 'usage')
    ),
    lacks as (
        select pg_catalog.min(n) as worst, pg_catalog.count(*) as n,
            (pg_catalog.array_agg(what order by n, what))[1] as first
        from lacking
    )
    select 'data owner',
        case when l.n {>} 0 then 'incomplete' when t.others {>} 0 then 'mixed' else 'fine' end,
        o.rolname {||} case when o.rolsuper then ', a superuser' else '' end
            {||} case when l.n {>} 0 then pg_catalog.format(', which lacks %s', l.first) else '' end
            {||} case when l.n {>} 1 then pg_catalog.format(' and %s more', l.n {-} 1) else '' end
            {||} case when t.others {>} 0
                then pg_catalog.format(', but %s', t.other) else '' end
            {||} case when t.others {>} 1
                then pg_catalog.format(', and %s more tables to other roles', t.others {-} 1) else '' end,
        case when l.n {>} 0 or t.others {>} 0
            then pg_catalog.format('Run as a superuser: select fetchq.data_owner_set(%L)',
                coalesce(pg_catalog.pg_get_userbyid(t.usual_owner)::pg_catalog.text, o.rolname)) end,
        coalesce(l.worst {=} 4, true)
    from owner o cross join tables t cross join lacks l";

/// Adds the row `data owner` of `fetchq.status()`. Returns whether this role can run the statements of
/// fetchq: without its rights, nothing else can be read.
pub(in crate::store) fn report(out: &mut RowSink) -> bool {
    spi::connect(|spi| {
        let rows = spi.once_latest(STATE, &[Arg::from(memory::exists())]);
        out.extend(&rows);
        rows.is_empty() || rows.get(0, 5).unwrap_or(false)
    })
}

// What the owner of the tables needs beside them: the registry, and the start and the state of the
// sessions that have bound leases. $1: the role. It owns the tables last, so that the statements before
// are those of the present owner.
const GIVE: &str = "select pg_catalog.format(s, $1) from pg_catalog.unnest(array[
        'grant usage on schema fetchq to %1$I',
        'grant select, insert, update, delete, truncate on all tables in schema fetchq to %1$I',
        'grant execute on function fetchq.late_lease to %1$I',
        case when not pg_catalog.pg_has_role($1::pg_catalog.name, 'pg_read_all_stats', 'usage')
            then 'grant pg_read_all_stats to %1$I' end,
        'alter schema fetchq_data owner to %1$I']) s
    union all
    select pg_catalog.format('alter table %s owner to %I', c.oid::pg_catalog.regclass, $1) from pg_catalog.pg_class c
    where c.relnamespace {=} 'fetchq_data'::pg_catalog.regnamespace and c.relkind {=} 'r'
        and c.relowner {<>} (select oid from pg_catalog.pg_roles where rolname {=} $1)";

// What a role no longer needs that owned the tables. It stays a member of pg_read_all_stats: it may own
// the tables of another database. $1: the role.
const TAKE: &str = "select pg_catalog.format(s, $1) from pg_catalog.unnest(array[
        'revoke execute on function fetchq.late_lease from %1$I',
        'revoke all on all tables in schema fetchq from %1$I',
        'revoke usage on schema fetchq from %1$I']) s";

// Privileges on the tables of queues. A table that changes hands merges those of its new owner into
// those of an owner, and the next owner gets them.
const HAS_PRIVILEGES: &str = "select from pg_catalog.pg_class c
        join pg_catalog.pg_roles r on r.rolname {=} $1
        cross join lateral (
            select e.grantee from pg_catalog.aclexplode(c.relacl) e
            union all
            select e.grantee from pg_catalog.pg_attribute a, pg_catalog.aclexplode(a.attacl) e
            where a.attrelid {=} c.oid
        ) g
    where c.relnamespace {=} 'fetchq_data'::pg_catalog.regnamespace and c.relkind {=} 'r'
        and c.relowner {<>} r.oid and g.grantee {=} r.oid
    limit 1";

/// Checks that a role has no rights on queues, which it would lose with the tables. The owner of the
/// extension has all rights anyway.
///
/// Fails with `Error::BadValue`.
fn check_has_no_queues(spi: &Spi, role: &str, id: Oid) -> Result<()> {
    let is_administrator =
        role::extension_owner().is_some_and(|owner| role::has_privileges_of(id, owner));
    if is_administrator || spi.once(HAS_PRIVILEGES, &[Arg::from(role)]).is_empty() {
        return Ok(());
    }
    Err(Error::BadValue {
        argument: "role",
        value: format!("{role:?}"),
        rule: "a role without rights on queues, such as one without login that is made for this",
    })
}

// A role that does not inherit the rights of the role that it has to be a member of. $1: the role.
const INHERITS_NOTHING: &str = "select from pg_catalog.pg_roles r
    where r.rolname {=} $1 and not r.rolinherit
        and not pg_catalog.pg_has_role(r.oid, 'pg_read_all_stats', 'usage')";

/// Checks that a role inherits the rights that it is given as a member of another one.
///
/// Fails with `Error::BadValue`.
fn check_inherits(spi: &Spi, role: &str) -> Result<()> {
    if spi.once(INHERITS_NOTHING, &[Arg::from(role)]).is_empty() {
        return Ok(());
    }
    Err(Error::BadValue {
        argument: "role",
        value: format!("{role:?}"),
        rule: "a role with the attribute INHERIT: it has to use the rights of pg_read_all_stats",
    })
}

/// Gives the schema of the queues and all tables in it to a role, with what that role needs to run the
/// statements of fetchq. Returns false when all of it was that role's before.
///
/// Fails with `Error::UnknownRole`, and as `check_has_no_queues` and `check_inherits` do.
pub fn set(role: &str) -> Result<bool> {
    let wanted = role::of_name(role).ok_or_else(|| Error::UnknownRole(role.to_owned()))?;
    spi::connect(|spi| {
        let before = role::data_owner();
        let state: Option<String> = spi.once(STATE, &[Arg::from(memory::exists())]).get(0, 2);
        if before == Some(wanted) && state.as_deref() == Some("fine") {
            return Ok(false);
        }
        check_has_no_queues(spi, role, wanted)?;
        check_inherits(spi, role)?;
        run_each_as_caller(spi, &spi.once(GIVE, &[Arg::from(role)]));
        if let Some(before) =
            before.filter(|before| *before != wanted && Some(*before) != role::extension_owner())
        {
            let before = role::name(before);
            run_each_as_caller(spi, &spi.once(TAKE, &[Arg::from(before.as_str())]));
        }
        Ok(true)
    })
}

/// Runs each statement that the first column of a result has, with the rights of the caller.
fn run_each_as_caller(spi: &Spi, statements: &Rows) {
    for row in 0..statements.len() {
        if let Some(sql) = statements.get::<String>(row, 1) {
            spi.once_as_caller(&sql, &[]);
        }
    }
}
