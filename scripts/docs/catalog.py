"""Reads the catalog of a database with the extension. Each query returns JSON."""

import json
import os
import subprocess


def query(sql, before=""):
    """Returns the rows of a query, each as a dict, or fails with the message of psql."""
    command = [os.environ.get("FETCHQ_PSQL", "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1"]
    wrapped = f"{before}select coalesce(json_agg(to_json(q)), '[]') from ({sql}) q"
    done = subprocess.run(command, input=wrapped, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: {done.stderr.strip()}\nin: {sql}")
    return json.loads(done.stdout)


def value(sql):
    """Returns the single value of a query, as text."""
    command = [os.environ.get("FETCHQ_PSQL", "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: {done.stderr.strip()}\nin: {sql}")
    return done.stdout.strip()


FUNCTIONS = """
select p.proname as name, p.oid::int as oid, p.prokind = 'p' as is_procedure,
    p.proretset as returns_rows,
    p.prorettype = 'trigger'::regtype as is_trigger,
    format_type(p.prorettype, null) as result,
    obj_description(p.oid, 'pg_proc') as comment,
    coalesce((
        select json_agg(json_build_object(
                'name', coalesce(a.name, ''), 'type', format_type(a.type, null),
                'mode', coalesce(a.mode, 'i'),
                'default', pg_get_function_arg_default(p.oid, a.n::int)) order by a.n)
        from unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes::text[], p.proargnames)
            with ordinality as a (type, mode, name, n)), '[]'::json) as arguments,
    (select json_agg(json_build_object(
            'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod)) order by a.attnum)
        from pg_type t
        join pg_class c on c.oid = t.typrelid and c.relkind = 'c'
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where t.oid = p.prorettype) as row_type
from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace
order by p.proname collate "C", p.pronargs, p.proargtypes::regtype[]::text collate "C"
"""

TABLES = """
select n.nspname as schema, c.relname as name, c.relkind = 'v' as is_view,
    obj_description(c.oid, 'pg_class') as comment,
    (select json_agg(json_build_object(
            'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
            'not_null', a.attnotnull,
            'identity', a.attidentity <> '',
            'default', pg_get_expr(d.adbin, d.adrelid),
            'comment', col_description(c.oid, a.attnum)) order by a.attnum)
        from pg_attribute a
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('fetchq', 'fetchq_data') and c.relkind in ('r', 'v')
    -- The segments have the columns of their parent.
    and not exists (select from pg_inherits i where i.inhrelid = c.oid)
order by 1, 2
"""

SETTINGS = """
select name, vartype as type, boot_val as "default", unit, min_val as min, max_val as max, enumvals as values,
    -- The context that it has where the library is preloaded.
    case when name = 'fetchq.ready_slots' then 'postmaster' else context end as context,
    short_desc as short, extra_desc as long
from pg_settings where name like 'fetchq.%' order by name
"""

EVENTS = """
select event, name, json_agg(json_build_array(metric, sign) order by sign desc, metric collate "C") as deltas
from fetchq.counter_events group by event, name order by event
"""

JOBS = "select task, queue, settings from fetchq.jobs order by id"


def functions():
    return query(FUNCTIONS)


def tables():
    return query(TABLES)


def settings():
    # The settings exist once the library is loaded. Without preloading, the first call loads it.
    return query(SETTINGS, "select from fetchq.info() \\g /dev/null\n")


def events():
    return query(EVENTS)


def jobs():
    return query(JOBS)
