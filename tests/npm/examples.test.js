// Tests of the worker loop for Node in examples/.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { after, afterEach, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { assertCounters, createDatabase, poll } from './support.js';

const base = await createDatabase('npm_examples');
const { one } = base;
// The program finds the module `pg` from this folder.
const folder = fileURLToPath(new URL('node_modules/.examples/', import.meta.url));
const shipped = `${folder}node-worker.mjs`;
const running = new Set();

function start(grace, lease, program = shipped) {
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
    await copyFile(new URL('../../examples/node-worker.mjs', import.meta.url), shipped);
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

  test('a document that fails is rejected with its error, and the worker goes on', async () => {
    await one(`select fetchq.queue_truncate('q')`);
    await one('truncate results');
    await base.all(`create sequence unused`);
    await base.all(`create function fails() returns trigger language plpgsql as 'begin perform currval(''unused''); return new; end'`);
    // The results cannot be written, with the SQLSTATE of a lost lease.
    await base.all(`create trigger refuse before insert on results for each row when (new.subject = 'refused') execute function fails()`);
    await base.all(`create trigger refuse before update on fetchq_data.q__docs for each row when (new.status = 2 and new.subject = 'stuck') execute function fails()`);
    // A job that throws what its payload says, and returns what is no JSON.
    const source = await readFile(shipped, 'utf8');
    const throws = 'if (payload.fail) throw new Error(payload.fail);';
    assert.ok(source.includes(throws));
    const program = `${folder}node-worker-throws.mjs`;
    await writeFile(program, source.replace(throws, 'if (payload.code) eval(payload.code);').replace('return { worked: true };', `return payload.big ? { big: 1n } : { worked: true };`));
    const thrown = {
      long: [`throw new Error('é'.repeat(9000))`, 'é'.repeat(2000)],
      pairs: [`throw new Error('😀'.repeat(9000))`, '😀'.repeat(2000)],
      nul: [`throw new Error('a\\0b')`, 'ab'],
      half: [`throw new Error('a\\ud800b')`, 'a\ufffdb'],
      text: [`throw 'just text'`, 'just text'],
      nothing: [`throw undefined`, 'undefined'],
      bare: [`throw Object.create(null)`, '[Object: null prototype] {}'],
    };
    for (const [subject, [code]] of Object.entries(thrown)) await put(subject, { code });
    await put('big', { big: true });
    await put('refused');
    await put('after');
    let worker = start(20, 60, program);
    await becomes('after', '3 0');
    for (const [subject, [, last_error]] of Object.entries(thrown)) {
      assert.equal(await state(subject), '1 1', subject);
      assert.deepEqual(await one('select last_error from fetchq_data.q__docs where subject = $1', [subject]), { last_error });
    }
    const errors = await base.all(`select last_error from fetchq_data.q__docs where subject in ('big', 'refused') and attempts = 1 order by subject`);
    assert.match(errors[0].last_error, /BigInt/);
    assert.match(errors[1].last_error, /currval of sequence/);
    await one(`select fetchq.worker_stop('example')`);
    assert.equal(await worker.ended, 0);

    // The finished document is settled, and the error of the next one ends the worker.
    await put('first');
    await put('stuck');
    worker = start(20, 60);
    assert.notEqual(await worker.ended, 0);
    assert.equal(await state('first'), '3 0');
    assert.equal(await state('stuck'), '1 0');
    assert.deepEqual(await base.all('select subject from results order by 1'), [{ subject: 'after' }, { subject: 'first' }]);
    await assertCounters(base, 'q');
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
