"""Code of roles that are no superusers, which `fetchq move` would run as one: it is refused, and is not run.

Each case is one object on the table of a queue. The functions of mallory write down who runs them.
"""

from servers import BINDIR, Mover

QUEUE = "guarded"
DOCS = f"fetchq_data.{QUEUE}__docs"

# On both servers. A function that says that it is immutable may call one that is not.
ROLES = """
    create role mallory nologin;
    create table public.seen (who text);
    grant insert on public.seen to public;
    create schema loose authorization mallory;
    grant create on schema public to mallory;
    set role mallory;
    create function loose.note() returns void language plpgsql as $$ begin insert into public.seen values (current_user); end $$;
    create function loose.norm(x jsonb) returns text language plpgsql immutable as $$ begin perform loose.note(); return x::text; end $$;
    create function loose.is_fine(x text) returns boolean language plpgsql immutable as $$ begin perform loose.note(); return true; end $$;
    create function loose.same(a text, b text) returns boolean language plpgsql immutable as $$ begin perform loose.note(); return a = b; end $$;
    create function loose.compare(a text, b text) returns int language plpgsql immutable as $$ begin perform loose.note(); return bttextcmp(a, b); end $$;
    create function loose.touch() returns trigger language plpgsql as $$ begin perform loose.note(); return new; end $$;
    create operator loose.=== (leftarg = text, rightarg = text, function = loose.same);
    create domain loose.short as text check (loose.is_fine(value));
    reset role;
    create operator public.==== (leftarg = text, rightarg = text, function = loose.same);
    create domain public.tidy as text check (loose.is_fine(value));
    create operator class public.sorted for type text using btree as operator 1 <, operator 2 <=, operator 3 =, operator 4 >=, operator 5 >,
        function 1 loose.compare(text, text);
    create function public.trusted(x jsonb) returns text language sql immutable as $$ select x::text $$;
"""

# Name, what adds it, what removes it, and what the command has to name.
CASES = [
    ("an index", f"create index added on {DOCS} (loose.norm(payload))", "drop index fetchq_data.added",
     ["index fetchq_data.added", "function loose.norm(jsonb)"]),
    ("an index with a predicate", f"create index added on {DOCS} (subject) where loose.is_fine(subject)", "drop index fetchq_data.added",
     ["index fetchq_data.added", "function loose.is_fine(text)"]),
    ("an index with an operator", f"create index added on {DOCS} ((subject operator(loose.===) 'x'))", "drop index fetchq_data.added",
     ["index fetchq_data.added", "operator loose.===(text,text)"]),
    ("an index with an operator of a superuser and a function of another role",
     f"create index added on {DOCS} ((subject operator(public.====) 'x'))", "drop index fetchq_data.added",
     ["index fetchq_data.added", "function loose.same(text,text)"]),
    ("an index with a type", f"create index added on {DOCS} ((subject::loose.short))", "drop index fetchq_data.added",
     ["index fetchq_data.added", "type loose.short"]),
    ("an index with a domain of a superuser and a constraint of another role", f"create index added on {DOCS} ((subject::public.tidy))",
     "drop index fetchq_data.added", ["index fetchq_data.added", "function loose.is_fine(text)"]),
    ("an index with an operator class", f"create index added on {DOCS} (subject public.sorted)", "drop index fetchq_data.added",
     ["index fetchq_data.added", "function loose.compare(text,text)"]),
    ("statistics", f"create statistics public.added on (loose.norm(payload)), priority from {DOCS}", "drop statistics public.added",
     ["statistics object public.added", "function loose.norm(jsonb)"]),
    ("a default", f"alter table {DOCS} alter column last_error set default loose.norm('1')", f"alter table {DOCS} alter column last_error drop default",
     ["default value for column last_error", "function loose.norm(jsonb)"]),
    ("a generated column", f"alter table {DOCS} add column added text generated always as (loose.norm(payload)) stored",
     f"alter table {DOCS} drop column added", [DOCS, "function loose.norm(jsonb)"]),
    ("a constraint", f"alter table {DOCS} add constraint added check (loose.is_fine(subject))", f"alter table {DOCS} drop constraint added",
     ["constraint added", "function loose.is_fine(text)"]),
    ("a trigger that is named like one of fetchq",
     f"create trigger fetchq_cap_added before insert on {DOCS} for each row execute function loose.touch()", f"drop trigger fetchq_cap_added on {DOCS}",
     ["trigger fetchq_cap_added", "function loose.touch()"]),
    ("a policy", f"create policy added on {DOCS} using (loose.is_fine(subject))", f"drop policy added on {DOCS}",
     ["policy added", "function loose.is_fine(text)"]),
]


