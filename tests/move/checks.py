"""What must be true after a move, and after each failure in one. Each check returns what is wrong.

A check reads the server that has the queues now (`here`), the other one (`there`), and what the clients have
written down. Each check has damages: statements after which it has to fail. `Look.prove` does them in a
transaction that is rolled back, so each run of the test also shows that its checks can fail.
"""

import json

import psycopg

# The queues that move together, as a group.
QUEUES = ("jobs", "ordered", "still", "held", "dead", "ticks", "probe", "wake")
WORKED = ("jobs", "ordered")
LEASE = 30  # The same number as in load.py.
TABLES = {
    "pushed": "queue text, subject text",
    "leased": "queue text, subject text, lease bigint, attempts int, worker text",
    "settled": "queue text, subject text, lease bigint, how text",
}
PAGE = "fetchq_data.{}__docs"


def columns(table):
    return [column.split()[0] for column in TABLES[table].split(", ")]


def make_tables(db):
    """The tables in which the clients write, in the transaction of each call, what they do."""
    for name, definition in TABLES.items():
        db.execute(f"create table {name} ({definition}, at timestamptz not null default clock_timestamp())")
        db.execute(f"grant select, insert on {name} to app")


def rows(db, statement, *values):
    return db.execute(statement, values or None).fetchall()


def describe(db):
    """All that belongs to the queues of the group but is no document: settings, rights, schedules, jobs, tables."""
    names = list(QUEUES)
    found = {}

    def keep(what, statement, *values):
        for key, *value in rows(db, statement, *values):
            found[what, key] = value

    keep("settings", "select name, fetchq.queue_settings(name) from fetchq.queues where name = any (%s)", names)
    keep("registry", "select name, to_jsonb(q) - 'id' from fetchq.queues q where name = any (%s)", names)
    keep("right", "select queue || ' ' || role || ' ' || kind, is_direct from fetchq.queue_grants() where queue = any (%s)", names)
    # Its payload is what maintenance has to remember of failures.
    keep("job", "select task || ' ' || queue, settings from fetchq.jobs where queue = any (%s)", names)
    # What a schedule has done is compared by the check of the ticks.
    keep("schedule", "select name, to_jsonb(s) - '{next_tick,last_tick,due_at,ticks,attempts,last_error}'::text[]"
         " from fetchq.schedules s where queue = any (%s)", names)
    # One for all queues becomes one for each queue that moves.
    keep("stop request", "select t.name || ' ' || q.name, max(t.since) from fetchq.stop_requests t join fetchq.queues q on t.queue_id in (0, q.id)"
         " where q.name = any (%s) group by 1", names)
    tables = [f"{queue}__{table}" for queue in names for table in ("docs", "logs", "metrics", "history")]
    relation = "from pg_class c where c.relnamespace = 'fetchq_data'::regnamespace and c.relname = any (%s)"
    keep("table", "select relname, relowner::regrole::text, (select array_agg(a::text order by a::text) from unnest(relacl) a), reloptions::text, relrowsecurity, relreplident,"
         f" obj_description(c.oid) {relation}", tables)
    keep("column", "select relname || '.' || a.attname, format_type(atttypid, atttypmod), attnum, attnotnull, attidentity, attstorage,"
         " attcollation::regcollation::text, attacl::text, pg_get_expr(adbin, adrelid)"
         f" {relation.replace('where', 'join pg_attribute a on a.attrelid = c.oid and attnum > 0 left join pg_attrdef d on d.adrelid = c.oid and d.adnum = attnum where')}", tables)
    keep("index", f"select pg_get_indexdef(i.indexrelid), indisvalid {relation.replace('where', 'join pg_index i on i.indrelid = c.oid where')}", tables)
    keep("trigger", f"select pg_get_triggerdef(t.oid), tgenabled {relation.replace('where', 'join pg_trigger t on t.tgrelid = c.oid and not tgisinternal where')}", tables)
    keep("constraint", f"select relname || '.' || conname, pg_get_constraintdef(k.oid) {relation.replace('where', 'join pg_constraint k on k.conrelid = c.oid where')}", tables)
    return found


