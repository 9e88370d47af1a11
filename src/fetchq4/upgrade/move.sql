-- The upgrade from fetchq 4, part 2 of 4: its objects step aside. Their schemas get other names, so that
-- fetchq 5 can be installed in their place. What is made anew on them is dropped; the check has kept
-- the statements.

-- The grants on views, as long as the views are there.
create table fetchq_upgrade.grants (
    id int generated always as identity,
    sql text not null
);
-- The statements that give a relation the grants of another one, or its own again. TRIGGER and
-- REFERENCES are left out: in fetchq 5 nobody but the owner of the tables has them.
create function fetchq_upgrade.grants_of(old oid, target text, may_have text[]) returns setof text
language sql as $$
    select format('grant %s%s on %s to %s%s', g.privilege_type, coalesce(' (' || quote_ident(g.attname) || ')', ''), target,
        case g.grantee when 0 then 'public' else g.grantee::regrole::text end,
        case when g.is_grantable then ' with grant option' else '' end)
    from (
        select null::name as attname, e.*, c.relowner from pg_class c cross join lateral aclexplode(c.relacl) e where c.oid = old
        union all
        select a.attname, e.*, c.relowner from pg_class c join pg_attribute a on a.attrelid = c.oid and not a.attisdropped
        cross join lateral aclexplode(a.attacl) e where c.oid = old
    ) g
    where g.grantee <> g.relowner and g.privilege_type = any (may_have)
$$;

do $$
declare
    r record;
begin
    for r in
        select v.view, format('%I.%I', n.nspname, c.relname) as name, c.relowner
        from fetchq_upgrade.views v join pg_class c on c.oid = v.view join pg_namespace n on n.oid = c.relnamespace
        order by v.depth, v.view
    loop
        insert into fetchq_upgrade.grants (sql) values (format('alter view %s owner to %s', r.name, r.relowner::regrole));
        insert into fetchq_upgrade.grants (sql)
        select g from fetchq_upgrade.grants_of(r.view, r.name, array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER', 'MAINTAIN']) g;
    end loop;
    for r in select format('drop view %s', v.view::regclass) as sql from fetchq_upgrade.views v order by v.depth desc, v.view desc loop
        execute r.sql;
    end loop;
    for r in select format('drop trigger %I on %s', t.name, t.tbl::regclass) as sql from fetchq_upgrade.foreign_triggers t loop
        execute r.sql;
    end loop;
end $$;

alter schema fetchq rename to fetchq_upgrade_old;
alter schema fetchq_data rename to fetchq_upgrade_data;
