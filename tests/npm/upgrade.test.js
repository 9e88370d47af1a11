// Upgrades of databases that the published clients have made: in place, and all or nothing.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { bootClient, CLIENTS } from './client.js';
import { assertCounters, createDatabase, HAS_WORKER, listen, poll } from './support.js';

const { FETCHQ_PG_BINDIR: BIN, FETCHQ_EXTENSION_DIR: EXTENSION } = process.env;
assert.ok(BIN && EXTENSION, 'FETCHQ_PG_BINDIR and FETCHQ_EXTENSION_DIR must hold folders of PostgreSQL');
const run = promisify(execFile);

/** The two ways in which fetchq 4 was installed, and the client that works with it. */
const WAYS = [
  { name: 'upgrade_411', client: '4.1.1', isExtension: false },
  { name: 'upgrade_420', client: '4.2.0', isExtension: false },
  { name: 'upgrade_ext', client: '4.2.0', isExtension: true },
];
const SCRIPT = `${EXTENSION}/fetchq--unpackaged--5.0.0.sql`;

/** Makes a database with fetchq 4 as a way wants it. */
async function createOld(name, { client, isExtension }) {
  const base = await createDatabase(name, { 'fetchq.compat': client }, { hasExtension: false });
  if (isExtension) {
    await base.one('create extension "uuid-ossp"');
    await base.one("create extension fetchq version '4.0.2'");
    await base.one('select fetchq.init()');
  }
  /** Upgrades, or fails with the error. Other sessions of the tests are connected. */
  const upgrade = async ({ dryRun = false, allow = true } = {}) => {
    if (isExtension) {
      const session = await base.db.connect();
      try {
        if (allow) await session.query('set fetchq_upgrade.allow_sessions = on');
        if (dryRun) await session.query('set fetchq_upgrade.dry_run = on');
        await session.query('alter extension fetchq update');
      } finally {
        session.release(true);
      }
      return;
    }
    const env = { ...process.env, PGOPTIONS: allow ? '-c fetchq_upgrade.allow_sessions=on' : '' };
    const variables = dryRun ? ['-v', 'dry_run=on'] : [];
    try {
      await run(`${BIN}/psql`, ['-X', ...variables, '-d', base.url(), '-f', SCRIPT], { env });
    } catch ({ stderr }) {
      const [, message, detail] = /ERROR: {2}(.*)\n(?:DETAIL: {2}([^]*?)\n)?(?:HINT|CONTEXT|$)/.exec(`${stderr}\n`) ?? [];
      assert.ok(message, stderr);
      throw Object.assign(new Error(message), { detail });
    }
  };
  /** Everything in the database, as SQL. */
  const dump = async () => {
    const { stdout } = await run(`${BIN}/pg_dump`, ['-d', base.url()], { maxBuffer: 2 ** 26 });
    return stdout.replace(/^\\(un)?restrict .*$/gm, '');
  };
  return { ...base, upgrade, dump };
}

const QUEUES = [
  { name: 'plain', maxAttempts: 3, logsRetention: '7d', maintenance: { mnt: { delay: '250ms', duration: '2m', limit: 50 } } },
  { name: 'versioned', currentVersion: 2, isActive: false },
  { name: 'silent', enableNotifications: false },
];

/** Works with fetchq 4 through its client, so that there is something of everything. */
async function work(client, { one }) {
  await client.doc.pushMany('plain', { docs: ['done', 'killed', 'dropped', 'rejected', 'later', 'active', 'first', 'second'].map((s, n) => [s, 8 - n, { n }]) });
  assert.equal((await client.doc.pick('plain', 0, 6, '1h')).length, 6);
  await client.doc.complete('plain', 'done', { text: `it's "done"` });
  await client.doc.kill('plain', 'killed');
  await client.doc.drop('plain', 'dropped');
  await client.doc.reject('plain', 'rejected', 'no good', { why: 'because' }, 'ref');
  await client.doc.reschedule('plain', 'later', '+1 day');
  await client.doc.push('versioned', { subject: 'v', version: 2, payload: { v: 2 } });
  for (let n = 0; n < 5; n += 1) await client.doc.append('silent', { n });
  await client.queue.logError('silent', 'nobody', 'logged');
  await client.metric.snap?.('plain');
  await one("select * from fetchq.metric_snap('plain')");
  await one('select * from fetchq.metric_log_pack()');
  await one("select * from fetchq.metric_increment('my own', 'hits', 5)");
  await one("select * from fetchq.metric_log_increment('plain', 'mine', 3)"); // It is not packed.
  await one("update fetchq_data.silent__docs set lock_upgrade = now() where payload = '{\"n\": 4}'");
  // The old client took a name as it was written, and the tables got it in lower case.
  await one("select * from fetchq.queue_create('MixedCase')");
  await one("select * from fetchq.doc_push('MixedCase', 'm', 0, 0, now() + interval '1 day', '{}')");
  // The background worker must not run them between the upgrade and the comparison.
  await one("update fetchq.jobs set next_iteration = now() + interval '1 day', iterations = iterations + 3");
}