def frozen(db):
    """The rows of a queue in which nothing happens, and who has its leases."""
    found = {}
    for table, left_out in (("docs", "{worker_session}"), ("logs", "{}"), ("history", "{}"), ("metrics", "{}")):
        for (row,) in rows(db, f"select to_jsonb(t) - '{left_out}'::text[] from fetchq_data.still__{table} t"):
            found[table, row.get("id", row["subject"] if "subject" in row else None)] = row
    for subject, *lease in rows(db, "select subject, version, attempts, lease, worker, lease_ends, binding from fetchq.lease_list('still')"):
        found["lease", subject] = lease
    for subject, *document in rows(db, "select * from fetchq.docs_list('still', '{\"all\": true}')"):
        found["doc_list", subject] = document
    return found


def totals(db):
    """The counters of that queue. One that is 0 has a row or not."""
    return {(metric,): value for metric, value in rows(db, "select metric, value from fetchq.metrics_exact where queue = 'still' and value <> 0")}


def differences(before, now):
    """How two dictionaries differ, the first few of it."""
    wrong = [f"{key} is {now.get(key, 'missing')}, was {value}" for key, value in before.items() if now.get(key) != value]
    wrong += [f"{key} is new: {value}" for key, value in now.items() if key not in before]
    return [text[:600] for text in wrong]


class Look:
    """Both servers, each in one snapshot, with what the clients have written there and in their ledgers."""

    def __init__(self, here, there, before, acknowledged, moves):
        self.before, self.moves = before, moves
        self.here_server, self.there_server = here, there
        self.here, self.there = here.connect(), there.connect()
        self.there.execute("begin isolation level repeatable read")
        self.here.execute("begin isolation level repeatable read")
        # Whole tables are compared, whatever the statistics say.
        self.here.execute("set local enable_nestloop = off; set local work_mem = '256MB'; set local jit = off")
        for table, definition in TABLES.items():
            self.here.execute(f"create temp table all_{table} ({definition}, at timestamptz, server text) on commit drop")
            names = ", ".join(columns(table))
            self.here.execute(f"insert into all_{table} select {names}, at, %s from public.{table}", [here.name])
            with self.there.cursor().copy(f"copy (select {names}, at, '{there.name}' from public.{table}) to stdout") as source, \
                    self.here.cursor().copy(f"copy all_{table} from stdin") as target:
                for block in source:
                    target.write(block)
        # The documents that were there before are not listed one by one.
        self.here.execute("insert into all_pushed (queue, subject) select queue, subject from public.expected")
        self.here.execute("create index on all_leased (queue, subject)")
        self.here.execute("create index on all_settled (queue, subject)")
        self.here.execute("create temp table acknowledged (e text, queue text, subject text, lease bigint) on commit drop")
        with self.here.cursor().copy("copy acknowledged from stdin") as target:
            for row in acknowledged:
                target.write_row(row)
        self.here.execute("analyze all_pushed; analyze all_leased; analyze all_settled; analyze acknowledged")

    def close(self):
        self.here.close()
        self.there.close()

    def all(self, statement, *values):
        return rows(self.here, statement, *values)

    def run(self, check):
        try:
            return check(self)
        except psycopg.Error as error:
            return [f"{check.__name__}: {error}"]

    def prove(self, check, where, statement):
        """Does the damage, runs the check, and undoes the damage. Returns what the check has found, and whether it
        has seen the damage."""
        db = self.here if where == "here" else self.there
        db.execute("savepoint damage")
        try:
            done = db.execute(statement)
            if done.rowcount == 0:
                return ["the damage changes nothing"], False
            found = self.run(check)
            # An error of a statement of the check itself shows nothing.
            return found, bool(found) and not found[0].startswith(f"{check.__name__}: ")
        except psycopg.Error as error:
            return [f"the damage fails: {error}"], False
        finally:
            db.execute("rollback to savepoint damage")