def run(move):
    """Runs all cases. `move` is the run of the test; nothing of it works yet."""
    old, new = move.source, move.target
    for server in (old, new):
        with server.connect() as db:
            db.execute(ROLES)
    with old.connect() as db:
        db.execute("select fetchq.queue_create(%s)", [QUEUE])
        db.execute("select fetchq.doc_put(%s, 'd' || i, jsonb_build_object('n', i)) from generate_series(1, 10) i", [QUEUE])
        has_statistics = db.info.server_version >= 140000

    def mover(*options):
        one = Mover(move.folder, old, new, [QUEUE], *options)
        status, line = one.finish()
        return status, f"{line}\n{one.said()}"

    def ran():
        """Whether a superuser ran a function of mallory."""
        found = []
        for server in (old, new):
            with server.connect() as db:
                found += [f"{server.name}: {who} ran a function of mallory" for (who,) in db.execute("select distinct who from public.seen")]
                db.execute("truncate public.seen")
        return found

    def left():
        """What a move that has not begun has made."""
        found = []
        for server in (old, new):
            with server.connect() as db:
                found += [f"{server.name} has a record" for _ in db.execute("select from pg_namespace where nspname = 'fetchq_move'")]
                found += [f"{server.name} has {name}" for (name,) in db.execute(
                    "select pubname::text from pg_publication union all select subname from pg_subscription union all select slot_name from pg_replication_slots")]
        with new.connect() as db:
            found += [f"the new server has {name}" for (name,) in db.execute(
                "select relname from pg_class where relnamespace = 'fetchq_data'::regnamespace and relname like %s", [f"{QUEUE}%"])]
        return found

    def refused(words, said, status):
        wrong = [] if status == 1 else [f"status {status}"]
        wrong += [f"it does not name {word}" for word in words if not any(word in line and "mallory" in line for line in said.splitlines())]
        return wrong + ([said[-1500:]] if wrong else [])

    for name, add, remove, words in CASES:
        if name == "statistics" and not has_statistics:
            continue
        with old.connect() as db:
            db.execute(add)
            db.execute("truncate public.seen")
        for options in (["--dry-run"], []):
            status, said = mover(*options)
            move.test(f"{name} with code of a role that is no superuser is refused {' '.join(options) or 'by the move itself'}", refused(words, said, status))
            move.test(f"{name}: nothing of that role runs as a superuser {' '.join(options)}", ran())
            move.test(f"{name}: nothing is changed {' '.join(options)}", left())
            if status == 0 and not options:
                raise RuntimeError(f"{name}: the queue has moved")
            if status == 0:
                break
        with old.connect() as db:
            db.execute(remove)

    # What is trusted on the old server can be somebody else's on the new one, also with other types.
    with old.connect() as db:
        db.execute(f"create index added on {DOCS} (public.trusted(payload))")
        db.execute("truncate public.seen")
    status, said = mover("--dry-run")
    move.test("an index with a function of a superuser can move", [] if status == 0 else [f"status {status}: {said}"])
    for types in ("jsonb", "anyelement"):
        with new.connect() as db:
            db.execute("drop function public.trusted; set role mallory")
            db.execute(f"create function public.trusted(x {types}) returns text language plpgsql immutable"
                       " as $$ begin perform loose.note(); return 'x'; end $$")
            db.execute("reset role")
        for options in (["--dry-run"], []):
            status, said = mover(*options)
            move.test(f"a function of the same name ({types}) of a role that is no superuser on the new server is refused {' '.join(options)}",
                      refused([f"function public.trusted({types})", "the new server"], said, status) + ran() + left())
            if status == 0:
                break
    with old.connect() as db:
        db.execute("drop index fetchq_data.added")

    # Between the check and the lock. After a move that was not refused there is no queue any more.
    late = f"{BINDIR}/psql -Xq '{old.dsn()}' -c \"create index if not exists added on {DOCS} ((1)) where loose.is_fine('x')\""
    status, said = mover("--before", late)
    move.test("an index with such code that is added after the check is refused under the lock",
              refused(["index fetchq_data.added", "function loose.is_fine(text)"], said, status))
    with old.connect() as db:
        live = db.execute("select count(*) from fetchq.docs_list(%s)", [QUEUE]).fetchone()[0]
        move.test("the queue works on where it is", [] if live == 10 else [f"{live} documents"])
        db.execute("drop index fetchq_data.added")
        db.execute("select fetchq.queue_drop(%s)", [QUEUE])
    for server in (old, new):
        with server.connect() as db:
            db.execute("drop operator class public.sorted using btree; drop operator family if exists public.sorted using btree")
            db.execute("drop domain public.tidy; drop operator public.==== (text, text); drop function public.trusted")
            db.execute("drop schema loose cascade; drop table public.seen; revoke create on schema public from mallory; drop owned by mallory; drop role mallory")