/** What a user adds. */
const OBJECTS = `
  create table public.orders (id int);
  create trigger tell after insert on public.orders for each row execute procedure fetchq.trigger_notify_as_json();
  create table public.seen (subject text);
  create function public.see() returns trigger language plpgsql as 'begin insert into public.seen values (new.subject); return new; end';
  create trigger see after insert on fetchq_data.plain__docs for each row execute procedure public.see();
  alter table fetchq_data.plain__docs disable trigger see;
  alter table fetchq_data.plain__docs enable always trigger see;
  create index plain_by_n on fetchq_data.plain__docs ((payload ->> 'n')) where status = 1;
  alter table fetchq_data.plain__docs add column tenant int not null default 7;
  update fetchq_data.plain__docs set tenant = 8 where subject = 'first';
  comment on column fetchq_data.plain__docs.tenant is 'whose';
  create view public.open_docs with (security_barrier = true) as select subject, status, tenant from fetchq_data.plain__docs where status between 0 and 2;
  create view public.open_names (n) as select o.subject from public.open_docs o join fetchq.queues q on q.name = 'plain';
  comment on view public.open_names is 'names';
  grant select on public.open_names to NAME_reader;
  grant usage on schema fetchq, fetchq_data to NAME_reader;
  grant select on fetchq_data.plain__docs, fetchq.queues to NAME_reader;
  grant select (subject) on fetchq_data.silent__docs to NAME_reader with grant option;
  alter table fetchq_data.silent__docs owner to NAME_owner;
  alter table fetchq_data.silent__logs owner to NAME_owner;
  alter table fetchq_data.silent__metrics owner to NAME_owner;
  alter view public.open_docs owner to NAME_reader`;

/** What the upgrade has to keep, read in the same way before and after it. */
async function kept({ all }) {
  const queues = (await all("select lower(name) as name from fetchq.queues order by id")).map(({ name }) => name);
  const result = {
    queues: await all(`select id, created_at, lower(name) as name, is_active, current_version, max_attempts, logs_retention, metrics_retention, config
      from fetchq.queues order by id`),
    jobs: await all(`select task, lower(queue) as queue, iterations, next_iteration, payload, case when task <> 'lgp' then settings end as settings
      from fetchq.jobs order by 1, 2`),
    totals: await all(`select lower(queue) as queue, metric, value from fetchq.metrics
      where metric !~ '^(cnt|pln|pnd|act|cpl|kll|v[0-9]+)$' and value <> 0 order by 1, 2`),
    writes: await all("select queue, metric, increment, created_at from fetchq.metrics_writes where metric = 'mine'"),
    views: await all('select * from public.open_docs order by 1'),
    names: await all('select * from public.open_names order by 1'),
    settings: await all("select relname, relowner::regrole::text, reloptions, obj_description(oid) as comment from pg_class where relname in ('open_docs', 'open_names') order by 1"),
    triggers: await all("select tgname, tgrelid::regclass::text, tgenabled from pg_trigger where tgname in ('tell', 'see') order by 1"),
    index: await all("select replace(indexdef, 'btree', '') as def from pg_indexes where indexname = 'plain_by_n'"),
    comment: await all("select description from pg_description where objoid = 'fetchq_data.plain__docs'::regclass and objsubid > 0"),
    rights: await all(`select relname, grantee::regrole::text, privilege_type, is_grantable from pg_class, aclexplode(relacl)
      where relname in ('plain__docs', 'open_names', 'queues') and grantee <> relowner order by 1, 2, 3`),
    columns: await all(`select regexp_replace(attacl::text, '/[^,}]*', '', 'g') as acl from pg_attribute where attrelid = 'fetchq_data.silent__docs'::regclass and attname = 'subject'`),
  };
  for (const queue of queues) {
    result[queue] = {
      docs: await all(`select subject, version, priority, status, attempts, iterations, next_iteration, lock_upgrade, created_at, last_iteration, payload
        ${queue === 'plain' ? ', tenant' : ''} from fetchq_data.${queue}__docs order by created_at, subject`),
      logs: await all(`select id::int, created_at, subject, message, details, ref_id from fetchq_data.${queue}__logs order by id`),
      metrics: await all(`select id::int, created_at, metric, value from fetchq_data.${queue}__metrics order by id`),
    };
  }
  return result;
}