CHECKS = []


def check(name, *damages, at_rest=False):
    """Registers a check with its name. A damage is (here or there, a statement). at_rest: it says nothing while
    others work."""
    def register(function):
        CHECKS.append((name, function, damages, at_rest))
        return function
    return register


DOCS = " union all ".join(f"select '{queue}' as queue, d.* from {PAGE.format(queue)} d" for queue in WORKED)


@check("what was acknowledged was committed, and is committed still",
       ("here", "delete from all_pushed where ctid = (select max(p.ctid) from all_pushed p join acknowledged a using (queue, subject) where a.e = 'push')"),
       ("here", "delete from all_leased where ctid = (select max(ctid) from all_leased)"),
       ("here", "delete from all_settled where ctid = (select max(s.ctid) from all_settled s join acknowledged a using (queue, subject, lease) where a.e = 'done')"))
def acknowledged(look):
    wrong = []
    for event, table, keys in (("push", "pushed", "queue, subject"), ("lease", "leased", "queue, subject, lease"), ("done", "settled", "queue, subject, lease")):
        wrong += [f"{event} was acknowledged: {row}" for row in look.all(
            f"select {keys} from acknowledged where e = '{event}' except select {keys} from all_{table} limit 5")]
    if not look.all("select from acknowledged where e = 'done' limit 1"):
        wrong.append("no settlement was acknowledged")
    return wrong


@check("each document is where its last call has left it, once",
       ("here", f"delete from {PAGE.format('jobs')} where subject = (select min(subject) from {PAGE.format('jobs')} where status = 1)"),
       ("here", f"delete from {PAGE.format('jobs')} where subject = (select min(subject) from {PAGE.format('jobs')} where status = 3)"),
       ("here", f"update {PAGE.format('jobs')} set status = 1 where subject = (select min(subject) from {PAGE.format('jobs')} where status = 3)"),
       ("here", f"update {PAGE.format('ordered')} set status = 3 where subject = (select min(subject) from {PAGE.format('ordered')} where status = 1)"),
       ("here", f"update {PAGE.format('jobs')} set attempts = attempts + 1 where subject = (select min(subject) from {PAGE.format('jobs')} where status = 1)"),
       ("here", f"insert into {PAGE.format('jobs')} (subject, status) values ('from nowhere', 1)"),
       ("here", f"insert into {PAGE.format('jobs')} (subject, status) select min(subject), 1 from fetchq_data.jobs__history"),
       ("here", "delete from fetchq_data.jobs__history where id = (select max(id) from fetchq_data.jobs__history)"),
       ("here", f"delete from {PAGE.format('dead')} where seq = (select max(seq) from {PAGE.format('dead')})"))
def in_place(look):
    wrong = look.all(f"""
        with docs as ({DOCS}),
        last as (select distinct on (queue, subject) * from all_leased order by queue, subject, at desc),
        history as (select 'jobs' as queue, subject, count(*) as n from fetchq_data.jobs__history where outcome = 'dropped' group by 2),
        dead as (select origin ->> 'queue' as queue, origin ->> 'subject' as subject, count(*) as n from {PAGE.format('dead')} where status = 1 group by 1, 2)
        select coalesce(p.queue, d.queue), coalesce(p.subject, d.subject), l.attempts, s.how, d.status, d.attempts, l.lease, d.lease, h.n, x.n
        from (select distinct queue, subject from all_pushed) p
        full join docs d using (queue, subject)
        left join last l on l.queue = p.queue and l.subject = p.subject
        left join all_settled s on s.queue = l.queue and s.subject = l.subject and s.lease = l.lease
        left join history h on h.queue = p.queue and h.subject = p.subject
        left join dead x on x.queue = p.queue and x.subject = p.subject
        where (coalesce(h.n, 0) = (coalesce(s.how, '') = 'drop')::int and coalesce(x.n, 0) = (coalesce(s.how, '') = 'kill')::int and case
            when p.subject is null then false
            when l.subject is null then d.status in (0, 1) and d.attempts = 0
            when s.how is null then d.attempts = l.attempts and (d.status = 2 and d.lease = l.lease or d.status = 1 and l.at < now() - make_interval(secs => {LEASE - 1}))
            when s.how = 'complete' then d.status = 3 and d.lease = l.lease and d.result = '{{"ok": true}}'
            when s.how = 'reject' then d.status in (0, 1) and d.attempts = l.attempts and d.last_error = 'no'
            else d.subject is null
            end) is not true
        limit 10""")
    return [f"(queue, subject, attempts, settled how; status, attempts; leases; in the history; dead letters) is {row}" for row in wrong]


