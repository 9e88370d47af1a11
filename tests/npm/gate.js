// Tests of the start, and of the version gate: a client of another version must change nothing.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { bootClient, makeClient } from './client.js';
import { HAS_WORKER, poll } from './support.js';

const require = createRequire(import.meta.url);

/** Returns all objects of fetchq in the catalog, and all stored rows. */
async function everything({ all }) {
  return {
    extension: await all('select oid, * from pg_extension order by extname'),
    functions: await all(`
      select p.oid, p.xmin::text, p.proname, p.prosrc, p.probin, d.deptype
      from pg_proc p
      left join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = p.oid
        and d.refclassid = 'pg_extension'::regclass
      where p.pronamespace = any (array['fetchq', 'fetchq_data', 'public']::regnamespace[]) order by p.oid`),
    // The background worker truncates packed segments, and runs the jobs.
    relations: await all(`
      select oid, relname, relnatts, case when not ${HAS_WORKER} then relfilenode end as file, relnamespace::regnamespace::text as schema from pg_class
      where relnamespace = any (array['fetchq', 'fetchq_data', 'public']::regnamespace[]) order by oid`),
    queues: await all('select * from fetchq.queues order by id'),
    jobs: await all(HAS_WORKER ? 'select id, task, queue, settings from fetchq.jobs order by id' : 'select * from fetchq.jobs order by id'),
    documents: await all('select * from fetchq_data.gate__docs order by subject'),
    // The background worker adds the rows of metrics that are 0 when it has time.
    metrics: await all("select metric, current_value from fetchq.metric_get('gate') where current_value <> 0 order by metric"),
  };
}

export function gate(name, version, base) {
  /** Makes a queue with a document, and returns a URL where the server has version `compat`. */
  const facing = async (compat) => {
    await base.one("select * from fetchq.queue_create('gate')");
    await base.one("select * from fetchq.doc_push('gate', 'kept', '{\"a\": 1}')");
    return base.url(`-c fetchq.compat_version=${compat}`);
  };

  test('boots, and reports the version it was built for', async (t) => {
    let ready = 0;
    const client = await bootClient(t, version, base.url(), { onReady: () => (ready += 1) });
    assert.equal(ready, 1);
    const info = await client.info();
    assert.equal(info.version, version.compat);
    const { extversion } = await base.one("select extversion from pg_extension where extname = 'fetchq'");
    assert.equal(info.extension_version, extversion);
  });

  // The error of each client when the server has another version. 4.2.0 is meant to compare and to
  // reinstall as 4.1.1 does. But its own compare-versions is no longer a function, so it always
  // fails there.
  const REFUSALS = {
    '4.1.1': { newer: /Prevents downgrade from v4\.9\.0 to v4\.0\.0/, older: /cannot drop function fetchq\.info\(\)/ },
    '4.2.0': { newer: /compareVersions is not a function/, older: /compareVersions is not a function/ },
  };
  for (const [age, compat] of Object.entries({ newer: '4.9.0', older: '3.2.0' })) {
    test(`with a ${age} version of the server it does not start, and leaves the extension intact`, async (t) => {
      const url = await facing(compat);
      const before = await everything(base);
      const client = makeClient(t, version, url, { queues: [{ name: 'uninvited' }], pool: { max: 1 } });
      await assert.rejects(client.boot(), REFUSALS[name][age]);
      // The client retries in the same way, over the same connections.
      await assert.rejects(client.boot());
      assert.deepEqual(await everything(base), before);
    });
  }

  test("with the version of the other client it does not start, and leaves the extension intact", async (t) => {
    const url = await facing(version.compat === '4.0.0' ? '4.0.2' : '4.0.0');
    const before = await everything(base);
    const client = makeClient(t, version, url, { queues: [{ name: 'uninvited' }] });
    await assert.rejects(client.boot());
    assert.deepEqual(await everything(base), before);
  });

  test('its own SQL, which it sends when info() fails, cannot overwrite the extension', async () => {
    await facing(version.compat);
    const before = await everything(base);
    const init = require.resolve(`fetchq-${name.replaceAll('.', '')}/lib/functions/client/client.init.js`);
    const sql = await readFile(init.replace(/js$/, 'sql'), 'utf8');
    const session = await base.db.connect();
    try {
      await assert.rejects(
        session.query(['BEGIN;', sql, 'CREATE EXTENSION IF NOT EXISTS "uuid-ossp";', 'SELECT * FROM fetchq.init();', 'COMMIT;'].join('\n')),
        { code: '2BP01' }, // The code means: dependent objects still exist.
      );
    } finally {
      await session.query('rollback');
      session.release();
    }
    assert.deepEqual(await everything(base), before);
  });

  test('a login without rights does not start, and leaves the extension intact', async (t) => {
    await facing(version.compat);
    const role = `npm_${name.replaceAll('.', '')}_nobody`;
    const password = randomBytes(16).toString('hex');
    await base.one(`drop role if exists ${role}`); // An interrupted run may have left it.
    await base.one(`create role ${role} login password '${password}'`);
    t.after(() => base.one(`drop role ${role}`));
    const before = await everything(base);
    const url = new URL(base.url());
    Object.assign(url, { username: role, password });
    const client = makeClient(t, version, url.href);
    await assert.rejects(client.boot(), /permission denied/);
    await client.pool.query('select 1'); // The login itself succeeds.
    assert.deepEqual(await everything(base), before);
  });

  test('with skipUpsertFetchq it waits until the version matches', async (t) => {
    const url = await facing('3.2.0');
    const client = makeClient(t, version, url, { skipUpsertFetchq: true, pool: { max: 1 } });
    let started = false;
    const booting = client.boot().then(() => (started = true));
    await poll('it sees the mismatch twice', () => client.log.errors().filter((e) => e.includes('Version mismatch')).length > 1);
    assert.equal(started, false);
    // Its pool has one connection, so this is the session that checks the version.
    await client.pool.query(`set fetchq.compat_version = '${version.compat}'`);
    await booting;
    assert.equal(started, true);
  });
}
