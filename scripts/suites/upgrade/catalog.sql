-- The catalog of the extension in this database, a line for each property of each object, in an order
-- that depends on nothing but the names. Two databases with the same catalog give the same lines.
-- For `psql -XAt`. It runs on PostgreSQL 13 to 18.
set search_path = pg_catalog;
set client_min_messages = error;

create temp table members as
    select d.classid, d.objid, d.objsubid, i.type, i.identity
    from pg_depend d cross join pg_identify_object(d.classid, d.objid, d.objsubid) i
    where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'
        and d.refobjid = (select oid from pg_extension where extname = 'fetchq');
-- The tables of queues are no members.
create temp table relations as
    select c.* from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in ('fetchq', 'fetchq_data');

-- Privileges as text, in a fixed order. NULL is the default.
create function pg_temp.acl(acl aclitem[]) returns text language sql as $$
    select string_agg(format('%s=%s%s/%s', case a.grantee when 0 then 'PUBLIC' else pg_get_userbyid(a.grantee) end,
        a.privilege_type, case when a.is_grantable then '*' else '' end, pg_get_userbyid(a.grantor)), ' '
        order by a.grantee::regrole::text, a.privilege_type)
    from aclexplode(acl) a
$$;

create temp table lines (object text, property text, value text);

insert into lines
select 'extension', 'relocatable, schema, owner, comment',
    concat_ws(', ', extrelocatable, extnamespace::regnamespace, extowner::regrole, obj_description(oid, 'pg_extension'))
from pg_extension where extname = 'fetchq'
union all
select 'extension', 'configuration ' || c::regclass, extcondition[n]
from pg_extension, unnest(extconfig) with ordinality as u (c, n) where extname = 'fetchq'
union all
select type || ' ' || identity, 'member', null from members
union all
-- What anybody has said about a member, and what pg_dump takes for its privileges at the start.
select m.type || ' ' || m.identity, 'comment', d.description
from members m join pg_description d on (d.classoid, d.objoid, d.objsubid) = (m.classid, m.objid, 0)
union all
select m.type || ' ' || m.identity, 'initial privileges ' || coalesce(a.attname, ''), pg_temp.acl(p.initprivs)
from members m join pg_init_privs p on (p.classoid, p.objoid) = (m.classid, m.objid)
left join pg_attribute a on m.classid = 'pg_class'::regclass and a.attrelid = m.objid and a.attnum = p.objsubid and p.objsubid > 0;

insert into lines
select 'schema ' || nspname, 'owner, privileges, comment',
    concat_ws(', ', nspowner::regrole, pg_temp.acl(coalesce(nspacl, acldefault('n', nspowner))), obj_description(oid, 'pg_namespace'))
from pg_namespace where nspname in ('fetchq', 'fetchq_data');

insert into lines
select 'function ' || p.oid::regprocedure, x.property, x.value
from pg_proc p cross join lateral (values
    ('definition', case when prokind in ('f', 'p') then pg_get_functiondef(p.oid) else prosrc end),
    ('owner', p.proowner::regrole::text),
    ('privileges', pg_temp.acl(coalesce(p.proacl, acldefault('f', p.proowner)))),
    ('comment', obj_description(p.oid, 'pg_proc'))) x (property, value)
where p.pronamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace);

insert into lines
select r.oid::regclass::text, x.property, x.value
from relations r cross join lateral (values
    ('kind', r.relkind::text),
    ('owner', r.relowner::regrole::text),
    ('privileges', case when r.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
        then pg_temp.acl(coalesce(r.relacl, acldefault(case r.relkind when 'S' then 's' else 'r' end::"char", r.relowner))) end),
    ('options', r.reloptions::text),
    ('persistence, replica identity, row security',
        concat_ws(', ', r.relpersistence, r.relreplident, r.relrowsecurity, r.relforcerowsecurity)),
    ('access method', (select amname from pg_am where oid = r.relam)),
    ('toast options', (select reloptions::text from pg_class where oid = r.reltoastrelid)),
    ('parents', (select string_agg(inhparent::regclass::text, ', ' order by inhseqno) from pg_inherits where inhrelid = r.oid)),
    ('view', case when r.relkind in ('v', 'm') then pg_get_viewdef(r.oid) end),
    ('index', case when r.relkind = 'i' then pg_get_indexdef(r.oid) end),
    ('comment', obj_description(r.oid, 'pg_class'))) x (property, value);

-- A column that was dropped leaves a number that is not used again, so columns are numbered here.
insert into lines
select r.oid::regclass || ' column ' || a.attname, x.property, x.value
from relations r join (
    select *, row_number() over (partition by attrelid order by attnum) as n
    from pg_attribute where attnum > 0 and not attisdropped) a on a.attrelid = r.oid