@check("no lease settles twice, no document ends twice, and none is settled without a lease",
       ("here", "insert into all_settled select queue, subject, lease, how, clock_timestamp(), 'other' from all_settled limit 1"),
       ("here", "insert into all_settled select queue, subject, lease + 1, how, clock_timestamp(), 'other' from all_settled where how <> 'reject' limit 1"))
def settled_once(look):
    wrong = [f"settled twice: {row}" for row in look.all(
        "select queue, subject, lease, array_agg(how || ' on ' || server) from all_settled group by 1, 2, 3 having count(*) > 1 limit 5")]
    wrong += [f"ended twice: {row}" for row in look.all(
        "select queue, subject, array_agg(how || ' on ' || server) from all_settled where how <> 'reject' group by 1, 2 having count(*) > 1 limit 5")]
    wrong += [f"settled by a lease that was never given: {row}" for row in look.all(
        "select queue, subject, lease from all_settled except select queue, subject, lease from all_leased limit 5")]
    return wrong


@check("a document has one lease at a time, with a greater number and one more attempt each",
       ("here", "insert into all_leased select queue, subject, lease, attempts, worker, at, 'other' from all_leased limit 1"),
       ("here", "insert into all_leased select queue, subject, lease + 1, attempts + 1, worker, at + interval '0.1 ms', 'other' from all_leased limit 1"),
       ("here", "update all_leased set lease = -1 where ctid = (select max(ctid) from all_leased where attempts > 1)"),
       ("here", "update all_leased set attempts = attempts + 1 where ctid = (select max(ctid) from all_leased)"))
def one_lease(look):
    wrong = look.all(f"""
        select queue, subject, lease, before, at, ends, attempts, place from (
            select l.*, lag(l.lease) over w as before,
                lag(coalesce(s.at, l.at + make_interval(secs => {LEASE - 1}))) over w as ends, row_number() over w as place
            from all_leased l left join (select distinct on (queue, subject, lease) * from all_settled order by queue, subject, lease) s using (queue, subject, lease)
            window w as (partition by l.queue, l.subject order by l.at)) l
        where lease <= before or at < ends or attempts <> place limit 5""")
    return [f"(queue, subject, lease, the one before, since, the one before ended, attempts, leases) is {row}" for row in wrong]


@check("the documents of an ordering key run in their order, none is left out",
       ("here", "update all_leased set at = at - interval '1 day' where ctid = (select max(l.ctid) from all_leased l where queue = 'ordered' and exists"
                " (select from all_settled s where s.queue = 'ordered' and how = 'complete' and s.at < l.at and regexp_replace(l.subject, '-[0-9]+$', '') = regexp_replace(s.subject, '-[0-9]+$', '')))"),
       ("here", "delete from all_settled where ctid = (select min(s.ctid) from all_settled s where queue = 'ordered' and how = 'complete' and exists"
                " (select from all_leased l where l.queue = 'ordered' and l.at > s.at and regexp_replace(l.subject, '-[0-9]+$', '') = regexp_replace(s.subject, '-[0-9]+$', '')))"))
