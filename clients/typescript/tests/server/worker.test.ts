import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import {
  type Context,
  Worker,
  type WorkerEvent,
  complete,
  defineTask,
  drop,
  kill,
  reject,
  reschedule,
  snooze,
} from '@fetchq/client';
import { drain } from '@fetchq/client/testing';
import { z } from 'zod';
import { LIBRARIES, setup, until, untilAborted } from '../support.js';

for (const library of LIBRARIES) {
  describe(library, () => {
    const s = setup(library);
    after(s.end);

    test('a handler says what becomes of its document', async () => {
      const queue = await s.queue({ max_attempts: 3 });
      const next = await s.queue();
      const task = defineTask<string>(queue);
      const follower = defineTask<{ from: string }>(next);
      const seen: string[] = [];
      const worker = new Worker(s.fq).handle(
        task,
        async (what, ctx) => {
          seen.push(`${what} ${ctx.attempts}`);
          switch (what) {
            case 'result':
              return { ok: [1] };
            case 'nothing':
              return undefined;
            case 'payload':
              return complete(null, { payload: 'new' });
            case 'snooze':
              return snooze('1 hour');
            case 'reschedule':
              return reschedule('1 hour', { payload: 'later' });
            case 'drop':
              return drop();
            case 'reject':
              return reject('no', { delay: '1 hour' });
            case 'throw':
              throw new Error('a\0b\ud800');
            case 'throw kill':
              throw kill('gone');
            case 'retry':
              throw new Error('retry');
            case 'bigint':
              return 1n;
            case 'nul':
              return { text: 'a\0b' };
            case 'later':
              return snooze('-1 hour');
            default:
              await ctx.followUp(follower, { from: what }, { subject: 'f' });
              return 'followed';
          }
        },
        { concurrency: 3, retry: (error) => ((error as Error).message === 'retry' ? kill('by retry') : undefined) },
      );
      const all = [
        'result',
        'nothing',
        'payload',
        'snooze',
        'reschedule',
        'drop',
        'reject',
        'throw',
        'throw kill',
        'retry',
        'bigint',
        'nul',
        'later',
        'follow',
      ];
      await s.fq.putMany(
        task,
        all.map((what) => ({ payload: what, subject: what })),
      );
      await worker.start();
      const get = (subject: string) => s.fq.get(task, subject);
      assert.deepEqual((await s.fq.wait(task, 'result')).result, { ok: [1] });
      assert.deepEqual(await s.fq.wait(task, 'nothing'), { status: 'completed', result: null, message: null });
      await s.fq.wait(task, 'payload');
      assert.equal((await get('payload'))?.payload, 'new');
      assert.equal((await s.fq.wait(task, 'throw')).message, 'ab\ufffd');
      assert.equal((await s.fq.wait(task, 'throw kill')).message, 'gone');
      assert.equal((await s.fq.wait(task, 'retry')).message, 'by retry');
      assert.match(String((await s.fq.wait(task, 'bigint')).message), /not JSON/);
      // What the server refuses rejects that document alone.
      assert.match(String((await s.fq.wait(task, 'nul')).message), /outcome "complete" is not valid/);
      assert.match(String((await s.fq.wait(task, 'later')).message), /outcome "snooze" is not valid/);
      assert.equal((await s.fq.wait(task, 'follow')).result, 'followed');
      assert.deepEqual((await s.fq.get(follower, 'f'))?.payload, { from: 'follow' });
      await until(async () => (await get('drop'))?.status === 'dropped', 'drop');
      assert.deepEqual([(await get('snooze'))?.status, (await get('snooze'))?.attempts], ['planned', 0]);
      assert.deepEqual([(await get('reschedule'))?.status, (await get('reschedule'))?.payload], ['planned', 'later']);
      assert.deepEqual([(await get('reject'))?.lastError, (await get('reject'))?.attempts], ['no', 1]);
      await worker.stop();
      assert.deepEqual(
        seen.filter((one) => one.startsWith('throw ')).sort(),
        ['throw 1', 'throw 2', 'throw 3', 'throw kill 1'].sort(),
      );
      assert.ok(
        s.lines.some(
          ({ level, message }) => level === 'error' && message === 'the document has failed for the last time',
        ),
      );
      assert.equal(worker.metrics().settled.complete, 4);
      assert.equal(worker.metrics().slotsUsed, 0);
    });

    test('steps and progress are kept over retries', async () => {
      const task = defineTask(await s.queue());
      let runs = 0;
      const saved: unknown[] = [];
      const worker = new Worker(s.fq).handle(task, async (_, ctx) => {
        saved.push(ctx.saved);
        const value = await ctx.step('first', () => ({ runs: ++runs }));
        await ctx.progress({ percent: 50 });
        if (ctx.attempts === 1) throw new Error('half way');
        return { value, nothing: await ctx.step('second', () => null) };
      });
      await s.fq.put(task, {}, { subject: 'a' });
      await worker.start();
      assert.deepEqual((await s.fq.wait(task, 'a')).result, { value: { runs: 1 }, nothing: null });
      assert.deepEqual(saved, [null, { percent: 50 }]);
      await worker.stop();
    });

    test('a batch is handled by one call, and each document has its own outcome', async () => {
      const queue = await s.queue({ max_attempts: 1 });
      const task = defineTask(queue, { schema: z.object({ n: z.number() }) });
      const sizes: number[] = [];
      const worker = new Worker(s.fq, { concurrency: 50 }).handleBatch(
        task,
        (docs) => {
          sizes.push(docs.length);
          return docs.map(({ payload }) => (payload.n === 3 ? kill('three') : payload.n * 2));
        },
        { size: 10 },
      );
      await s.fq.putMany(
        task,
        Array.from({ length: 25 }, (_, n) => ({ payload: { n }, subject: `${n}` })),
      );
      await s.fq.put(defineTask(queue), { n: 'poison' }, { subject: 'poison' });
      await drain(s.fq, worker);
      assert.equal(
        sizes.reduce((a, b) => a + b),
        25,
      );
      assert.ok(Math.max(...sizes) === 10, String(sizes));
      assert.equal((await s.fq.wait(task, '4')).result, 8);
      assert.equal((await s.fq.wait(task, '3')).message, 'three');
      assert.match(String((await s.fq.wait(task, 'poison')).message), /schema: n: /);
    });

    test('poison, unknown tasks and other versions do not stop the worker', async () => {
      const queue = await s.queue({ max_attempts: 1 });
      const a = defineTask('a', { queue, schema: z.object({ n: z.number() }) });
      const b = defineTask('b', { queue });
      const unknown = defineTask('c', { queue });
      const old = defineTask<{ list: string[] }>(await s.queue(), {
        version: 2,
        upcast: { 1: (payload) => ({ list: [payload] }) },
      });
      const worker = new Worker(s.fq)
        .handle(a, ({ n }) => n, { poison: 'kill' })
        .handle(b, () => 'b')
        .handle(old, ({ list }) => list);
      await s.fq.put(defineTask('a', { queue }), { n: 'x' }, { subject: 'poison' });
      await s.fq.put(unknown, {}, { subject: 'unknown' });
      await s.fq.put(a, { n: 1 }, { subject: 'a' });
      await s.fq.put(b, {}, { subject: 'b' });
      await s.fq.put(defineTask(old.queue, { version: 1 }), 'x', { subject: 'one' });
      await s.fq.put(old, { list: ['y'] }, { subject: 'two' });
      await s.fq.put(defineTask(old.queue, { version: 3 }), 'z', { subject: 'three' });
      await worker.start();
      assert.equal((await s.fq.wait(a, 'a')).result, 1);
      assert.equal((await s.fq.wait(b, 'b')).result, 'b');
      assert.match(String((await s.fq.wait(a, 'poison')).message), /n: /);
      assert.deepEqual((await s.fq.wait(old, 'one')).result, ['x']);
      assert.deepEqual((await s.fq.wait(old, 'two')).result, ['y']);
      await until(async () => (await s.fq.get(unknown, 'unknown'))?.status === 'planned', 'the unknown one is snoozed');
      assert.equal((await s.fq.get(unknown, 'unknown'))?.attempts, 0);
      assert.equal(await s.status(old.queue, 'three'), 'pending');
      await worker.stop();
    });

    test('no more documents run at once than there are slots', async () => {
      const one = defineTask(await s.queue());
      const two = defineTask(await s.queue());
      let [running, most, most1] = [0, 0, 0];
      let running1 = 0;
      const work = async (ctx: Context): Promise<void> => {
        running += 1;
        if (ctx.queue === one.queue) running1 += 1;
        most = Math.max(most, running);
        most1 = Math.max(most1, running1);
        await new Promise((resolve) => setTimeout(resolve, 5));
        running -= 1;
        if (ctx.queue === one.queue) running1 -= 1;
      };
      const worker = new Worker(s.fq, { concurrency: 5 })
        .handle(one, (_, ctx) => work(ctx), { concurrency: 2 })
        .handle(two, (_, ctx) => work(ctx));
      await s.fq.putMany(
        one,
        Array.from({ length: 40 }, () => ({ payload: 0 })),
      );
      await s.fq.putMany(
        two,
        Array.from({ length: 40 }, () => ({ payload: 0 })),
      );
      await drain(s.fq, worker);
      assert.equal(most1, 2);
      assert.equal(most, 5);
      assert.equal(worker.metrics().handled, 80);
    });

    test('payloads in memory are bounded', async () => {
      const task = defineTask<string>(await s.queue());
      let [running, most] = [0, 0];
      const worker = new Worker(s.fq, { concurrency: 20, maxBytes: 250_000 }).handle(task, async () => {
        most = Math.max(most, ++running);
        await new Promise((resolve) => setTimeout(resolve, 5));
        running -= 1;
      });
      await s.fq.putMany(
        task,
        Array.from({ length: 12 }, () => ({ payload: 'x'.repeat(100_000) })),
      );
      await drain(s.fq, worker);
      assert.ok(most <= 3 && worker.metrics().handled === 12, String(most));
    });

    test('middleware is around put and handle in its order, and events are told', async () => {
      const task = defineTask(await s.queue());
      const steps: string[] = [];
      const events: WorkerEvent[] = [];
      const plugin = (name: string) => ({
        put: async (_: unknown, next: () => Promise<never>) => {
          steps.push(`${name} put`);
          return next();
        },
        handle: async (_: unknown, next: () => Promise<unknown>) => {
          steps.push(`${name} handle`);
          return next();
        },
      });
      const t = setup(library, { use: [plugin('outer'), plugin('inner')] });
      const worker = new Worker(t.fq, {
        use: [
          plugin('worker'),
          {
            event: (event) => {
              events.push(event);
            },
          },
          {
            event: () => {
              throw new Error('a bad plugin');
            },
          },
        ],
      });
      worker.handle(task, () => steps.push('handler'));
      await t.fq.put(task, {}, { subject: 'a' });
      await drain(t.fq, worker);
      assert.deepEqual(steps, ['outer put', 'inner put', 'outer handle', 'inner handle', 'worker handle', 'handler']);
      assert.ok(events.some((event) => event.type === 'settled' && event.action === 'complete'));
      await t.end();
    });

    test('texts of failures are redacted', async () => {
      const task = defineTask(await s.queue({ max_attempts: 1 }));
      const worker = new Worker(s.fq, { redact: (text) => text.replaceAll('secret', '***') });
      worker.handle(task, () => {
        throw new Error('the secret is out');
      });
      await s.fq.put(task, {}, { subject: 'a' });
      await drain(s.fq, worker);
      assert.equal((await s.fq.wait(task, 'a')).message, 'the *** is out');
      const { rows } = await s.pool.query('select details::text as d from fetchq.doc_errors($1, $2)', [
        task.queue,
        'a',
      ]);
      assert.doesNotMatch(JSON.stringify(rows), /secret/);
      assert.doesNotMatch(JSON.stringify(s.lines.filter(({ fields }) => fields['queue'] === task.queue)), /secret/);
    });

    test('a request to stop in the database stops the worker', async () => {
      const task = defineTask(await s.queue());
      const worker = new Worker(s.fq, { grace: '10 s' }).handle(task, () => 1);
      const run = worker.run();
      await worker.start();
      await s.pool.query('select fetchq.worker_stop($1)', [worker.name]);
      await run;
      assert.equal(worker.isStopping, true);
    });

    test('a worker polls if it is told to', async () => {
      const task = defineTask(await s.queue());
      const worker = new Worker(s.fq, { polling: true, pollInterval: '50 ms' }).handle(task, () => 1);
      await worker.start();
      await s.fq.put(task, {}, { subject: 'a' });
      assert.equal((await s.fq.wait(task, 'a')).status, 'completed');
      await worker.stop();
    });

    test('health tells of the database and the loops', async () => {
      const task = defineTask(await s.queue());
      const worker = new Worker(s.fq).handle(task, (_, ctx) => untilAborted(ctx.signal));
      assert.equal((await worker.health()).ok, false);
      await s.fq.put(task, {}, { subject: 'a' });
      await worker.start();
      await until(() => worker.metrics().slotsUsed === 1, 'a slot is used');
      const health = await worker.health();
      assert.deepEqual([health.ok, health.running], [true, 1]);
      await worker.stop({ grace: 0 });
      assert.deepEqual([await s.status(task.queue, 'a'), (await s.fq.get(task, 'a'))?.attempts], ['pending', 0]);
    });
  });
}
