//! Code of roles that are no superusers, which a move would run as one.
//!
//! This command and the subscription act as a superuser. The subscription computes the expressions of
//! the indexes that are made on the new server. On the old one the planner computes functions of
//! constants in indexes, statistics and constraints of a table that is read. Whoever owns such a function
//! can replace it at any time. A function of a superuser is as trusted as the superuser.
use fetchq_domain::names::QueueName;

use crate::failure::{Failure, Result};
use crate::names::table_names;
use crate::server::Server;

/// What to do about it.
pub const HINT: &str = "A move would run it as a superuser. Drop what uses it, or give it to a superuser \
    (alter function … owner to …).";

// What belongs to the tables $1, and can have code.
const TABLES: &str = "with tables as (
        select c.oid from pg_class c
        where c.relnamespace = 'fetchq_data'::regnamespace and c.relname = any ($1::text[])
    )
    select 'pg_class'::regclass, t.oid from tables t
    union all
    select 'pg_class'::regclass, i.indexrelid from tables t join pg_index i on i.indrelid = t.oid
    union all
    select 'pg_statistic_ext'::regclass, s.oid from tables t join pg_statistic_ext s on s.stxrelid = t.oid
    union all
    select 'pg_constraint'::regclass, k.oid from tables t join pg_constraint k on k.conrelid = t.oid
    union all
    select 'pg_attrdef'::regclass, d.oid from tables t join pg_attrdef d on d.adrelid = t.oid
    union all
    select 'pg_trigger'::regclass, g.oid from tables t join pg_trigger g on g.tgrelid = t.oid
    union all
    select 'pg_policy'::regclass, p.oid from tables t join pg_policy p on p.polrelid = t.oid
    union all
    select 'pg_rewrite'::regclass, r.oid from tables t join pg_rewrite r on r.ev_class = t.oid";

// What has a name in the definition of an index.
const NAMED: &str = "select 'function' as kind, 'pg_proc'::regclass as classid, p.oid,
        p.pronamespace as schema, p.proname as name from pg_proc p
    union all
    select 'operator', 'pg_operator'::regclass, o.oid, o.oprnamespace, o.oprname from pg_operator o
    union all
    select 'type', 'pg_type'::regclass, t.oid, t.typnamespace, t.typname from pg_type t
    union all
    select 'operator class', 'pg_opclass'::regclass, c.oid, c.opcnamespace, c.opcname from pg_opclass c";

// What these names mean here: kinds $1, schemas $2, names $3, with all types of arguments.
const NAMESAKES: &str = "select n.classid, n.oid from ({named}) n
    join pg_namespace s on s.oid = n.schema
    join unnest($1::text[], $2::text[], $3::text[]) w (kind, schema, name)
        on (w.kind, w.schema, w.name) = (n.kind, s.nspname::text, n.name::text)";

// All code that the roots use, also by way of other objects: the function of an operator, the support
// functions of an operator class, the constraints of a domain. The functions of fetchq itself are called
// by this command, whoever owns them.
const STRANGERS: &str = "with recursive roots (classid, objid) as ({roots}),
    used (rootclass, rootid, classid, objid) as (
        select r.classid::oid, r.objid, r.classid::oid, r.objid from roots r
        union
        select u.rootclass, u.rootid, n.classid, n.objid from used u cross join lateral (
            select d.refclassid, d.refobjid from pg_depend d
            where d.classid = u.classid and d.objid = u.objid
                and d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
                    'pg_opclass'::regclass, 'pg_opfamily'::regclass)
            union all
            select d.classid, d.objid from pg_depend d
            where u.classid in ('pg_opclass'::regclass, 'pg_opfamily'::regclass)
                and d.refclassid = u.classid and d.refobjid = u.objid
                and d.classid in ('pg_amop'::regclass, 'pg_amproc'::regclass)
            union all
            select 'pg_constraint'::regclass, k.oid from pg_constraint k
            where u.classid = 'pg_type'::regclass and k.contypid = u.objid
        ) n (classid, objid)
    ), code (classid, objid, owner) as (
        select 'pg_proc'::regclass, p.oid, p.proowner from pg_proc p
        union all
        select 'pg_operator'::regclass, o.oid, o.oprowner from pg_operator o
        union all
        select 'pg_type'::regclass, t.oid, t.typowner from pg_type t
    )
    select distinct case when (u.rootclass, u.rootid) = (c.classid, c.objid) then
            format('%s, of role %I', pg_describe_object(c.classid, c.objid, 0), r.rolname)
        else format('%s uses %s, of role %I', pg_describe_object(u.rootclass, u.rootid, 0),
            pg_describe_object(c.classid, c.objid, 0), r.rolname) end
    from used u
    join code c on (c.classid::oid, c.objid) = (u.classid::oid, u.objid)
    join pg_roles r on r.oid = c.owner and not r.rolsuper
    where not exists (
        select from pg_depend e join pg_extension x on x.oid = e.refobjid and x.extname = 'fetchq'
        where e.classid = c.classid and e.objid = c.objid
            and e.refclassid = 'pg_extension'::regclass and e.deptype = 'e')
    order by 1";

// What the indexes of the tables $1 name. In pg_catalog only superusers make anything.
const INDEX_NAMES: &str = "select distinct n.kind, s.nspname::text, n.name::text
    from pg_class c
    join pg_index i on i.indrelid = c.oid
    join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = i.indexrelid
    join ({named}) n on (n.classid::oid, n.oid) = (d.refclassid, d.refobjid)
    join pg_namespace s on s.oid = n.schema and s.nspname <> 'pg_catalog'
    where c.relnamespace = 'fetchq_data'::regnamespace and c.relname = any ($1::text[])
    order by 1, 2, 3";

fn strangers(roots: &str) -> String {
    STRANGERS
        .replace("{roots}", roots)
        .replace("{named}", NAMED)
}

/// What the tables of the queues use, and belongs to a role that is no superuser.
pub async fn of_tables(server: &Server, names: &[QueueName]) -> Result<Vec<String>> {
    server
        .texts(&strangers(TABLES), &[&table_names(names)])
        .await
}

/// What the indexes of the old server would find on the new one by the same names, and belongs to a role
/// that is no superuser there.
pub async fn of_names(old: &Server, new: &Server, names: &[QueueName]) -> Result<Vec<String>> {
    let sql = INDEX_NAMES.replace("{named}", NAMED);
    let rows = old.rows(&sql, &[&table_names(names)]).await?;
    let column = |position: usize| -> Vec<String> {
        let values = rows.iter().map(|row| row.get(position));
        values.collect()
    };
    let (kinds, schemas, found) = (column(0), column(1), column(2));
    new.texts(&strangers(NAMESAKES), &[&kinds, &schemas, &found])
        .await
}

/// Refuses to go on where such code was added since the check.
pub async fn require_none(server: &Server, names: &[QueueName]) -> Result<()> {
    match of_tables(server, names).await?.first() {
        None => Ok(()),
        Some(found) => {
            let message = format!("{}: {found}, which is no superuser", server.name());
            Err(Failure::new(message).with_hint(HINT))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_marker_is_left_in_a_statement() {
        for sql in [
            strangers(TABLES),
            strangers(NAMESAKES),
            INDEX_NAMES.replace("{named}", NAMED),
        ] {
            assert!(!sql.contains(['{', '}']), "{sql}");
        }
    }
}