def in_order(look):
    key = "regexp_replace(subject, '-[0-9]+$', '')"
    wrong = look.all(f"""
        with events as (
            select {key} as key, at, subject, 'lease' as what from all_leased where queue = 'ordered'
            union all select {key}, at, subject, how from all_settled where queue = 'ordered'),
        numbered as (select *, count(*) filter (where what = 'complete') over (partition by key order by at) as done from events),
        places as (select subject, row_number() over (partition by {key} order by subject) as place
            from (select distinct subject from all_pushed where queue = 'ordered') p)
        select key, subject, place, done from numbered join places using (subject) where what = 'lease' and place <> done + 1 limit 5""")
    return [f"(key, leased, its place, completed before) is {row}" for row in wrong]


@check("documents that nobody has touched are the same, byte by byte",
       ("here", f"update {PAGE.format('jobs')} set created_at = created_at + interval '1 us' where subject = (select min(subject) from {PAGE.format('jobs')} where picked_at is null and subject like 'd%%')"),
       ("here", f"update {PAGE.format('jobs')} set next_iteration = next_iteration + interval '1 us' where subject = (select max(subject) from {PAGE.format('jobs')} where picked_at is null and subject like 'd%%')"),
       ("here", f"update {PAGE.format('jobs')} set payload = '{{}}' where subject = (select max(subject) from {PAGE.format('jobs')} where picked_at is null and subject like 'd%%')"),
       ("here", f"delete from {PAGE.format('jobs')} where subject = (select max(subject) from {PAGE.format('jobs')} where picked_at is null and subject like 'd%%')"))
def untouched(look):
    look.here.execute("set local timezone = 'UTC'")
    wrong = look.all(f"""
        select e.queue, e.subject, d.subject is not null from public.expected e left join ({DOCS}) d using (queue, subject)
        where not exists (select from all_leased l where l.queue = e.queue and l.subject = e.subject)
            and md5((d.created_at, d.next_iteration, d.due_at, d.seq, d.payload, d.headers, d.version, d.priority, d.status, d.lease, d.iterations, d.ordering_key)::text)
                is distinct from e.content limit 5""")
    return [f"(queue, subject, is there) is {row}" for row in wrong]


@check("a queue in which nothing happens is the same: documents in every status, logs, history, snapshots, leases",
       ("here", f"update {PAGE.format('still')} set progress = '{{}}' where status = 2"),
       ("here", f"update {PAGE.format('still')} set next_iteration = next_iteration + interval '1 us' where status = 0"),
       ("here", "delete from fetchq_data.still__logs where id = (select min(id) from fetchq_data.still__logs)"),
       ("here", "delete from fetchq_data.still__history where id = (select min(id) from fetchq_data.still__history)"),
       ("here", "delete from fetchq_data.still__metrics where id = (select min(id) from fetchq_data.still__metrics)"),
       ("here", "update fetchq.worker_sessions set name = 'somebody' where queue_id = (select id from fetchq.queues where name = 'still')"))
def still(look):
    now = frozen(look.here)
    # Maintenance takes snapshots of the metrics.
    taken = {key for key in now if key[0] == "metrics"} - look.before["still"].keys()
    return differences(look.before["still"], {key: value for key, value in now.items() if key not in taken})[:5]


@check("each failure is in the log once",
       ("here", "delete from fetchq_data.jobs__logs where id = (select min(id) from fetchq_data.jobs__logs)"),
       ("here", "insert into fetchq_data.ordered__logs (subject, message, ref_id, attempt) select subject, message, ref_id, attempt from fetchq_data.ordered__logs limit 1"))
def logged(look):
    logs = " union all ".join(f"select '{queue}' as queue, subject, ref_id, attempt, message from fetchq_data.{queue}__logs" for queue in WORKED)
    wrong = look.all(f"""
        select s.queue, s.subject, s.lease, l.n from (select queue, subject, lease from all_settled where how = 'reject') s
        full join (select queue, subject, ref_id::bigint as lease, count(*) as n from ({logs}) l where message = 'no' group by 1, 2, 3) l using (queue, subject, lease)
        where s.subject is null or l.n is distinct from 1 limit 5""")
    return [f"(queue, subject, lease, entries) is {row}" for row in wrong]