left join pg_attrdef d on (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
cross join lateral (values
    ('number', a.n::text),
    ('type', format_type(a.atttypid, a.atttypmod)),
    ('collation', nullif(a.attcollation, 0)::regcollation::text),
    ('not null, identity, generated', concat_ws(', ', a.attnotnull, a.attidentity, a.attgenerated)),
    ('default', pg_get_expr(d.adbin, d.adrelid)),
    ('storage, compression', concat_ws(', ', a.attstorage, to_jsonb(a) ->> 'attcompression')),
    -- PostgreSQL 15.20 of Debian writes pg_attver into every column.
    ('options', concat_ws(', ', (select string_agg(o, ', ' order by o) from unnest(a.attoptions) o where o not like 'pg\_attver=%'), nullif((to_jsonb(a) ->> 'attstattarget'), '-1'))),
    ('privileges', pg_temp.acl(a.attacl)),
    ('comment', col_description(r.oid, a.attnum))) x (property, value)
where r.relkind <> 'i';

insert into lines
select coalesce(nullif(c.conrelid, 0)::regclass::text, c.contypid::regtype::text) || ' constraint ' || c.conname, x.property, x.value
from pg_constraint c cross join lateral (values
    ('definition', pg_get_constraintdef(c.oid)), ('valid', c.convalidated::text),
    ('comment', obj_description(c.oid, 'pg_constraint'))) x (property, value)
where c.connamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace);

insert into lines
select t.tgrelid::regclass || ' trigger ' || t.tgname, x.property, x.value
from pg_trigger t cross join lateral (values
    ('definition', pg_get_triggerdef(t.oid)), ('enabled', t.tgenabled::text),
    ('comment', obj_description(t.oid, 'pg_trigger'))) x (property, value)
where t.tgrelid in (select oid from relations) and not t.tgisinternal;

insert into lines
select r.ev_class::regclass || ' rule ' || r.rulename, 'definition', pg_get_ruledef(r.oid)
from pg_rewrite r where r.ev_class in (select oid from relations) and r.rulename <> '_RETURN'
union all
select p.polrelid::regclass || ' policy ' || p.polname, 'definition',
    concat_ws(', ', p.polcmd, p.polpermissive, p.polroles::regrole[], pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
from pg_policy p where p.polrelid in (select oid from relations)
union all
select i.indexrelid::regclass::text, 'unique, valid, clustered, replica identity',
    concat_ws(', ', i.indisunique, i.indisvalid, i.indisclustered, i.indisreplident)
from pg_index i where i.indrelid in (select oid from relations)
union all
select s.seqrelid::regclass::text, 'sequence',
    concat_ws(', ', s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle,
        (select format('%s of %s', d.deptype, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)) from pg_depend d
         where d.classid = 'pg_class'::regclass and d.objid = s.seqrelid and d.deptype in ('a', 'i') and d.refobjsubid > 0))
from pg_sequence s where s.seqrelid in (select oid from relations)
union all
select 'statistics ' || s.stxname, 'definition', pg_get_statisticsobjdef(s.oid)
from pg_statistic_ext s where s.stxrelid in (select oid from relations);

insert into lines
select 'type ' || t.oid::regtype, x.property, x.value
from pg_type t cross join lateral (values
    ('kind, owner', concat_ws(', ', t.typtype, t.typowner::regrole)),
    ('privileges', pg_temp.acl(coalesce(t.typacl, acldefault('T', t.typowner)))),
    ('labels', (select string_agg(enumlabel, ', ' order by enumsortorder) from pg_enum where enumtypid = t.oid)),
    ('domain', case when t.typtype = 'd' then concat_ws(', ', format_type(t.typbasetype, t.typtypmod), t.typnotnull, t.typdefault) end),
    ('comment', obj_description(t.oid, 'pg_type'))) x (property, value)
where t.typnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace) and t.typelem = 0;

insert into lines
select 'operator ' || o.oid::regoperator, 'definition',
    concat_ws(', ', o.oprcode::regprocedure, o.oprcom::regoperator, o.oprnegate::regoperator, o.oprrest, o.oprjoin,
        o.oprcanmerge, o.oprcanhash, o.oprowner::regrole, obj_description(o.oid, 'pg_operator'))
from pg_operator o where o.oprnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace)
union all
select 'default privileges of ' || d.defaclrole::regrole, d.defaclobjtype::text, pg_temp.acl(d.defaclacl)
from pg_default_acl d where d.defaclnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace);

-- The rows that an installation begins with.
insert into lines
select 'row of fetchq.counter_events', e::text, null from fetchq.counter_events e
union all
select 'row of fetchq.jobs', format('%s %s %s', task, queue, settings), null from fetchq.jobs where queue = '*';

select format('%s | %s | %s', object, property, replace(coalesce(value, ''), E'\n', ' ⏎ ')) from lines
order by object collate "C", property collate "C", value collate "C";