/** The extension in the catalog, object by object, without what differs between two databases. */
async function catalog({ all }) {
  const members = `select d.classid, d.objid, (pg_identify_object(d.classid, d.objid, 0)).*
    from pg_depend d join pg_extension e on e.oid = d.refobjid and e.extname = 'fetchq' where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'`;
  const acl = (column) => `(select string_agg(x::text, ',' order by x::text) from unnest(${column}) x)`;
  return {
    extension: await all(`select extname, extversion, extrelocatable, extnamespace::regnamespace::text, extcondition,
      (select array_agg(c::regclass::text order by n) from unnest(extconfig) with ordinality as u (c, n)) as tables from pg_extension where extname = 'fetchq'`),
    members: await all(`select type, identity, obj_description(objid, classid::regclass::name) as comment from (${members}) m order by 1, 2`),
    functions: await all(`select pg_get_functiondef(p.oid) as def, ${acl('p.proacl')} as acl, i.initprivs::text from pg_proc p
      left join pg_init_privs i on i.objoid = p.oid and i.classoid = 'pg_proc'::regclass
      where p.pronamespace = 'fetchq'::regnamespace order by p.oid::regprocedure::text`),
    relations: await all(`select c.relname, c.relkind, c.reloptions, c.relpersistence, am.amname, ${acl('c.relacl')} as acl, i.initprivs::text,
        case when c.relkind = 'v' then pg_get_viewdef(c.oid) when c.relkind = 'i' then pg_get_indexdef(c.oid) end as def
      from pg_class c left join pg_am am on am.oid = c.relam
      left join pg_init_privs i on i.objoid = c.oid and i.classoid = 'pg_class'::regclass and i.objsubid = 0
      where c.relnamespace = 'fetchq'::regnamespace order by c.relname`),
    columns: await all(`select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull, a.attidentity,
        a.attcollation::regcollation::text as collation, a.attstorage, pg_get_expr(d.adbin, d.adrelid) as value, a.attacl::text, col_description(c.oid, a.attnum)
      from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
      where c.relnamespace = 'fetchq'::regnamespace order by c.relname, a.attnum`),
    constraints: await all("select conrelid::regclass::text, conname, pg_get_constraintdef(oid) as def from pg_constraint where connamespace = 'fetchq'::regnamespace order by 1, 2"),
    triggers: await all(`select pg_get_triggerdef(t.oid) as def, tgenabled from pg_trigger t join pg_class c on c.oid = tgrelid
      where c.relnamespace = 'fetchq'::regnamespace and not tgisinternal order by 1`),
    inherits: await all("select inhrelid::regclass::text, inhparent::regclass::text from pg_inherits order by 1"),
    schemas: await all(`select nspname, ${acl('nspacl')} as acl, i.initprivs::text, obj_description(n.oid, 'pg_namespace') as comment from pg_namespace n
      left join pg_init_privs i on i.objoid = n.oid and i.classoid = 'pg_namespace'::regclass where nspname like 'fetchq%' order by 1`),
    events: await all('select * from fetchq.counter_events order by 1, 3'),
    of_queue: await all(`select replace(pg_get_indexdef(indexrelid), 'same', 'q') as def from pg_index where indrelid = 'fetchq_data.same__docs'::regclass
      union all select pg_get_triggerdef(oid) from pg_trigger where tgrelid = 'fetchq_data.same__docs'::regclass
      union all select attnum || attname || format_type(atttypid, atttypmod) || attcollation::regcollation || attnotnull from pg_attribute where attrelid = 'fetchq_data.same__docs'::regclass
      union all select reloptions::text from pg_class where oid = 'fetchq_data.same__docs'::regclass order by 1`),
  };
}

/** Whether the catalog and the documents are those of fetchq 4, at which its client can work. */
async function isOld({ one }) {
  return (await one("select to_regclass('fetchq.counter_log') is null and to_regnamespace('fetchq_upgrade') is null as old")).old;
}