@check("the counters are those of a recount, and the totals are those of all calls on both servers",
       ("here", "update fetchq.metrics set value = value + 1 where queue = 'jobs' and metric = 'pnd'"),
       ("here", "update fetchq.metrics set value = value - 1 where queue = 'ordered' and metric = 'suc'"),
       ("here", "update fetchq.metrics set value = value + 1 where queue = 'still' and metric = 'ent'"))
def counted(look):
    wrong = []
    for queue in QUEUES:
        found, told = (look.all(f"select cnt, pln, pnd, act, kll, cpl from fetchq.{call}(%s)", queue)[0] for call in ("metric_compute", "metric_get_common"))
        if found != told:
            wrong.append(f"{queue} (cnt, pln, pnd, act, kll, cpl): counted {found}, told {told}")
    for queue in WORKED:
        told = dict(look.all("select metric, sum(value)::bigint from fetchq.metrics_exact where queue = %s group by 1", queue))
        how = dict(look.all("select how, count(*) from all_settled where queue = %s group by 1", queue))
        n = lambda *names: sum(how.get(name, 0) for name in names)
        leased = look.all("select count(*) from all_leased where queue = %s", queue)[0][0]
        pushed = look.all("select count(distinct subject) from all_pushed where queue = %s", queue)[0][0]
        expected = {
            "ent": pushed, "pkd": leased, "suc": n("complete", "drop"), "drp": n("drop", "kill"), "rej": n("reject"),
            "fai": n("reject", "kill"), "ded": n("kill"),
            # What is neither settled nor active has expired.
            "orp": leased - sum(how.values()) - told.get("act", 0),
        }
        wrong += [f"{queue}: {metric} is {told.get(metric, 0)}, not {value}" for metric, value in expected.items() if told.get(metric, 0) != value]
    wrong += differences(look.before["totals"], totals(look.here))
    return wrong


@check("a cap counts the documents that are leased, and an order has the documents that are there",
       ("here", "delete from fetchq.lease_slots where subject is not null and queue_id = (select id from fetchq.queues where name = 'held')"),
       ("here", "delete from fetchq.ordering_keys where key = (select min(key) from fetchq.ordering_keys where queue_id = (select id from fetchq.queues where name = 'ordered'))"))
def limited(look):
    wrong = [f"a slot of the cap, or a leased document without one: {row}" for row in look.all(f"""
        select s.subject, d.subject from
            (select subject from fetchq.lease_slots join fetchq.queues q on q.id = queue_id where q.name = 'held' and subject is not null) s
            full join (select subject from {PAGE.format('held')} where status = 2) d using (subject)
        where s.subject is null or d.subject is null limit 5""")]
    wrong += [f"an ordering key, its head, and the first document of it: {row}" for row in look.all(f"""
        select key, k.unblocked, d.first from
            (select key, unblocked from fetchq.ordering_keys join fetchq.queues q on q.id = queue_id where q.name = 'ordered') k
            full join (select ordering_key as key, min(subject) as first from {PAGE.format('ordered')} where status in (0, 1, 2) group by 1) d using (key)
        where k.unblocked is distinct from array[d.first::text] limit 5""")]
    return wrong


@check("the times of waiting and running are counted for all calls on both servers",
       ("here", "update fetchq.timings set counts[1] = counts[1] + 1 where queue_id = (select id from fetchq.queues where name = 'jobs')"),
       at_rest=True)
def timed(look):
    wrong = []
    for queue in WORKED:
        told = dict(look.all(
            "select kind, sum(n)::bigint from fetchq.timings t join fetchq.queues q on q.id = t.queue_id, unnest(counts) n where q.name = %s group by 1", queue))
        leased = look.all("select count(*) from all_leased where queue = %s", queue)[0][0]
        settled = look.all("select count(*) from all_settled where queue = %s", queue)[0][0]
        if (told.get("wait"), told.get("run")) != (leased, settled):
            wrong.append(f"{queue}: waits and runs are {told}, leases {leased}, settled {settled}")
    return wrong


