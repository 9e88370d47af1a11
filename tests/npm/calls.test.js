// Calls every function of layer 5 from node-pg with the types that are natural in JavaScript,
// directly and through PgBouncer in transaction mode. The calls are in tests/contract.json.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { createDatabase, poll } from './support.js';

const root = new URL('../../', import.meta.url);
const { prepare, calls } = JSON.parse(await readFile(new URL('tests/contract.json', root), 'utf8'));

/** Returns the value of an argument, with the type that is natural for node-pg. */
async function natural(client, value) {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return value;
  const [[kind, content]] = Object.entries(value);
  switch (kind) {
    // An object is sent as JSON, but an array would be sent as an array of PostgreSQL.
    case 'json': return content !== null && typeof content === 'object' && !Array.isArray(content) ? content : JSON.stringify(content);
    case 'jsons': return content.map((item) => JSON.stringify(item));
    case 'interval': return `${content} seconds`;
    case 'time': return new Date(content);
    case 'function': return content;
    // A bigint, such as the number of a lease, is read as a string.
    case 'value of': return Object.values((await client.query(content)).rows[0])[0];
    default: throw new Error(`tests/contract.json: unknown kind ${kind}`);
  }
}

async function callEverything(t, url) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  for (const [name, call] of Object.entries(calls)) {
    await t.test(name, async () => {
      // What is not a procedure leaves nothing behind. A procedure ends its own transactions.
      if (!call.procedure) await client.query('begin');
      try {
        for (const statement of call.before ?? []) await client.query(statement);
        const values = [];
        for (const value of Object.values(call.arguments)) values.push(await natural(client, value));
        const named = Object.keys(call.arguments).map((argument, i) => `${argument} => $${i + 1}`);
        const verb = call.procedure ? 'call' : 'select * from';
        const { rows } = await client.query(`${verb} fetchq.${name}(${named.join(', ')})`, values);
        if (call.rows !== null) assert.equal(rows.length, call.rows ?? 1);
        if (call.check) assert.deepEqual(Object.values((await client.query(call.check)).rows[0]), [true], call.check);
      } finally {
        for (const statement of call.after ?? []) await client.query(statement);
        if (!call.procedure) await client.query('rollback');
      }
    });
  }
  await client.end();
}

/** Runs PgBouncer in front of the server, and returns a URL that leads through it. */
async function startPooler(t, url) {
  const { FETCHQ_STATE_DIR } = process.env;
  assert.ok(FETCHQ_STATE_DIR, 'FETCHQ_STATE_DIR is not set: run this test with scripts/test.sh npm');
  const direct = new URL(url);
  const env = {
    ...process.env,
    PGUSER: direct.username,
    PGPASSWORD: direct.password,
  };
  const script = fileURLToPath(new URL('scripts/pooler.sh', root));
  const pooler = spawn(script, [`${FETCHQ_STATE_DIR}/pooler-npm`], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(() => pooler.kill());
  const [port] = await once(createInterface(pooler.stdout), 'line');
  direct.port = port;
  await poll('PgBouncer answers', async () => {
    const client = new pg.Client({ connectionString: direct.href });
    try {
      await client.connect();
      await client.end();
      return true;
    } catch (error) {
      if (error.code !== 'ECONNREFUSED') throw error;
      return false;
    }
  });
  return direct.href;
}

describe('every function of layer 5', { timeout: 120_000 }, async () => {
  const base = await createDatabase('npm_calls');
  after(() => base.drop());
  for (const statement of prepare) await base.db.query(statement);

  test('by node-pg', (t) => callEverything(t, base.url()));
  test('by node-pg behind a pooler', async (t) => callEverything(t, await startPooler(t, base.url())));
});