for (const way of WAYS) {
  describe(`from fetchq 4, ${way.isExtension ? 'an extension' : 'installed by the client'} ${way.client}`, { timeout: 120_000 }, () => {
    const version = CLIENTS[way.client];
    const cleanup = [];
    after(async () => {
      for (const drop of cleanup.reverse()) await drop();
    });
    const create = async (name) => {
      const base = await createOld(name, way);
      cleanup.push(base.drop);
      return base;
    };

    test('all is carried over, and the same client goes on', async (t) => {
      const base = await create(way.name);
      const { one, all } = base;
      const roles = [`${way.name}_reader`, `${way.name}_owner`];
      for (const role of roles) {
        await one(`drop role if exists ${role}`);
        await one(`create role ${role}`);
      }
      const old = await bootClient(t, version, base.url(), { queues: QUEUES });
      await work(old, base);
      await base.db.query(OBJECTS.replaceAll('NAME', way.name));
      await old.end();
      const before = await kept(base);
      assert.equal(before.plain.docs.length, 7);

      const same = await base.dump();
      await assert.rejects(base.upgrade({ dryRun: true }), ({ message, detail }) => {
        assert.match(message, /dry run: fetchq 4 can be upgraded; nothing was changed/);
        assert.match(detail, /4 queues, 14 documents/);
        assert.match(detail, /queue mixedcase: 1 documents/);
        return true;
      });
      const other = await base.db.connect();
      await assert.rejects(base.upgrade({ allow: false }), ({ message, detail }) => {
        assert.match(message, /fetchq 4 cannot be upgraded; nothing was changed; problems: 1$/);
        return /other sessions are connected/.test(detail) || assert.fail(detail);
      });
      other.release();
      assert.equal(await base.dump(), same);

      await base.upgrade();
      assert.deepEqual(await kept(base), before);
      for (const queue of ['plain', 'versioned', 'silent', 'mixedcase']) await assertCounters(base, queue);
      // One role owns the tables of all queues, and who owned them owns the queue.
      assert.deepEqual(await all(`select distinct c.relowner = n.nspowner as is_owner from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'fetchq_data' and c.relkind = 'r'`), [{ is_owner: true }]);
      assert.deepEqual(await all("select role::text from fetchq.queue_grants('silent') where kind = 'owner' and is_direct"), [{ role: `${way.name}_owner` }]);
      // Nothing is left, and nothing of a user belongs to the extension.
      assert.deepEqual(await all("select nspname from pg_namespace where nspname ~ 'fetchq' order by 1"), [{ nspname: 'fetchq' }, { nspname: 'fetchq_data' }]);
      assert.deepEqual(await all(`select (pg_identify_object(classid, objid, 0)).identity from pg_depend d join pg_class c on d.classid = 'pg_class'::regclass and c.oid = d.objid
        where d.deptype = 'e' and d.refclassid = 'pg_extension'::regclass and c.relnamespace <> 'fetchq'::regnamespace`), []);
      // The order of insertion is kept.
      const order = await all('select subject from fetchq_data.silent__docs order by seq');
      assert.deepEqual(order, await all('select subject from fetchq_data.silent__docs order by created_at'));
      // An id that was used is not used again.
      const { queue_id: id } = await one("select * from fetchq.queue_create('new')");
      assert.equal(id, before.queues.at(-1).id + 1);

      const client = await bootClient(t, version, base.url(), { queues: QUEUES.map(({ isActive, ...queue }) => queue) });
      const heard = await listen(t, base.url(), 'fetchq_on_change', 'fetchq__plain__pnd');
      await one('insert into public.orders values (1)');
      await poll('the trigger of a table of the user', () => heard.some(({ channel, payload }) => channel === 'fetchq_on_change' && payload.includes('"orders"')));
      assert.deepEqual(await client.doc.complete('plain', 'active', { text: `it's` }), { affected_rows: 1 });
      assert.deepEqual((await client.doc.pick('plain', 0, 5)).map(({ subject }) => subject), ['first', 'second']);
      assert.deepEqual(await client.doc.push('plain', { subject: 'new', payload: { text: `it's` } }), { queued_docs: 1 });
      await poll('the notification of a new document', () => heard.some(({ channel }) => channel === 'fetchq__plain__pnd'));
      assert.deepEqual(await all('select * from public.seen'), [{ subject: 'new' }]);
      assert.deepEqual(await all("select payload, tenant from fetchq_data.plain__docs where subject = 'new'"), [{ payload: { text: `it's` }, tenant: 7 }]);
      assert.equal((await client.doc.pick('silent', 0, 9)).length, 4); // One is locked for an upgrade.
      await client.queue.drop('versioned');
      await assertCounters(base, 'plain');
      await client.end();
      cleanup.push(async () => {
        for (const role of roles) {
          await one(`drop owned by ${role} cascade`);
          await one(`drop role ${role}`);
        }
      });
    });

    test('the catalog afterwards equals that of a fresh one', async (t) => {
      const base = await create(`${way.name}_same`);
      const fresh = await createDatabase(`${way.name}_fresh`);
      cleanup.push(fresh.drop);
      const client = await bootClient(t, version, base.url(), { queues: [{ name: 'same' }] });
      await client.end();
      if (HAS_WORKER) {
        // It must not run in the tables of fetchq 4, even where that is an extension of the same name.
        const served = async (name) => (await fresh.one("select count(*)::int as n from pg_stat_activity where backend_type = 'fetchq background worker' and datname = $1", [name])).n;
        // With more databases than background workers, the fresh one may have been served and left before.
        await poll('a background worker serves the fresh one', async () => {
          await fresh.one('select fetchq.background_worker_wake()');
          return served(`${way.name}_fresh`);
        });
        assert.equal(await served(`${way.name}_same`), 0);
      }
      await base.upgrade();
      await fresh.one("select fetchq.queue_create('same')");
      await fresh.one("select fetchq.queue_enable_notify('same')");
      const [mine, other] = [await catalog(base), await catalog(fresh)];
      assert.ok(mine.functions.length > 100 && mine.members.length > 180 && mine.of_queue.length > 20);
      const owner = (value) => JSON.parse(JSON.stringify(value).replaceAll(`${way.name}_same`, 'me').replaceAll(`${way.name}_fresh`, 'me'));
      for (const part of Object.keys(mine)) assert.deepEqual(owner(mine[part]), owner(other[part]), part);
    });

    if (!way.isExtension) {
      test('a client that is no superuser, and owned all of it, goes on', async (t) => {
        const base = await create(`${way.name}_app`);
        const app = `${way.name}_client`;
        const password = randomBytes(16).toString('hex');
        await base.one(`drop role if exists ${app}`);
        await base.one(`create role ${app} login password '${password}'`);
        await base.one(`alter role ${app} set fetchq.compat = '${way.client}'`);
        await base.one(`alter database ${way.name}_app owner to ${app}`);
        cleanup.push(async () => {
          await base.one(`alter database ${way.name}_app owner to current_user`);
          await base.one(`drop owned by ${app} cascade`);
          await base.one(`drop role ${app}`);
        });
        const url = Object.assign(new URL(base.url()), { username: app, password }).href;
        const old = await bootClient(t, version, url, { queues: QUEUES });
        await old.doc.push('plain', { subject: 'a' });
        await old.end();
        await assert.rejects(run(`${BIN}/psql`, ['-X', '-d', url, '-f', SCRIPT]), ({ stderr }) => /only a superuser can upgrade fetchq 4/.test(stderr) || assert.fail(stderr));
        await base.upgrade();
        const client = await bootClient(t, version, url, { queues: [...QUEUES, { name: 'added' }] });
        assert.deepEqual((await client.doc.pick('plain')).map(({ subject }) => subject), ['a']);
        assert.deepEqual(await client.doc.complete('plain', 'a'), { affected_rows: 1 });
        assert.deepEqual(await client.doc.push('added', { subject: 'b' }), { queued_docs: 1 });
        const { processed } = (await client.pool.query('select * from fetchq.mnt()')).rows[0];
        assert.ok(processed > 0);
        await client.queue.drop('silent');
        const [{ n }] = await base.all("select count(*)::int as n from pg_class where relnamespace = 'fetchq'::regnamespace and relowner = $1::regrole", [app]);
        assert.equal(n, 0);
        await client.end();
      });

      test('"create extension" says what to run instead', async (t) => {
        const base = await create(`${way.name}_create`);
        const client = await bootClient(t, version, base.url(), { queues: [{ name: 'q' }] });
        await client.end();
        await assert.rejects(base.one('create extension fetchq'), ({ code, message, hint }) => {
          assert.equal(code, '42P06');
          assert.match(message, /this database has fetchq 4 already/);
          return /migrating-from-fetchq-4/.test(hint) || assert.fail(hint);
        });
        assert.ok(await isOld(base));
      });
    }

    test('a failure in the middle leaves fetchq 4 at work', async (t) => {
      const base = await create(`${way.name}_fail`);
      const client = await bootClient(t, version, base.url(), { queues: [{ name: 'q' }] });
      await client.doc.push('q', { subject: 'a' });
      await base.db.query(`create function public.key(text) returns text immutable language plpgsql as 'begin return $1; end';
        create index by_key on fetchq_data.q__docs (public.key(subject));
        create or replace function public.key(text) returns text immutable language plpgsql as 'begin raise ''not today''; end'`);
      const same = await base.dump();
      await assert.rejects(base.upgrade(), /not today/);
      assert.equal(await base.dump(), same);
      assert.ok(await isOld(base));
      await base.one('drop index fetchq_data.by_key');
      assert.deepEqual((await client.doc.pick('q')).map(({ subject }) => subject), ['a']);
      assert.deepEqual(await client.doc.complete('q', 'a'), { affected_rows: 1 });
      await client.end();
      // Nothing stands in the way now.
      await base.upgrade();
      assert.equal((await base.one("select status from fetchq_data.q__docs where subject = 'a'")).status, 3);
      await assertCounters(base, 'q');
    });
  });
}