@check("a schedule ticks once for each time",
       ("here", f"delete from {PAGE.format('ticks')} where seq = (select min(seq) + 1 from {PAGE.format('ticks')})"),
       ("here", f"insert into {PAGE.format('ticks')} (subject, next_iteration) select 'again', next_iteration from {PAGE.format('ticks')} limit 1"),
       ("here", "update fetchq.schedules set ticks = ticks + 1 where name = 'second'"))
def ticked(look):
    found = look.all("select count(*), count(distinct next_iteration), extract(epoch from max(next_iteration) - min(next_iteration))::int + 1,"
                     " (select ticks from fetchq.schedules where name = 'second')"
                     f" from {PAGE.format('ticks')}")[0]
    ticks, times, seconds, told = found
    # An undisturbed move of few documents takes two seconds.
    return [] if ticks == times == seconds == told and ticks > 1 else [f"{ticks} ticks at {times} times in {seconds} seconds; {told} told"]


@check("settings, rights, schedules, jobs and tables are as they were",
       ("here", "update fetchq.queues set max_attempts = max_attempts + 1 where name = 'jobs'"),
       ("here", "update fetchq.queues set created_at = now() where name = 'jobs'"),
       ("here", "update fetchq.schedules set payload = '{\"other\": 1}' where name = 'second'"),
       ("here", "select fetchq.queue_revoke('jobs', 'app', 'worker')"),
       ("here", "update fetchq.jobs set settings = '{}' where queue = 'jobs' and task = 'mnt'"),
       ("here", "delete from fetchq.stop_requests"),
       ("here", "alter table fetchq_data.jobs__docs set (fillfactor = 50)"),
       ("here", "alter table fetchq_data.jobs__docs disable trigger all"),
       ("here", "drop index fetchq_data.jobs__docs_due_idx"))
def described(look):
    return differences(look.before["description"], describe(look.here))[:5]


@check("numbers of new rows come after those of old ones",
       ("here", "select setval(pg_get_serial_sequence('fetchq_data.jobs__docs', 'seq'), 1)"),
       ("here", "select setval(pg_get_serial_sequence('fetchq_data.jobs__logs', 'id'), 1)"))
def numbered(look):
    wrong = []
    tables = [f"{queue}__{table}" for queue in QUEUES for table in ("docs", "logs", "metrics", "history")]
    for table, column in look.all(
        "select attrelid::regclass::text, attname from pg_attribute where attidentity <> '' and attrelid in"
        " (select oid from pg_class where relnamespace = 'fetchq_data'::regnamespace and relname = any (%s))", tables):
        highest, sequence = look.all(f"select max({column}), pg_get_serial_sequence('{table}', '{column}') from {table}")[0]
        last, is_called = look.all(f"select last_value, is_called from {sequence}")[0]
        if highest is not None and (last < highest or not is_called):
            wrong.append(f"{table}.{column}: the highest is {highest}, the sequence is at {last}")
    return wrong


@check("the other server says where the queues are, and has nothing of them",
       ("there", "delete from fetchq.queue_places where queue = 'jobs'"),
       ("there", "update fetchq.queue_places set place = 'elsewhere' where queue = 'still'"),
       ("there", "insert into fetchq.queues (name) values ('jobs')"),
       ("there", "create table fetchq_data.jobs__docs ()"),
       ("there", "insert into fetchq.metrics (queue, metric, value) values ('jobs', 'cnt', 1)"),
       ("there", "insert into fetchq.jobs (queue, task) values ('jobs', 'mnt')"))
