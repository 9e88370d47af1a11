// Tests of every call of the client, without its workers.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bootClient } from './client.js';
import { assertCounters, HAS_WORKER, HOSTILE, HOSTILE_PAYLOAD, listen, poll } from './support.js';

const HOUR = 3_600_000;

export function api(version, base) {
  const { one, all, url } = base;
  const boot = (t, settings) => bootClient(t, version, url(), settings);
  const stored = (queue, subject) => one(`select * from fetchq_data.${queue}__docs where subject = $1`, [subject]);

  test('queues: create, get, list, drop', async (t) => {
    const client = await boot(t);
    const created = await client.queue.create('q_life');
    assert.deepEqual(Object.keys(created), ['was_created', 'queue_id']);
    assert.equal(created.was_created, true);
    assert.equal(typeof created.queue_id, 'number');
    assert.deepEqual(await client.queue.create('q_life'), { was_created: false, queue_id: created.queue_id });

    const row = await client.queue.get('q_life');
    // New columns follow the columns of fetchq 4.
    const known = Object.fromEntries(Object.entries(row).slice(0, 9));
    assert.deepEqual(
      { ...known, created_at: row.created_at instanceof Date },
      {
        id: created.queue_id,
        created_at: true,
        name: 'q_life',
        is_active: true,
        current_version: 0,
        max_attempts: 5,
        logs_retention: '24h',
        metrics_retention: [],
        config: {},
      },
    );
    assert.deepEqual(await client.queue.get('q_life', { attributes: ['name', 'is_active'] }), { name: 'q_life', is_active: true });
    assert.ok((await client.queue.list({ attributes: ['name'] })).some(({ name }) => name === 'q_life'));

    assert.deepEqual(await client.queue.drop('q_life'), { was_dropped: true, queue_id: created.queue_id });
    assert.equal(await client.queue.get('q_life'), undefined);
    assert.equal((await client.queue.drop('q_life')).was_dropped, false);
    await assert.rejects(client.queue.create('1digit'), /digit|name/);
    await assert.rejects(client.queue.create('no-dash'), /Invalid queue name/);
  });

  test('queue settings are applied at init', async (t) => {
    const maintenance = {
      mnt: { delay: '1s', duration: '2m', limit: 7 },
      sts: { delay: '2s', duration: '3m' },
      cmp: { delay: '3s', duration: '4m' },
      drp: { delay: '4s', duration: '5m' },
    };
    const client = await boot(t, {
      queues: [
        { name: 'q_set', isActive: false, maxAttempts: 2, logsRetention: '1h', errorsRetention: '1h', currentVersion: 3, enableNotifications: false, maintenance },
        { name: 'q_default' },
      ],
    });
    const { is_active, max_attempts, logs_retention, current_version } = await client.queue.get('q_set');
    assert.deepEqual(
      { is_active, max_attempts, logs_retention, current_version },
      { is_active: false, max_attempts: 2, logs_retention: '1h', current_version: 3 },
    );
    assert.deepEqual(await all("select id, name, is_active from fetchq.queue_status('q_set')"), [
      { id: (await client.queue.get('q_set')).id, name: 'q_set', is_active: false },
    ]);
    const jobs = await all("select task, settings from fetchq.jobs where queue = 'q_set'");
    assert.deepEqual(Object.fromEntries(jobs.map(({ task, settings }) => [task, settings])), maintenance);

    const defaults = await client.queue.get('q_default');
    assert.deepEqual([defaults.is_active, defaults.max_attempts, defaults.logs_retention, defaults.current_version], [true, 5, '24h', 0]);

    // The client enables notifications by default.
    const heard = await listen(t, url(), 'fetchq__q_set__pnd', 'fetchq__q_default__pnd');
    await client.doc.push('q_set', { subject: 'silent' });
    await client.doc.push('q_default', { subject: 'loud' });
    await poll('a notification', () => heard.length > 0);
    // A message of the background worker stands for many documents. The session sends its own while the database has no
    // background worker: with more databases than processes for them, an idle database is without one.
    const payload = HAS_WORKER && heard[0].payload !== 'loud' ? 'true' : 'loud';
    assert.deepEqual(heard, [{ channel: 'fetchq__q_default__pnd', payload }]);
  });

  test('queue settings by calls', async (t) => {
    const client = await boot(t);
    await client.queue.create('q_calls');
    assert.equal((await client.queue.setMaxAttempts('q_calls', 9)).affected_rows, 1);
    assert.equal((await client.queue.setLogsRetention('q_calls', '7d')).affected_rows, 1);
    assert.equal((await client.queue.setCurrentVersion('q_calls', 4)).affected_rows, 1);
    assert.deepEqual(await client.queue.enableNotifications('q_calls', true), { success: true });
    assert.deepEqual(await client.queue.enableNotifications('q_calls', false), { success: true });
    const { max_attempts, logs_retention, current_version } = await client.queue.get('q_calls');
    assert.deepEqual([max_attempts, logs_retention, current_version], [9, '7d', 4]);
  });

  test('doc.push: subjects are unique, times of every kind', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_push' }] });
    const tomorrow = new Date(Date.now() + 24 * HOUR);
    assert.deepEqual(await client.doc.push('q_push', { subject: 'a', payload: { n: 1 }, priority: 3 }), { queued_docs: 1 });
    assert.deepEqual(await client.doc.push('q_push', { subject: 'a' }), { queued_docs: 0 });
    for (const [subject, nextIteration] of Object.entries({
      date: tomorrow, iso: tomorrow.toISOString(), later: '+24 hours', earlier: '-1 year', past: '2021-06-03 09:09:00+00',
    })) {
      assert.deepEqual(await client.doc.push('q_push', { subject, nextIteration }), { queued_docs: 1 }, subject);
    }
    assert.equal((await stored('q_push', 'date')).next_iteration.getTime(), tomorrow.getTime());
    assert.equal((await stored('q_push', 'iso')).next_iteration.getTime(), tomorrow.getTime());
    assert.equal((await stored('q_push', 'past')).next_iteration.toISOString(), '2021-06-03T09:09:00.000Z');
    assert.deepEqual(
      await all('select subject, status from fetchq_data.q_push__docs order by subject'),
      Object.entries({ a: 1, date: 0, earlier: 1, iso: 0, later: 0, past: 1 }).map(([subject, status]) => ({ subject, status })),
    );
    const { payload, priority } = await stored('q_push', 'a');
    assert.deepEqual([payload, priority], [{ n: 1 }, 3]);
    await assertCounters(base, 'q_push');
  });

  test('doc.pushMany', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_many' }] });
    const docs = [['m1', 0, { n: 1 }], ['m2', 5, { n: 2 }], ['m3', 0, {}]];
    assert.deepEqual(await client.doc.pushMany('q_many', { docs }), { queued_docs: 3 });
    assert.deepEqual(await client.doc.pushMany('q_many', { docs: [...docs, ['m4', 0, {}]] }), { queued_docs: 1 });
    assert.deepEqual(await client.doc.pushMany('q_many', { docs: [['at', 0, {}]], nextIteration: '2121-06-03 09:09:00+00' }), { queued_docs: 1 });
    assert.deepEqual(await client.doc.pushMany('q_many', { docs: [['in', 0, {}]], nextIteration: '+1y' }), { queued_docs: 1 });
    assert.deepEqual(await client.doc.pushMany('q_many', { docs: [['date', 0, {}]], nextIteration: new Date(Date.now() - HOUR) }), { queued_docs: 1 });
    assert.deepEqual(await all('select subject, priority, status, payload from fetchq_data.q_many__docs order by subject'), [
      { subject: 'at', priority: 0, status: 0, payload: {} },
      { subject: 'date', priority: 0, status: 1, payload: {} },
      { subject: 'in', priority: 0, status: 0, payload: {} },
      { subject: 'm1', priority: 0, status: 1, payload: { n: 1 } },
      { subject: 'm2', priority: 5, status: 1, payload: { n: 2 } },
      { subject: 'm3', priority: 0, status: 1, payload: {} },
      { subject: 'm4', priority: 0, status: 1, payload: {} },
    ]);
    await assertCounters(base, 'q_many');
  });

  test('doc.append gives a subject, first in, first out', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_append' }] });
    const subjects = [];
    for (let n = 0; n < 5; n += 1) subjects.push((await client.doc.append('q_append', { n })).subject);
    assert.equal(new Set(subjects).size, 5);
    const urgent = (await client.doc.append('q_append', { n: 'urgent' }, { priority: 1 })).subject;
    const versioned = (await client.doc.append('q_append', {}, { version: 2 })).subject;
    assert.equal((await stored('q_append', versioned)).version, 2);
    const picked = await client.doc.pick('q_append', 0, 10);
    assert.deepEqual(picked.map(({ subject }) => subject), [urgent, ...subjects]);
  });

  test('doc.upsert', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_upsert' }] });
    assert.deepEqual(await client.doc.upsert('q_upsert', { subject: 'u', payload: { n: 1 } }), { queued_docs: 1, updated_docs: 0 });
    assert.deepEqual(
      await client.doc.upsert('q_upsert', { subject: 'u', payload: { n: 2 }, priority: 4, nextIteration: '+1 hour' }),
      { queued_docs: 0, updated_docs: 1 },
    );
    const { payload, priority, status } = await stored('q_upsert', 'u');
    assert.deepEqual([payload, priority, status], [{ n: 2 }, 4, 0]);
    await assertCounters(base, 'q_upsert');
    await client.doc.upsert('q_upsert', { subject: 'u', payload: { n: 3 } });
    assert.equal((await client.doc.pick('q_upsert')).length, 1);
    assert.deepEqual(await client.doc.upsert('q_upsert', { subject: 'u', payload: { n: 4 } }), { queued_docs: 0, updated_docs: 0 });
    assert.deepEqual((await stored('q_upsert', 'u')).payload, { n: 3 });
    await assertCounters(base, 'q_upsert');
  });

  test('doc.pick gives every column with its type', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_types' }] });
    await client.doc.push('q_types', { subject: 's', payload: { n: 1 }, priority: 2 });
    const [doc] = await client.doc.pick('q_types', 0, 1, '5m');
    assert.ok(doc.created_at instanceof Date && doc.next_iteration instanceof Date);
    const { created_at, next_iteration, lease, ...rest } = doc;
    assert.match(lease, /^[0-9]+$/); // The type is int8.
    assert.deepEqual(rest, {
      subject: 's', payload: { n: 1 }, version: 0, priority: 2, attempts: 1,
      iterations: '0', // The type is int8.
      last_iteration: null, lock_upgrade: null,
    });
    assert.equal(next_iteration - created_at > 4 * 60_000, true);
    assert.deepEqual(await client.doc.pick('q_types'), []);
  });

  test('documents are settled by direct calls, once each', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_settle' }] });
    const names = ['complete', 'complete_with', 'kill', 'drop', 'reschedule', 'reschedule_with', 'reject'];
    await client.doc.pushMany('q_settle', { docs: names.map((name) => [name, 0, { n: 1 }]) });
    assert.equal((await client.doc.pick('q_settle', 0, 10)).length, names.length);
    const settle = {
      complete: () => client.doc.complete('q_settle', 'complete'),
      complete_with: () => client.doc.complete('q_settle', 'complete_with', { n: 2 }),
      kill: () => client.doc.kill('q_settle', 'kill', { n: 3 }),
      drop: () => client.doc.drop('q_settle', 'drop'),
      reschedule: () => client.doc.reschedule('q_settle', 'reschedule', '+1 hour'),
      reschedule_with: () => client.doc.reschedule('q_settle', 'reschedule_with', null, { n: 4 }),
      reject: () => client.doc.reject('q_settle', 'reject', 'no good', { why: 'because' }, 'ref'),
    };
    for (const name of names) {
      assert.deepEqual(await settle[name](), { affected_rows: 1 }, name);
      assert.deepEqual(await settle[name](), { affected_rows: 0 }, `${name} again`);
    }
    assert.deepEqual(await all('select subject, status, iterations, payload from fetchq_data.q_settle__docs order by subject'), [
      { subject: 'complete', status: 3, iterations: '1', payload: {} }, // The client sends {} for no payload.
      { subject: 'complete_with', status: 3, iterations: '1', payload: { n: 2 } },
      { subject: 'kill', status: -1, iterations: '1', payload: { n: 3 } },
      { subject: 'reject', status: 1, iterations: '1', payload: { n: 1 } },
      { subject: 'reschedule', status: 0, iterations: '1', payload: { n: 1 } },
      { subject: 'reschedule_with', status: 1, iterations: '1', payload: { n: 4 } },
    ]);
    assert.deepEqual(await all('select subject, message, details, ref_id from fetchq_data.q_settle__logs'), [
      { subject: 'reject', message: 'no good', details: { why: 'because' }, ref_id: 'ref' },
    ]);
    await assertCounters(base, 'q_settle');
  });

  test('an unknown queue: the calls return the values that clients rely on', async (t) => {
    const client = await boot(t);
    assert.deepEqual(await client.doc.push('q_absent', { subject: 'a' }), { queued_docs: 0 });
    assert.deepEqual(await client.doc.pushMany('q_absent', { docs: [['a', 0, {}]] }), { queued_docs: 0 });
    assert.deepEqual(await client.doc.append('q_absent', {}), { subject: null });
    assert.deepEqual(await client.doc.pick('q_absent'), []);
    assert.deepEqual(await client.doc.complete('q_absent', 'a'), { affected_rows: 0 });
  });

  test('queue.logError and trace', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_log' }] });
    await client.doc.push('q_log', { subject: 'traced', payload: { n: 1 } });
    assert.equal(await client.queue.logError('q_log', 'traced', 'first', { n: 1 }), true);
    assert.equal(await client.queue.logError('q_log', 'traced', 'second', { n: 2 }, 'ref'), true);
    const steps = await client.trace('traced');
    assert.deepEqual(Object.keys(steps[0]), ['step', 'created_at', 'queue', 'type', 'info', 'details']);
    assert.ok(steps.every(({ created_at }) => created_at instanceof Date));
    assert.deepEqual(steps.map(({ step, queue, type, info }) => [step, queue, type, info]), [
      [1, 'q_log', 'document', 'status: 1; attempts: 0; iterations: 0'],
      [2, 'q_log', 'error', 'first'],
      [3, 'q_log', 'error', 'second'],
    ]);
    assert.deepEqual(steps[0].details.payload, { n: 1 });
    assert.deepEqual([steps[2].details.details, steps[2].details.ref_id], [{ n: 2 }, 'ref']);
  });

  test('metrics: int8 as a string, int4 as a number', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_metric' }] });
    await client.doc.pushMany('q_metric', { docs: [['a', 0, {}], ['b', 0, {}]] });
    await client.doc.push('q_metric', { subject: 'c', nextIteration: '+1 hour' });
    await client.doc.pick('q_metric');
    await client.doc.complete('q_metric', 'a');

    const rows = await client.metric.get('q_metric');
    assert.ok(rows.every(({ last_update }) => last_update instanceof Date));
    assert.deepEqual(rows.map(({ metric }) => metric), rows.map(({ metric }) => metric).sort());
    const values = Object.fromEntries(rows.map(({ metric, current_value }) => [metric, current_value]));
    assert.deepEqual(
      Object.fromEntries(Object.entries(values).filter(([, value]) => value !== '0')),
      { cnt: '3', cpl: '1', ent: '3', pkd: '1', pln: '1', pnd: '1', prc: '1', suc: '1', v0: '3' },
    );
    const { last_update, ...ent } = await client.metric.get('q_metric', 'ent');
    assert.ok(last_update instanceof Date);
    assert.deepEqual(ent, { current_value: 3, does_exists: true });
    assert.deepEqual(await client.metric.get('q_metric', 'nope'), { current_value: 0, last_update: null, does_exists: false });

    const common = { cnt: 3, pnd: 1, pln: 1, act: 0, cpl: 1, kll: 0, ent: 3, drp: 0, pkd: 1, prc: 1, res: 0, rej: 0, orp: 0, err: 0 };
    assert.deepEqual(await client.metric.getCommon('q_metric'), common);
    assert.deepEqual(Object.keys(await client.metric.getCommon('q_metric')), Object.keys(common));
    const mine = (list) => list.find(({ queue }) => queue === 'q_metric');
    assert.deepEqual(mine(await client.metric.getAll()), { queue: 'q_metric', ...common });
    const { sum } = await one(`select sum(current_value)::int from fetchq.queues q, fetchq.metric_get(q.name, 'cnt')`);
    assert.deepEqual(await client.metric.getTotal('cnt'), { current_value: sum, does_exists: true });
    assert.deepEqual(await client.metric.getTotal('nope'), { current_value: 0, does_exists: false });

    const gauges = { cnt: 3, pln: 1, pnd: 1, act: 0, kll: 0, cpl: 1 };
    assert.deepEqual(await client.metric.compute('q_metric'), gauges);
    assert.deepEqual(mine(await client.metric.computeAll()), { queue: 'q_metric', ...gauges });

    await one("select * from fetchq.metric_log_increment('q_metric', 'custom', 7)");
    const { affected_rows } = await client.metric.logPack();
    assert.equal(typeof affected_rows, 'number');
    // The background worker may have packed them already.
    assert.ok(affected_rows >= (HAS_WORKER ? 0 : 1));
    // It may also be packing them at this moment, and a pack leaves alone what another one has locked.
    const custom = async () => (await client.metric.get('q_metric', 'custom')).current_value;
    for (const deadline = Date.now() + 10_000; HAS_WORKER && (await custom()) === 0 && Date.now() < deadline;) {
      await new Promise((done) => setTimeout(done, 20));
    }
    assert.equal(await custom(), 7);
    assert.deepEqual(await client.metric.getCommon('q_metric'), common);

    assert.deepEqual(await client.metric.reset('q_metric'), gauges);
    assert.equal((await client.metric.get('q_metric', 'custom')).does_exists, false);
    assert.equal((await client.metric.get('q_metric', 'cnt')).current_value, 3);
    assert.deepEqual(mine(await client.metric.resetAll()), { queue: 'q_metric', ...gauges });
    await assertCounters(base, 'q_metric');
  });

  test('mnt.run and mnt.runAll', { skip: HAS_WORKER && 'the background worker would run maintenance first' }, async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_mnt', maxAttempts: 2 }] });
    await client.doc.push('q_mnt', { subject: 'planned', nextIteration: '+1 hour' });
    assert.deepEqual(await client.mnt.run('q_mnt'), { activated_count: 0, rescheduled_count: 0, killed_count: 0 });
    await one("update fetchq_data.q_mnt__docs set next_iteration = now() - interval '1 minute'");
    assert.deepEqual(await client.mnt.run('q_mnt'), { activated_count: 1, rescheduled_count: 0, killed_count: 0 });

    const expire = () => one("update fetchq_data.q_mnt__docs set next_iteration = now() - interval '1 minute' where status = 2");
    assert.equal((await client.doc.pick('q_mnt')).length, 1);
    await expire();
    assert.deepEqual(await client.mnt.run('q_mnt', 10), { activated_count: 0, rescheduled_count: 1, killed_count: 0 });
    assert.equal((await client.doc.pick('q_mnt')).length, 1);
    await expire();
    const results = await client.mnt.runAll();
    assert.deepEqual(results.find(({ queue }) => queue === 'q_mnt'), { queue: 'q_mnt', activated_count: 0, rescheduled_count: 0, killed_count: 1 });
    assert.equal((await stored('q_mnt', 'planned')).status, -1);
    await assertCounters(base, 'q_mnt');
  });

  test('the maintenance daemon makes planned documents pending', async (t) => {
    const client = await boot(t, {
      queues: [{ name: 'q_daemon' }],
      skipMaintenance: false,
      maintenance: { limit: 10, delay: 50, sleep: 100 },
    });
    await client.doc.push('q_daemon', { subject: 'soon', nextIteration: '+1 second' });
    assert.equal(await client.utils.checkStatus('soon', 'q_daemon', 0), true);
    await client.utils.awaitStatus('soon', 'q_daemon', 1, { retries: 100, maxTimeout: 100 });
    // The daemon also packs the counters, which must not change them.
    await assertCounters(base, 'q_daemon');
  });

  test('utils.checkStatus, awaitStatus', async (t) => {
    const client = await bootClient(t, version, url(), { queues: [{ name: 'q_stat' }, { name: 'q_stat2' }] }, { mayFail: true });
    await client.doc.push('q_stat', { subject: 's' });
    await client.doc.push('q_stat2', { subject: 's' });
    assert.equal(await client.utils.checkStatus('s', ['q_stat', 'q_stat2'], 1), true);
    assert.equal(await client.utils.checkStatus('s', ['q_stat', 'q_stat2'], 3), false);
    await assert.rejects(client.utils.checkStatus('s', 'q_stat', 3, true), /expected "status=3" failed/);
    await assert.rejects(client.utils.awaitStatus('s', 'q_stat', 3, { retries: 1, minTimeout: 10 }), /expected "status=3" failed/);
    const waiting = client.utils.awaitStatus('s', 'q_stat', 3, { retries: 100, maxTimeout: 100 });
    await client.doc.pick('q_stat');
    await client.doc.complete('q_stat', 's');
    await waiting;
  });

  test('payloads survive every kind of push, and three rounds of settling', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_text' }] });
    await client.doc.push('q_text', { subject: 'push', payload: HOSTILE_PAYLOAD });
    await client.doc.pushMany('q_text', { docs: [['many', 0, HOSTILE_PAYLOAD]] });
    await client.doc.upsert('q_text', { subject: 'upsert', payload: HOSTILE_PAYLOAD });
    await client.doc.upsert('q_text', { subject: 'upsert', payload: HOSTILE_PAYLOAD });
    const { subject: appended } = await client.doc.append('q_text', HOSTILE_PAYLOAD);
    const names = ['push', 'many', 'upsert', appended];
    for (let round = 1; round <= 3; round += 1) {
      const docs = await client.doc.pick('q_text', 0, 10);
      assert.equal(docs.length, names.length);
      for (const { subject, payload } of docs) {
        assert.deepEqual(payload, HOSTILE_PAYLOAD, `${subject}, round ${round}`);
        await client.doc.reschedule('q_text', subject, null, payload);
      }
    }
    await client.doc.pick('q_text', 0, 10);
    await client.doc.complete('q_text', 'push', HOSTILE_PAYLOAD);
    await client.doc.kill('q_text', 'many', HOSTILE_PAYLOAD);
    await client.doc.reject('q_text', 'upsert', 'rejected', HOSTILE_PAYLOAD);
    await client.queue.logError('q_text', appended, 'logged', HOSTILE_PAYLOAD);
    for (const name of ['push', 'many', 'upsert', appended]) assert.deepEqual((await stored('q_text', name)).payload, HOSTILE_PAYLOAD, name);
    const logs = await all('select details from fetchq_data.q_text__logs');
    assert.deepEqual(logs, [{ details: HOSTILE_PAYLOAD }, { details: HOSTILE_PAYLOAD }]);
  });

  test('messages survive three rounds', async (t) => {
    const client = await boot(t, { queues: [{ name: 'q_message' }] });
    // The client doubles the apostrophes of payloads, but not of messages. Its callers double them,
    // once for each of the two statements into which fetchq 4 pasted a message.
    const escaped = HOSTILE.replaceAll(`'`, `''''`);
    await client.doc.push('q_message', { subject: 's' });
    for (let round = 1; round <= 3; round += 1) {
      // A rejected document can be picked when its lease would have expired.
      await poll('it can be picked', async () => (await client.doc.pick('q_message', 0, 1, '500 ms')).length === 1);
      assert.deepEqual(await client.doc.reject('q_message', 's', escaped), { affected_rows: 1 });
      await client.queue.logError('q_message', 's', escaped);
    }
    assert.deepEqual(await all('select message from fetchq_data.q_message__logs'), Array(6).fill({ message: HOSTILE }));
    assert.deepEqual((await client.trace('s')).filter(({ type }) => type === 'error').map(({ info }) => info), Array(6).fill(HOSTILE));
  });

  test('events between two clients', async (t) => {
    const sender = await boot(t);
    const receiver = await boot(t);
    const heard = [];
    receiver.on('news', (payload) => heard.push(payload));
    receiver.once('news', (payload) => heard.push({ once: payload }));
    await poll('its LISTEN', async () => {
      await sender.emit('news', { text: HOSTILE });
      return heard.length > 1;
    });
    assert.deepEqual(heard.slice(0, 2), [{ text: HOSTILE }, { once: { text: HOSTILE } }]);
  });

  test('utils.reset removes everything and creates the queues again', async (t) => {
    const names = Array.from({ length: 6 }, (_, n) => `q_reset${n}`);
    const client = await boot(t, { queues: names.map((name) => ({ name })) });
    for (const name of names) await client.doc.append(name, {});
    await client.utils.reset();
    assert.deepEqual((await client.queue.list()).map(({ name }) => name), names);
    for (const name of names) {
      assert.equal((await client.metric.getCommon(name)).ent, 0);
      await client.doc.append(name, {});
      await assertCounters(base, name);
    }
    const { n } = await one(`select count(*)::int as n from fetchq.jobs where queue <> '*' and queue <> all ($1)`, [names]);
    assert.equal(n, 0);
    const tables = await all("select relname from pg_class where relnamespace = 'fetchq_data'::regnamespace and relkind = 'r'");
    assert.equal(tables.length, 3 * names.length);
  });
}