describe('what cannot be carried over is refused', { timeout: 120_000 }, () => {
  const way = WAYS[2];
  let base;
  after(() => base?.drop());

  // A role without rights of a superuser owns the queue. What it may attach to its tables must not run
  // with the rights of the superuser who upgrades, and fails if it does.
  const stranger = (sql) => `create role upgrade_stranger; create schema stranger authorization upgrade_stranger;
    grant usage, create on schema fetchq, fetchq_data to upgrade_stranger;
    alter table fetchq_data.q__docs owner to upgrade_stranger; alter table fetchq.jobs owner to upgrade_stranger;
    set local role upgrade_stranger;
    create function stranger.f(n int) returns int immutable language plpgsql as
      $$ begin if current_setting('is_superuser')::boolean or current_user <> 'upgrade_stranger' then raise exception 'it runs as %', current_user; end if; return n; end $$;
    create view stranger.runs_it as select stranger.f(1) as n;
    ${sql}; reset role`;

  // What is in the way, and the words of the problem.
  const CASES = [
    [stranger('create index mine on fetchq_data.q__docs (subject) where stranger.f(1) = 1'), /index fetchq_data.mine calls function stranger.f\(integer\), which is of role upgrade_stranger/],
    [stranger('create index mine on fetchq.jobs (id) where stranger.f(1) = 1'), /index fetchq.mine calls function stranger.f/],
    [stranger("create function stranger.t() returns trigger language plpgsql as 'begin return new; end'; create trigger mine before insert on fetchq_data.q__docs for each row execute function stranger.t()"), /Trigger mine of table fetchq_data.q__docs calls stranger.t\(\), which is of role upgrade_stranger/],
    [stranger('alter table fetchq_data.q__docs add column mine int default stranger.f(1)'), /default value for column mine of table fetchq_data.q__docs calls function stranger.f/],
    ['alter table fetchq_data.q__docs add column mine serial', /Column mine .* cannot be carried over.* it owns a sequence/],
    ['create domain public.mine as int check (value > 0); alter table fetchq_data.q__docs add column mine int default (1::public.mine)::int', /Column mine .* cannot be carried over/],
    ["update fetchq.queues set name = 'a$b' where name = 'q'; alter table fetchq_data.q__docs rename to a$b__docs", /"?'a\$b'.* has a name that fetchq 5 does not accept/],
    ["insert into fetchq.queues (name) values ('Q')", /are one queue: their names 'q', 'Q'/],
    ["insert into fetchq.queues (name) values ('q')", /are one queue: their names 'q', 'q'/],
    ["insert into fetchq.queues (name) values ('ghost')", /Queue 'ghost' .*has no table fetchq_data.ghost__docs/],
    ['update fetchq.queues set max_attempts = null', /has a NULL in is_active/],
    ["insert into fetchq.jobs (task, queue) values ('zzz', 'q')", /Job \d+ \(task 'zzz'/],
    ['alter table fetchq_data.q__docs alter subject type text; insert into fetchq_data.q__docs (subject, next_iteration) values (repeat(\'x\', 256), now())', /1 documents of queue q have a subject of more than 255/],
    ["alter table fetchq_data.q__docs drop constraint q__docs_pkey; alter table fetchq_data.q__docs alter subject drop not null; insert into fetchq_data.q__docs (next_iteration) values (now())", /1 documents of queue q have no subject/],
    ["alter table fetchq_data.q__docs drop constraint q__docs_pkey; insert into fetchq_data.q__docs select * from fetchq_data.q__docs", /subjects of queue q are there more than once/],
    ['update fetchq_data.q__docs set next_iteration = null', /1 documents of queue q have a NULL/],
    ['update fetchq_data.q__docs set status = 9', /1 documents of queue q have a status that does not exist/],
    ["insert into fetchq_data.q__logs (created_at, subject, message) values (null, 's', 'm')", /1 rows of fetchq_data.q__logs/],
    ['alter table fetchq_data.q__docs drop column payload', /has no column payload/],
    ['alter table fetchq_data.q__docs alter column priority set default 5', /Column priority of table fetchq_data.q__docs has a default of yours: 5/],
    ['alter table fetchq_data.q__docs add column lease text', /Column lease .* cannot be carried over/],
    ['alter table fetchq_data.q__docs add column twice int generated always as (attempts * 2) stored', /Column twice .* cannot be carried over/],
    ['alter table fetchq.queues add column mine int', /Column mine of table fetchq.queues/],
    ['alter table fetchq_data.q__docs set unlogged', /is not logged/],
    ['alter table fetchq_data.q__docs enable row level security', /has row security/],
    ['alter table fetchq_data.q__docs replica identity full', /replica identity/],
    ['create table public.child () inherits (fetchq_data.q__docs)', /is a parent, a child or a partition/],
    ['create materialized view public.m as select * from fetchq_data.q__docs', /materialized view public.m depends on/],
    ['create table public.refers (s varchar(50) references fetchq_data.q__docs)', /constraint refers_s_fkey/],
    ['alter table fetchq_data.q__docs add check (attempts < 100)', /q__docs_attempts_check/],
    ['create table public.mine (d fetchq_data.q__docs)', /column d of table public.mine depends on type fetchq_data.q__docs|table public.mine depends on type/],
    ['create function public.f() returns setof fetchq_data.q__docs language sql as $$ select * from fetchq_data.q__docs $$', /function public.f\(\) depends on/],
    ['create table public.defaults (v text default (fetchq.info())::text)', /default value for column v of table public.defaults depends on function fetchq.info/],
    ['create function fetchq.mine() returns int language sql as $$ select 1 $$', /function fetchq.mine\(\) is in the schema fetchq/],
    ['create table fetchq_data.mine (a int)', /table fetchq_data.mine is in the schema fetchq_data/],
    ['create view fetchq.mine as select * from fetchq.queues', /View fetchq.mine is in a schema of fetchq/],
    ['create publication p for table fetchq_data.q__docs', /publication of table fetchq_data.q__docs in publication p depends on/],
    ['create statistics public.s on status, version from fetchq_data.q__docs', /statistics object public.s depends on/],
    ['alter default privileges in schema fetchq_data grant select on tables to pg_monitor', /default privileges/],
    ['create rule r as on delete to fetchq_data.q__docs do also notify gone', /rule r on table fetchq_data.q__docs/],
    ['create trigger t after insert on fetchq.jobs for each row execute function fetchq.trigger_notify_as_json()', /Trigger t of table fetchq.jobs is not one of fetchq 4/],
    ['create table public.mine (a int); create trigger t after insert on public.mine for each row execute function fetchq.trigger_docs_notify_insert()', /Trigger t of table public.mine cannot be carried over/],
    ['create index mine on fetchq.jobs (payload)', /Index fetchq.mine of table fetchq.jobs is not one of fetchq 4/],
    ['create index q__docs_due_idx on fetchq_data.q__docs (status)', /Index fetchq_data.q__docs_due_idx has a name/],
    ["create or replace function fetchq.info(out version varchar) language plpgsql as $$ begin version='3.2.0'; end $$", /This is fetchq 3.2.0, not 4.0/],
  ];

  test('each of them is named, with what to do, and nothing has changed', async (t) => {
    base = await createOld('upgrade_refused', way);
    await base.one("select * from fetchq.queue_create('q')");
    await base.one("select * from fetchq.doc_push('q', 'a')");
    const session = await base.db.connect();
    t.after(() => session.release(true));
    await session.query('set fetchq_upgrade.allow_sessions = on');
    for (const [sql, problem] of CASES) {
      await session.query('begin');
      await session.query(sql);
      const error = await session.query('alter extension fetchq update').then(() => assert.fail(`not refused: ${sql}`), (e) => e);
      assert.match(error.message, /fetchq 4 cannot be upgraded; nothing was changed; problems: \d/, sql);
      assert.equal(error.code, '55000');
      assert.match(error.detail, problem);
      assert.match(error.detail, /→ \S/);
      await session.query('rollback');
    }
    // All problems are in one list.
    await session.query('begin');
    await session.query('create table fetchq_data.mine (a int); update fetchq_data.q__docs set status = 9; create function fetchq.mine() returns int language sql as $$ select 1 $$');
    await assert.rejects(session.query('alter extension fetchq update'), ({ message, detail }) => /problems: 3$/.test(message) && detail.split('\n').length === 3);
    await session.query('rollback');
    assert.ok(await isOld(base));
  });

  test('what belongs to a role that is no superuser does not run as a superuser', async (t) => {
    const session = await base.db.connect();
    t.after(() => session.release(true));
    const { n } = (await session.query("select current_setting('server_version_num')::int as n")).rows[0];
    const upgrade = async (sql) => {
      await session.query('begin');
      await session.query('set local fetchq_upgrade.allow_sessions = on');
      await session.query(stranger(sql));
      return session.query('alter extension fetchq update');
    };
    // The planner would compute the constants.
    const planned = ['alter table fetchq_data.q__docs add constraint mine check (stranger.f(4) = 4)'];
    if (n >= 140000) planned.push('create statistics stranger.s on (stranger.f(2) + attempts), (stranger.f(3) + priority) from fetchq_data.q__docs');
    for (const sql of planned) {
      const error = await upgrade(`${sql}; set local constraint_exclusion = on`).then(() => assert.fail(`not refused: ${sql}`), (e) => e);
      assert.match(error.detail ?? error.message, /calls function stranger.f\(integer\), which is of role upgrade_stranger/, sql);
      await session.query('rollback');
    }
    // A default is of the one who inserts. The rows have their values already.
    await upgrade(`alter table fetchq_data.q__docs add column mine xml not null default table_to_xml('stranger.runs_it'::text::regclass, true, false, ''),
      add column other int not null default 7`);
    const { rows } = await session.query("select mine::text ~ '<n>1</n>' as mine, other from fetchq_data.q__docs");
    assert.deepEqual(rows, [{ mine: true, other: 7 }]);
    const { rows: columns } = await session.query(`select attname, attnotnull, pg_get_expr(adbin, adrelid) as value from pg_attribute join pg_attrdef on adrelid = attrelid and adnum = attnum
      where attrelid = 'fetchq_data.q__docs'::regclass and attname in ('mine', 'other') order by 1`);
    assert.deepEqual(columns.map(({ attnotnull }) => attnotnull), [true, true]);
    assert.match(columns[0].value, /table_to_xml/);
    assert.equal(columns[1].value, '7');
    await session.query('rollback');
    assert.ok(await isOld(base));
  });

  test('a transaction that keeps its snapshot is refused, because it does not see what was committed last', async (t) => {
    const session = await base.db.connect();
    t.after(() => session.release(true));
    await session.query('set fetchq_upgrade.allow_sessions = on');
    for (const level of ['repeatable read', 'serializable']) {
      await session.query(`begin isolation level ${level}`);
      await assert.rejects(session.query('alter extension fetchq update'), ({ code, message }) => code === '0A000' && message.includes(level.toUpperCase()));
      await session.query('rollback');
    }
    // The script begins the transaction itself.
    const other = await createOld('upgrade_snapshot', WAYS[0]);
    t.after(() => other.drop());
    const client = await bootClient(t, CLIENTS['4.1.1'], other.url(), { queues: [{ name: 'q' }] });
    await client.end();
    await other.one("alter database upgrade_snapshot set default_transaction_isolation = 'serializable'");
    await other.upgrade();
  });

  test('a call that has written a document, and counts it, does not wait for an upgrade that waits for the call', async (t) => {
    const [session, other] = [await base.db.connect(), await base.db.connect()];
    t.after(() => [session, other].forEach((s) => s.release(true)));
    await session.query('set fetchq_upgrade.allow_sessions = on');
    const { pid } = (await session.query('select pg_backend_pid() as pid')).rows[0];
    await other.query('begin');
    await other.query('lock table fetchq_data.q__docs in row exclusive mode');
    await session.query('begin');
    const upgrade = session.query('alter extension fetchq update');
    const waits = async () => (await base.one('select cardinality(pg_blocking_pids($1)) as n', [pid])).n > 0;
    await poll('the upgrade waits', waits);
    await other.query("select fetchq.metric_log_increment('q', 'mine', 1)");
    await other.query('rollback');
    await upgrade;
    await session.query('rollback');
    assert.ok(await isOld(base));
  });

  test('a client that is connected meanwhile waits, and its call works', async () => {
    const session = await base.db.connect();
    const other = await base.db.connect();
    try {
      await session.query('set fetchq_upgrade.allow_sessions = on');
      await other.query("select fetchq.doc_push('q', 'before')"); // It has its plans.
      await session.query('begin');
      await session.query('alter extension fetchq update');
      const { pid } = (await other.query('select pg_backend_pid() as pid')).rows[0];
      const pushed = other.query("select * from fetchq.doc_push('q', 'meanwhile', '{}')");
      await poll('the call waits', async () => (await session.query('select cardinality(pg_blocking_pids($1)) as n', [pid])).rows[0].n > 0);
      await session.query('commit');
      assert.deepEqual((await pushed).rows, [{ queued_docs: 1 }]);
      assert.deepEqual((await base.all('select subject, status from fetchq_data.q__docs order by seq')).map(({ subject }) => subject), ['a', 'before', 'meanwhile']);
      if (!HAS_WORKER) await base.one('select * from fetchq.mnt()');
      await poll('the counters are exact', async () => {
        const { cnt, pnd } = await base.one("select * from fetchq.metric_get_common('q')");
        return cnt === 3 && pnd === 3;
      });
      await assertCounters(base, 'q');
    } finally {
      session.release(true);
      other.release(true);
    }
  });

  test('a database without fetchq 4, or with fetchq 5, is left alone', async () => {
    const empty = await createDatabase('upgrade_empty', {}, { hasExtension: false });
    try {
      await assert.rejects(run(`${BIN}/psql`, ['-X', '-d', empty.url(), '-f', SCRIPT]), ({ stderr }) => /there is no fetchq 4 to upgrade/.test(stderr));
      await empty.one('create extension fetchq');
      await assert.rejects(run(`${BIN}/psql`, ['-X', '-d', empty.url(), '-f', SCRIPT]), ({ stderr }) => /has fetchq 5 already/.test(stderr));
    } finally {
      await empty.drop();
    }
  });
});
