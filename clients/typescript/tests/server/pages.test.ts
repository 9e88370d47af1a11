import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { until } from '../support.js';

for (const page of ['readme', 'guide', 'recipes']) {
  test(`the code of the ${page} runs`, () => {
    const program = fileURLToPath(new URL(`../pages/${page}.js`, import.meta.url));
    const { status, stderr, signal } = spawnSync(process.execPath, [program], { encoding: 'utf8', timeout: 60_000 });
    assert.deepEqual([status, signal], [0, null], stderr);
  });
}

test('the worker in examples/ writes results, rejects what fails, and stops', async (t) => {
  // It finds the package and its driver from this folder.
  const program = fileURLToPath(new URL('../pages/example.mjs', import.meta.url));
  copyFileSync(new URL('../../../../../examples/node-worker.mjs', import.meta.url), program);
  const { FETCHQ_URL = '' } = process.env;
  const url = Object.assign(new URL(FETCHQ_URL), { pathname: '/ts_example' }).href;
  const admin = new pg.Client({ connectionString: FETCHQ_URL });
  await admin.connect();
  await admin.query('drop database if exists ts_example with (force)');
  await admin.query('create database ts_example template template0');
  const db = new pg.Client({ connectionString: url });
  await db.connect();
  await db.query(`create extension fetchq; select fetchq.queue_create('jobs');
    select fetchq.doc_put('jobs', 'first');
    select fetchq.doc_put('jobs', 'second', '{"fail": "bad luck"}');
    create table results (subject text, result jsonb)`);
  const worker = spawn(process.execPath, [program], { env: { ...process.env, DATABASE_URL: url }, stdio: 'inherit' });
  const ended = once(worker, 'exit');
  t.after(async () => {
    worker.kill('SIGKILL');
    await db.end();
    await admin.query('drop database ts_example with (force)');
    await admin.end();
  });
  const rejected = `select from fetchq.doc_get('jobs', 'second') where attempts = 1 and last_error = 'bad luck'`;
  await until(async () => (await db.query('select from results')).rowCount === 1, 'a result');
  await until(async () => (await db.query(rejected)).rowCount === 1, 'a rejection');
  worker.kill('SIGTERM');
  assert.deepEqual(await ended, [0, null]);
  const { rows } = await db.query('select subject, result from results');
  assert.deepEqual(rows, [{ subject: 'first', result: { worked: true } }]);
});