def led(look):
    wrong, place = [], look.here_server.place()
    calls = (
        "select fetchq.doc_push(%(q)s, 'x')", "select fetchq.doc_put(%(q)s, 'x')", "select fetchq.doc_append(%(q)s, '{}')",
        "select * from fetchq.doc_lease(%(q)s)", "select * from fetchq.doc_pick(%(q)s, 1)", "select fetchq.doc_complete(%(q)s, 'x', lease => 1)",
        "select fetchq.doc_reject(%(q)s, 'x', 'no')", "select * from fetchq.queue_create(%(q)s)",
        "select * from fetchq.queue_stats(%(q)s)", "select * from fetchq.docs_list(%(q)s)",
    )
    for queue in QUEUES:
        for call in calls if queue == "jobs" else calls[:1]:
            look.there.execute("savepoint call")
            try:
                found = look.there.execute(call, {"q": queue}).fetchall()
                wrong.append(f"{call} of {queue}: {found}")
            except psycopg.Error as error:
                if "lives on another server" not in str(error) or place not in str(error):
                    wrong.append(f"{call} of {queue}: {error}")
            look.there.execute("rollback to savepoint call")
    with look.there_server.connect() as db:
        # It waits in no transaction.
        try:
            db.execute("call fetchq.queue_wait('{jobs}', '1 s')")
            wrong.append("queue_wait waits")
        except psycopg.Error as error:
            if place not in str(error):
                wrong.append(f"queue_wait: {error}")
    for table, column in (("queues", "name"), ("jobs", "queue"), ("schedules", "queue"), ("metrics", "queue")):
        wrong += [f"fetchq.{table} has {row}" for row in rows(look.there, f"select {column} from fetchq.{table} where {column} = any (%s)", list(QUEUES))]
    wrong += [f"there is {row}" for row in rows(look.there, "select c.oid::regclass::text from pg_class c where relnamespace = 'fetchq_data'::regnamespace"
        " and relkind = 'r' and split_part(relname, '__', 1) = any (%s)", list(QUEUES))]
    known = rows(look.here, "select queue, place from fetchq.queue_places where queue = any (%s)", list(QUEUES))
    if known:
        wrong.append(f"the server that has the queues says that they are elsewhere: {known}")
    return wrong


@check("at each moment one server had the queues, and each move changed it once",
       ("here", "insert into all_pushed select queue, subject, at - interval '1 ms', 'other' from all_pushed where server is not null order by at desc limit 1"))
def one_at_a_time(look):
    changes = look.all("""
        select count(*) from (select server, lag(server) over (order by at) as before from (
            select at, server from all_pushed where server is not null union all select at, server from all_leased union all select at, server from all_settled) e) e
        where server <> before""")[0][0]
    return [] if changes == look.moves else [f"the calls went from one server to the other {changes} times in {look.moves} moves"]


@check("nothing of the move is left",
       ("there", "create publication fetchq_left"),
       ("here", "create publication fetchq_left for table fetchq_data.jobs__docs"))
def clean(look):
    wrong = []
    for name, db in (("here", look.here), ("there", look.there)):
        for what in ("select 'publication ' || pubname from pg_publication", "select 'subscription ' || subname from pg_subscription",
                     "select 'slot ' || slot_name from pg_replication_slots"):
            wrong += [f"{name}: {row[0]}" for row in rows(db, what)]
    return wrong


@check("picks find each document that is ready",
       ("here", f"update {PAGE.format('jobs')} set lock_upgrade = now() where subject = (select min(subject) from {PAGE.format('jobs')} where status = 1)"),
       at_rest=True)
def found(look):
    wrong = []
    misses = look.all("select floor_misses from fetchq.ready_stats()")[0][0]
    if misses:
        wrong.append(f"{misses} floor misses")
    # The transaction has begun a moment before its snapshot.
    ready = look.all(f"select count(*) from {PAGE.format('jobs')} where status = 1 and version = 0 and next_iteration <= now()")[0][0]
    look.here.execute("savepoint picks")
    found = look.all("select count(*) from fetchq.doc_lease('jobs', 2000000)")[0][0]
    look.here.execute("rollback to savepoint picks")
    if found != ready:
        wrong.append(f"{ready} documents are ready, {found} are found")
    return wrong


def summary(look):
    """What has happened, for the report."""
    names = ("pushed", "leased", "settled")
    return json.dumps({name: look.all(f"select count(*) from all_{name} where server is not null")[0][0] for name in names})
