// Tests of the worker loop for Node in examples/.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdir } from 'node:fs/promises';
import { after, afterEach, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { assertCounters, createDatabase, poll } from './support.js';

const base = await createDatabase('npm_examples');
const { one } = base;
// The program finds the module `pg` from this folder.
const folder = fileURLToPath(new URL('node_modules/.examples/', import.meta.url));
const program = `${folder}node-worker.mjs`;
const running = new Set();

function start(grace, lease) {
  const env = { ...process.env, DATABASE_URL: base.url(), GRACE: grace, LEASE: lease };
  const worker = spawn(process.execPath, [program, 'q', 'example'], { env, stdio: ['ignore', 'inherit', 'inherit'] });
  running.add(worker);
  const ended = once(worker, 'exit').then(([code, signal]) => (running.delete(worker), code ?? signal));
  return { ended, signal: (name) => worker.kill(name) };
}

const put = async (subject, payload = {}) => assert.deepEqual(await one('select fetchq.doc_put($1, $2, $3) as action', ['q', subject, payload]), { action: 'created' });

const state = async (subject) => {
  const doc = await one('select status, attempts from fetchq_data.q__docs where subject = $1', [subject]);
  return `${doc.status} ${doc.attempts}`;
};
/** Waits until a document has this status and number of attempts, and runs maintenance. */
const becomes = (subject, wanted) => poll(`${subject} becomes ${wanted}`, async () => {
  await one('select fetchq.mnt_run($1, 100)', ['q']);
  return (await state(subject)) === wanted;
}, 30_000);

describe('the worker in examples/', { timeout: 90_000 }, () => {
  before(async () => {
    await mkdir(folder, { recursive: true });
    await copyFile(new URL('../../examples/node-worker.mjs', import.meta.url), program);
    await one(`select fetchq.queue_create('q')`);
    await one(`select fetchq.queue_configure('q', '{"retry": {"base": "1 day"}}')`);
    await one('create table results (subject text, result jsonb)');
  });
  afterEach(() => running.forEach((worker) => worker.kill('SIGKILL')));
  after(() => base.drop());

  test('results, errors, a job that is cancelled, a job longer than its lease, and a clean end', async () => {
    await put('good');
    await put('bad', { fail: 'bad luck' });
    const worker = start(20, 3);
    await becomes('good', '3 0');
    await becomes('bad', '1 1');
    assert.deepEqual(await one(`select last_error from fetchq_data.q__docs where subject = 'bad'`), { last_error: 'bad luck' });
    await put('cancelled', { sleep: 600 });
    await becomes('cancelled', '2 1');
    await one(`select fetchq.doc_cancel('q', 'cancelled')`);
    await put('long', { sleep: 5 });
    await becomes('long', '2 1');
    worker.signal('SIGTERM');
    await becomes('long', '3 0');
    assert.equal(await worker.ended, 0);
    assert.deepEqual(await base.all('select subject, result from results order by 1'), [
      { subject: 'good', result: { worked: true } }, { subject: 'long', result: { worked: true } },
    ]);
  });

  test('when the grace period is over, the document is handed back at once', async () => {
    await put('endless', { sleep: 600 });
    const worker = start(0.3, 60);
    await becomes('endless', '2 1');
    worker.signal('SIGTERM');
    assert.equal(await worker.ended, 0);
    assert.equal(await state('endless'), '1 0');
  });

  test('after SIGKILL the document comes back long before the lease expires', async () => {
    const worker = start(20, 86_400);
    await becomes('endless', '2 1');
    worker.signal('SIGKILL');
    assert.equal(await worker.ended, 'SIGKILL');
    await becomes('endless', '1 1');
  });

  test('worker_stop() ends the worker', async () => {
    await one(`select fetchq.queue_truncate('q')`);
    const worker = start(20, 60);
    await put('last');
    await becomes('last', '3 0');
    await one(`select fetchq.worker_stop('example')`);
    assert.equal(await worker.ended, 0);
    await assertCounters(base, 'q');
  });
});
