// Tests of workers: the answers of handlers, wake-up, pause and workflows.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { asleep, bootClient, notified } from './client.js';
import { assertCounters, HAS_WORKER, HOSTILE, HOSTILE_PAYLOAD, poll } from './support.js';

/** Settings of a worker that only a notification wakes within the deadlines of these tests. */
const SLEEPER = { delay: 1, sleep: 60_000 };

export function workers(version, base) {
  const { one, all, url } = base;
  const boot = (t, settings, options) => bootClient(t, version, url(), settings, options);
  const stored = (queue, subject) => one(`select * from fetchq_data.${queue}__docs where subject = $1`, [subject]);
  const status = async (queue, subject) => (await stored(queue, subject))?.status;

  test('a worker completes, reschedules, rejects, kills, drops, forwards', async (t) => {
    const handled = [];
    const answers = {
      complete: (doc) => doc.complete({ payload: { ...doc.payload, done: true } }),
      complete_plain: (doc) => doc.complete(),
      reschedule: (doc) => doc.reschedule('+1 hour', { payload: { again: true } }),
      reject: (doc) => doc.reject('rejected', { details: { n: 1 }, refId: 'ref' }),
      kill: (doc) => doc.kill('killed', { details: { n: 2 } }),
      kill_plain: (doc) => doc.kill({ payload: { dead: true } }),
      drop: (doc) => doc.drop(),
      throw: () => { throw new Error(HOSTILE); },
      nonsense: () => ({ action: 'nonsense' }),
      log: async (doc) => {
        assert.equal(await doc.logError('logged', { n: 3 }), true);
        assert.equal((await doc.trace()).length, 2);
        return doc.complete();
      },
      forward: async (doc) => {
        assert.deepEqual(await doc.forward('w_next', { forwarded: true }), { queued_docs: 1 });
        return doc.complete();
      },
    };
    const client = await boot(t, {
      queues: [{ name: 'w_next' }, { name: 'w_all' }],
      workers: [{
        queue: 'w_all', batch: 4, delay: 1, sleep: 50,
        handler: (doc, context) => {
          handled.push(doc.subject);
          assert.equal(doc.queue, 'w_all');
          assert.equal(context.fetchq, client);
          assert.equal(context.shared, 'value');
          return answers[doc.subject](doc);
        },
      }],
      decorateContext: { shared: 'value' },
    });
    const names = Object.keys(answers);
    await client.doc.pushMany('w_all', { docs: names.map((name) => [name, 0, { name }]) });
    await poll('all are settled', async () => handled.length === names.length && (await client.metric.get('w_all', 'act')).current_value === 0);
    assert.deepEqual(handled, names);

    const rows = await all('select subject, status, attempts, iterations, payload from fetchq_data.w_all__docs');
    const byName = Object.fromEntries(rows.map(({ subject, ...rest }) => [subject, rest]));
    const settled = (code, payload, attempts = 0) => ({ status: code, attempts, iterations: '1', payload });
    assert.deepEqual(byName, {
      complete: settled(3, { name: 'complete', done: true }),
      complete_plain: settled(3, { name: 'complete_plain' }),
      reschedule: settled(0, { again: true }),
      reject: settled(1, { name: 'reject' }, 1),
      kill: settled(-1, { name: 'kill' }),
      kill_plain: settled(-1, { dead: true }),
      throw: settled(1, { name: 'throw' }, 1),
      nonsense: settled(1, { name: 'nonsense' }, 1),
      log: settled(3, { name: 'log' }),
      forward: settled(3, { name: 'forward' }),
    });
    const logs = await all('select subject, message, details, ref_id from fetchq_data.w_all__logs order by subject');
    assert.deepEqual(logs, [
      { subject: 'kill', message: 'killed', details: { n: 2 }, ref_id: 'null' },
      { subject: 'log', message: 'logged', details: { n: 3 }, ref_id: 'null' },
      { subject: 'nonsense', message: 'worker exception', details: { message: 'unrecognised action: "nonsense"', err: '{}' }, ref_id: '*' },
      { subject: 'reject', message: 'rejected', details: { n: 1 }, ref_id: 'ref' },
      { subject: 'throw', message: 'worker exception', details: { message: HOSTILE, err: '{}' }, ref_id: '*' },
    ]);
    assert.deepEqual((await stored('w_next', 'forward')).payload, { name: 'forward', forwarded: true });
    await assertCounters(base, 'w_all');
    const { ent, pkd, prc, res, rej, drp, err } = await client.metric.getCommon('w_all');
    assert.deepEqual({ ent, pkd, prc, res, rej, drp, err }, { ent: 11, pkd: 11, prc: 11, res: 1, rej: 3, drp: 1, err: 3 });
  });

  test('a hostile payload goes three rounds through a worker', async (t) => {
    const seen = [];
    const client = await boot(t, {
      queues: [{ name: 'w_text' }],
      workers: [{
        queue: 'w_text', ...SLEEPER,
        handler: (doc) => {
          seen.push(doc.payload);
          return seen.length <= 3 ? doc.reschedule(null, { payload: doc.payload }) : doc.complete();
        },
      }],
    });
    await asleep(client);
    await client.doc.push('w_text', { subject: 's', payload: HOSTILE_PAYLOAD });
    await client.utils.awaitStatus('s', 'w_text', 3, { retries: 100 });
    assert.deepEqual(seen, Array(4).fill(HOSTILE_PAYLOAD));
    assert.deepEqual((await stored('w_text', 's')).payload, HOSTILE_PAYLOAD);
  });

  test('several workers and batches handle each document once', async (t) => {
    const handled = [];
    const handler = (doc) => {
      handled.push(doc.subject);
      return doc.complete();
    };
    const client = await boot(t, {
      queues: [{
        name: 'w_crowd', currentVersion: 2, workerHandler: handler,
        workerOptions: { concurrency: 3, batch: 7, delay: 1, sleep: 50, lock: '1m' },
      }],
    });
    const subjects = Array.from({ length: 100 }, (_, n) => `s${String(n).padStart(3, '0')}`);
    await Promise.all(subjects.map((subject) => client.doc.push('w_crowd', { subject, version: 2 })));
    await client.doc.push('w_crowd', { subject: 'other version', version: 1 });
    await poll('all are completed', async () => (await client.metric.get('w_crowd', 'cpl')).current_value === 100);
    assert.deepEqual(handled.sort(), subjects);
    assert.equal(await status('w_crowd', 'other version'), 1);
    await assertCounters(base, 'w_crowd');
  });

  test('a document wakes a worker that sleeps, whatever call adds it', async (t) => {
    const handled = [];
    const client = await boot(t, {
      queues: [{ name: 'w_wake' }],
      workers: [{ queue: 'w_wake', ...SLEEPER, handler: (doc) => (handled.push(doc.subject), doc.complete()) }],
    });
    const soon = new Date(Date.now() + 3_600_000);
    await client.doc.push('w_wake', { subject: 'planned', nextIteration: soon });
    await client.doc.push('w_wake', { subject: 'planned2', nextIteration: soon });
    const ways = {
      push: () => client.doc.push('w_wake', { subject: 'push' }),
      append: () => client.doc.append('w_wake', {}),
      upsert: () => client.doc.upsert('w_wake', { subject: 'upsert' }),
      pushMany: () => client.doc.pushMany('w_wake', { docs: [['many', 0, {}]] }),
      maintenance: async () => {
        await one("update fetchq_data.w_wake__docs set next_iteration = now() - interval '1s' where subject = 'planned'");
        const { activated_count } = await client.mnt.run('w_wake');
        assert.ok(activated_count === 1 || HAS_WORKER);
      },
      'upsert of a planned one': () => client.doc.upsert('w_wake', { subject: 'planned2' }),
    };
    for (const [name, way] of Object.entries(ways)) {
      await asleep(client);
      const before = handled.length;
      await way();
      await poll(`woken by ${name}`, () => handled.length === before + 1);
    }
  });

  test('queue.wakeUp wakes a worker of a queue without notifications', async (t) => {
    const handled = [];
    const client = await boot(t, {
      queues: [{ name: 'w_call', enableNotifications: false }],
      workers: [{ queue: 'w_call', ...SLEEPER, handler: (doc) => (handled.push(doc.subject), doc.complete()) }],
    });
    await asleep(client);
    await client.doc.push('w_call', { subject: 's' });
    await asleep(client); // The worker still sleeps.
    assert.deepEqual(handled, []);
    await client.queue.wakeUp('w_call');
    await poll('woken', () => handled.length === 1);
  });

  test('an update of is_active pauses and resumes workers', async (t) => {
    const handled = [];
    const client = await boot(t, {
      queues: [{ name: 'w_pause' }, { name: 'w_off', isActive: false }],
      workers: ['w_pause', 'w_off'].map((queue) => ({
        queue, ...SLEEPER, handler: (doc) => (handled.push(doc.subject), doc.complete()),
      })),
    });
    const [worker, off] = client.workers.workers;
    assert.equal(off.isRunning, false);
    await asleep(client);
    // The row is too long for a notification, which must not matter.
    await one(`update fetchq.queues set is_active = false, config = jsonb_build_object('big', repeat('x', 10000)) where name = 'w_pause'`);
    await poll('paused', () => !worker.isRunning && worker.hasStopped);
    await client.doc.push('w_pause', { subject: 'waits' });
    await client.doc.push('w_off', { subject: 'waits too' });
    await notified(client);
    assert.deepEqual(handled, []);
    assert.equal(await status('w_pause', 'waits'), 1);

    await one("update fetchq.queues set is_active = true where name = 'w_pause'");
    await poll('resumed', () => handled.includes('waits'));
    await one("update fetchq.queues set is_active = true where name = 'w_off'");
    await poll('started', () => handled.includes('waits too'));
    await asleep(client);
    await client.doc.push('w_pause', { subject: 'awake' });
    await poll('woken after the pause', () => handled.includes('awake'));
  });

  test('a worker registered while the client runs', async (t) => {
    const client = await boot(t, { queues: [{ name: 'w_late' }] });
    const { subject } = await client.doc.append('w_late', 'text');
    await client.utils.checkStatus(subject, 'w_late', 1, true);
    await client.workers.register({ queue: 'w_late', ...SLEEPER, handler: (doc) => doc.complete() });
    await client.utils.awaitStatus(subject, 'w_late', 3, { retries: 100 });
    assert.equal((await stored('w_late', subject)).payload, 'text');
  });

  test('workflows: forwarded and resolved, rejected, timed out', async (t) => {
    const client = await boot(t, {
      queues: [{ name: 'w_flow1' }, { name: 'w_flow2' }, { name: 'w_flow3' }],
      workers: [
        { queue: 'w_flow1', ...SLEEPER, handler: (doc, { workflow }) => workflow.forward('w_flow2', { payload: { step: 1 } }) },
        { queue: 'w_flow2', ...SLEEPER, handler: async (doc, { workflow }) => {
          const payload = workflow.getPayload();
          if (!payload.fail) return workflow.resolve(payload);
          // The client handles a failure only after its push has returned.
          await new Promise((next) => setTimeout(next, 200));
          return workflow.reject(new Error('no way'));
        } },
      ],
    });
    await asleep(client);
    const flow = client.createWorkflow({ queue: 'w_flow1', payload: HOSTILE_PAYLOAD, timeout: 10_000 });
    assert.deepEqual(await flow.run(), { ...HOSTILE_PAYLOAD, step: 1 });
    await client.utils.awaitStatus(flow.id, ['w_flow1', 'w_flow2'], 3, { retries: 100 });
    assert.deepEqual((await flow.trace()).map(({ queue, type }) => [queue, type]), [['w_flow1', 'document'], ['w_flow2', 'document']]);

    await asleep(client);
    const failing = client.createWorkflow({ queue: 'w_flow1', payload: { fail: true }, timeout: 10_000 });
    await assert.rejects(failing.run(), { message: 'no way' });
    await client.utils.awaitStatus(failing.id, 'w_flow2', -1, { retries: 100 });
    assert.deepEqual(await all('select subject, message from fetchq_data.w_flow2__logs'), [{ subject: failing.id, message: 'no way' }]);

    const idle = client.createWorkflow({ queue: 'w_flow3', payload: {}, timeout: 500 });
    await assert.rejects(idle.run(), (reason) => reason === 'timeout');
  });

  test('a client that ends leaves the documents it did not handle', async (t) => {
    const client = await boot(t, { queues: [{ name: 'w_end' }] });
    await client.doc.push('w_end', { subject: 's' });
    const gone = await boot(t, { workers: [{ queue: 'w_end', ...SLEEPER, handler: (doc) => doc.reschedule('+1 day') }] });
    await client.utils.awaitStatus('s', 'w_end', 0, { retries: 100 });
    await gone.stop();
    await client.doc.upsert('w_end', { subject: 's' });
    await client.doc.push('w_end', { subject: 's2' });
    await notified(client);
    assert.deepEqual([await status('w_end', 's'), await status('w_end', 's2')], [1, 1]);
  });
}
