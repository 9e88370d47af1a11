import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { type Driver, Fetchq, type StopError, Worker, classify, defineTask } from '@fetchq/client';
import { pgDriver } from '@fetchq/client/pg';
import { LIBRARIES, Proxy, open, setup, until, untilAborted } from '../support.js';

const reasonOf = (signal: AbortSignal): string => (signal.reason as StopError).reason;

for (const library of LIBRARIES) {
  describe(library, () => {
    const s = setup(library);
    after(s.end);

    test('a short lease lasts as long as its handler, also when the pool is used up', async () => {
      const task = defineTask(await s.queue(), { lease: '1 s' });
      const pool = new pg.Pool({ max: 6 });
      const worker = new Worker(new Fetchq(pgDriver(pool), { logger: s.logger })).handle(task, async (_, ctx) => {
        const taken = await Promise.all([pool.connect(), pool.connect(), pool.connect(), pool.connect()]);
        await new Promise((resolve) => setTimeout(resolve, 3000));
        for (const client of taken) client.release();
        return ctx.signal.aborted ? reasonOf(ctx.signal) : 'kept';
      });
      await s.fq.put(task, {}, { subject: 'a' });
      await worker.start();
      assert.deepEqual(await s.fq.wait(task, 'a'), { status: 'completed', result: 'kept', message: null });
      assert.equal((await s.fq.get(task, 'a'))?.iterations, 1);
      await worker.stop();
      await pool.end();
    });

    test('a cancelled document aborts its handler at once, and nothing is settled', async () => {
      const task = defineTask(await s.queue());
      let reason = '';
      const worker = new Worker(s.fq).handle(task, async (_, ctx) => {
        await untilAborted(ctx.signal).catch(() => undefined);
        reason = reasonOf(ctx.signal);
      });
      await s.fq.put(task, {}, { subject: 'a' });
      await worker.start();
      await until(() => worker.metrics().slotsUsed === 1, 'it runs');
      assert.deepEqual(await s.fq.cancel(task, 'a'), { wasCancelled: true, status: 'active' });
      await until(() => reason === 'cancelled', 'the handler is told');
      await until(() => worker.metrics().slotsUsed === 0, 'the slot is free');
      await worker.stop();
      assert.deepEqual(worker.metrics().settled, {});
      assert.equal(await s.status(task.queue, 'a'), 'killed');
    });

    test('a lease that was released aborts its handler, and the document runs again', async () => {
      const task = defineTask(await s.queue());
      const reasons: string[] = [];
      const worker = new Worker(s.fq).handle(task, async (_, ctx) => {
        if (reasons.length > 0) return 'second';
        await untilAborted(ctx.signal).catch(() => reasons.push(reasonOf(ctx.signal)));
        return 'first';
      });
      await s.fq.put(task, {}, { subject: 'a' });
      await worker.start();
      await until(() => worker.metrics().slotsUsed === 1, 'it runs');
      await s.pool.query('select fetchq.worker_release($1)', [worker.name]);
      assert.equal((await s.fq.wait(task, 'a')).result, 'second');
      assert.deepEqual(reasons, ['lost']);
      assert.equal(worker.metrics().lost, 1);
      await worker.stop();
    });

    test('a timeout aborts and rejects, and a handler that ignores it is stuck', async () => {
      const task = defineTask<boolean>(await s.queue({ max_attempts: 1 }), { timeout: 100 });
      let release = (): void => undefined;
      const worker = new Worker(s.fq, { stuckAfter: 200, abortGrace: 0 }).handle(task, async (listens, ctx) => {
        if (listens) await untilAborted(ctx.signal);
        await new Promise<void>((resolve) => {
          release = resolve;
        });
      });
      await worker.start();
      await s.fq.put(task, true, { subject: 'listens' });
      assert.equal((await s.fq.wait(task, 'listens')).message, 'the handler took longer than its timeout of 100');
      await s.fq.put(task, false, { subject: 'hangs' });
      assert.match(String((await s.fq.wait(task, 'hangs')).message), /timeout, and does not end/);
      assert.deepEqual([worker.metrics().stuck, worker.metrics().slotsUsed], [1, 1]);
      assert.ok(s.lines.some(({ message }) => message.startsWith('the handler is stuck')));
      release();
      await until(() => worker.metrics().slotsUsed === 0, 'the slot is free');
      await worker.stop();
    });

    test('at the stop, who ends in time is completed, who fails by itself is rejected, and the others are handed back', async () => {
      const task = defineTask<string>(await s.queue({ max_attempts: 1 }));
      const worker = new Worker(s.fq, { grace: 300, abortGrace: 300 }).handle(task, async (what, ctx) => {
        const aborted = untilAborted(ctx.signal);
        aborted.catch(() => undefined);
        if (what === 'quick') return new Promise((resolve) => setTimeout(resolve, 100, 'in time'));
        if (what === 'finishes') return aborted.catch(() => 'after all');
        if (what === 'fails')
          return aborted.catch(() => {
            throw new Error('for another reason');
          });
        if (what === 'hangs') return new Promise(() => undefined);
        return aborted;
      });
      const all = ['quick', 'finishes', 'fails', 'hangs', 'listens'];
      await s.fq.putMany(
        task,
        all.map((what) => ({ payload: what, subject: what })),
      );
      await worker.start();
      await until(() => worker.metrics().slotsUsed === 5, 'all run');
      await worker.stop();
      const ends = await Promise.all(
        all.map(async (subject) => {
          const doc = await s.fq.get(task, subject);
          return [subject, doc?.status, doc?.status === 'pending' ? doc.attempts : null, doc?.lastError ?? doc?.result];
        }),
      );
      assert.deepEqual(ends, [
        ['quick', 'completed', null, 'in time'],
        ['finishes', 'completed', null, 'after all'],
        ['fails', 'killed', null, 'for another reason'],
        ['hangs', 'pending', 0, null],
        ['listens', 'pending', 0, null],
      ]);
    });

    test('sessions that the server ends are replaced, and nothing is lost', async () => {
      const task = defineTask(await s.queue());
      const runs = new Map<string, number>();
      const application = `t_${randomBytes(4).toString('hex')}`;
      const { driver, end } = open(library, { application });
      const worker = new Worker(new Fetchq(driver, { logger: s.logger }), { concurrency: 4 }).handle(
        task,
        async (_, ctx) => {
          runs.set(ctx.subject, (runs.get(ctx.subject) ?? 0) + 1);
          await new Promise((resolve) => setTimeout(resolve, 50));
        },
      );
      await s.fq.putMany(
        task,
        Array.from({ length: 60 }, (_, at) => ({ payload: at, subject: `${at}` })),
      );
      await worker.start();
      for (let kills = 0; kills < 4; kills++) {
        await new Promise((resolve) => setTimeout(resolve, 150));
        await s.pool.query('select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1', [
          application,
        ]);
      }
      for (let at = 0; at < 60; at++) await s.fq.wait(task, `${at}`);
      assert.deepEqual(
        [...runs.values()].filter((count) => count > 1),
        [],
      );
      await worker.stop();
      await end();
    });

    test('connections that end when they have just become ready do not end the process', async () => {
      const task = defineTask(await s.queue());
      const proxy = new Proxy();
      const { driver, end } = open(library, { host: '127.0.0.1', port: await proxy.start() });
      const worker = new Worker(new Fetchq(driver, { logger: s.logger })).handle(task, () => 'done');
      await worker.start();
      proxy.isBrief = true;
      proxy.cut();
      await until(() => proxy.brief >= 6, 'connections have ended so');
      proxy.isBrief = false;
      await s.fq.put(task, {}, { subject: 'a' });
      assert.equal((await s.fq.wait(task, 'a')).result, 'done');
      await worker.stop();
      await end();
      await proxy.end();
    });

    test('a settlement whose answer is lost counts once, and documents of a lost answer come back', async () => {
      const queue = await s.queue({ max_attempts: 5 });
      const task = defineTask<number>(queue, { lease: '30 s' });
      const proxy = new Proxy();
      const { driver, end } = open(library, { host: '127.0.0.1', port: await proxy.start() });
      let release = (): void => undefined;
      const gate = new Promise<void>((resolve) => {
        release = resolve;
      });
      const worker = new Worker(new Fetchq(driver, { logger: s.logger }), { concurrency: 2 }).handle(
        task,
        async (n) => {
          if (n === 1) await gate;
          return n;
        },
      );
      await worker.start();
      await s.fq.put(task, 1, { subject: 'one' });
      await until(() => worker.metrics().slotsUsed === 1, 'it runs');
      // The call that settles the first document leases the second one, and its answer does not come.
      proxy.isMute = true;
      release();
      await until(async () => (await s.status(queue, 'one')) === 'completed', 'it is settled');
      await s.fq.put(task, 2, { subject: 'two' });
      await new Promise((resolve) => setTimeout(resolve, 200));
      proxy.isMute = false;
      proxy.cut();
      assert.deepEqual((await s.fq.wait(task, 'two')).result, 2);
      const doc = await s.fq.get(task, 'one');
      assert.deepEqual([doc?.status, doc?.iterations, doc?.result], ['completed', 1, 1]);
      await worker.stop();
      assert.equal(worker.metrics().lost, 0);
      await end();
      await proxy.end();
    });

    test('a lease that cannot be extended is lost in time, though nobody can be asked', async () => {
      const task = defineTask(await s.queue({ max_attempts: 5 }), { lease: '2 s' });
      const proxy = new Proxy();
      const { driver, end } = open(library, { host: '127.0.0.1', port: await proxy.start() });
      let reason = '';
      const worker = new Worker(new Fetchq(driver, { logger: s.logger })).handle(task, async (_, ctx) => {
        if (reason !== '') return 'again';
        await untilAborted(ctx.signal).catch(() => undefined);
        reason = reasonOf(ctx.signal);
        return 'first';
      });
      await s.fq.put(task, {}, { subject: 'a' });
      await worker.start();
      await until(() => worker.metrics().slotsUsed === 1, 'it runs');
      proxy.isDown = true;
      proxy.cut();
      await until(() => reason === 'lost', 'the handler is told');
      assert.equal((await worker.health()).ok, false);
      proxy.isDown = false;
      await until(async () => {
        // The server may have extended the lease once more, and the answer was lost.
        await s.pool.query('select fetchq.mnt()');
        return (await s.status(task.queue, 'a')) === 'completed';
      }, 'it runs again');
      assert.equal((await s.fq.wait(task, 'a')).result, 'again');
      await worker.stop();
      await end();
      await proxy.end();
    });

    test('of two calls under way, one is lost: what the other one leases is not handed back', async () => {
      const { driver, end } = open(library);
      const calls = { now: 0, most: 0, isLost: false, repairs: 0 };
      const isRepair = (statement: string): boolean => statement.includes('fetchq.lease_list');
      const held: Driver = {
        ...driver,
        async call(statement, values, ms) {
          if (isRepair(statement)) {
            calls.repairs += 1;
            assert.equal(calls.now, 0, 'what was lost is looked for while a call is under way');
          }
          if (!statement.includes('fetchq.docs_next')) return driver.call(statement, values, ms);
          calls.now += 1;
          calls.most = Math.max(calls.most, calls.now);
          try {
            const rows = await driver.call(statement, values, ms);
            if (calls.isLost || calls.now < 2) return rows;
            calls.isLost = true;
            // The answer to the other call is later than the end of the pause that follows.
            holding = new Promise((resolve) => setTimeout(resolve, 1500));
            throw Object.assign(new Error('the answer is lost'), { code: 'ECONNRESET' });
          } finally {
            await (calls.isLost && calls.now === 1 ? holding : undefined);
            calls.now -= 1;
          }
        },
      };
      let holding: Promise<void> | undefined;
      const task = defineTask<number>(await s.queue());
      const documents = 4000;
      await s.fq.putMany(
        task,
        Array.from({ length: documents }, (_, n) => ({ payload: n })),
      );
      const runs = new Map<number, number>();
      const worker = new Worker(new Fetchq(held, { logger: s.logger }), { concurrency: 400 }).handleBatch(
        task,
        (docs) => {
          for (const { payload } of docs) runs.set(payload, (runs.get(payload) ?? 0) + 1);
        },
        { size: 100, concurrency: 4 },
      );
      await worker.start();
      await until(() => worker.metrics().settled.complete === documents, 'all are settled', 30);
      await worker.stop();
      assert.deepEqual([calls.most, calls.isLost, calls.repairs], [2, true, 1]);
      assert.equal(runs.size, documents);
      assert.ok([...runs.values()].every((count) => count === 1));
      assert.equal(worker.metrics().lost, 0);
      await end();
    });

    test('a commit whose answer is lost is not made twice', async () => {
      const task = defineTask(await s.queue());
      const table = `${task.queue}_rows`;
      await s.pool.query(`create table ${table} (n serial)`);
      let inserts = 0;
      const proxy = new Proxy();
      const { driver, end } = open(library, { host: '127.0.0.1', port: await proxy.start() });
      const worker = new Worker(new Fetchq(driver, { logger: s.logger })).handleTx(task, async (_, { tx }) => {
        const sql = tx as {
          unsafe?: (statement: string) => Promise<unknown>;
          query: (statement: string) => Promise<unknown>;
        };
        const statement = `insert into ${table} default values`;
        await (sql.unsafe ? sql.unsafe(statement) : sql.query(statement));
        inserts += 1;
      });
      await worker.start();
      for (let round = 0; round < 6; round++) {
        const subject = `${round}`;
        await s.fq.put(task, {}, { subject });
        await until(() => inserts > round, 'it inserts');
        // While it settles, or commits, or shortly after.
        await new Promise((resolve) => setTimeout(resolve, round));
        proxy.cut();
        assert.equal((await s.fq.wait(task, subject)).status, 'completed');
        inserts = round + 1;
      }
      const { rows } = await s.pool.query<{ count: string }>(`select count(*) from ${table}`);
      assert.equal(rows[0]?.count, '6');
      await worker.stop();
      await end();
      await proxy.end();
    });
  });
}

describe('a process', () => {
  const s = setup('pg');
  after(s.end);
  const program = fileURLToPath(new URL('../process.js', import.meta.url));
  const start = (
    queue: string,
    ...more: string[]
  ): { child: ChildProcess; out: () => string; end: Promise<[number | null, NodeJS.Signals | null]> } => {
    const child = spawn(process.execPath, [program, queue, ...more], { stdio: ['ignore', 'pipe', 'inherit'] });
    let out = '';
    child.stdout.on('data', (data: Buffer) => {
      out += data.toString();
    });
    const end = new Promise<[number | null, NodeJS.Signals | null]>((resolve) =>
      child.on('exit', (...how) => {
        resolve(how);
      }),
    );
    return { child, out: () => out, end };
  };

  test('SIGTERM lets the handlers end, and the process ends with status 0', async () => {
    const task = defineTask(await s.queue());
    const { child, out, end } = start(task.queue);
    await until(() => out().includes('started'), 'start');
    await s.fq.put(task, { ms: 500 }, { subject: 'a' });
    await until(() => out().includes('began a'), 'begin');
    child.kill('SIGTERM');
    assert.deepEqual(await end, [0, null]);
    assert.equal(await s.status(task.queue, 'a'), 'completed');
  });

  test('a second SIGTERM ends it at once, and its document is handed back', async () => {
    const task = defineTask(await s.queue());
    const { child, out, end } = start(task.queue);
    await until(() => out().includes('started'), 'start');
    await s.fq.put(task, { ms: 60_000 }, { subject: 'a' });
    await until(() => out().includes('began a'), 'begin');
    child.kill('SIGTERM');
    await new Promise((resolve) => setTimeout(resolve, 200));
    assert.equal(child.exitCode, null);
    child.kill('SIGTERM');
    assert.deepEqual(await end, [null, 'SIGTERM']);
    const doc = await s.fq.get(task, 'a');
    assert.deepEqual([doc?.status, doc?.attempts], ['pending', 0]);
  });

  test('after SIGKILL its documents run again when their leases have expired', async () => {
    const task = defineTask(await s.queue({ max_attempts: 5 }));
    const first = start(task.queue, '1 s');
    await until(() => first.out().includes('started'), 'start');
    await s.fq.put(task, { ms: 3000 }, { subject: 'a' });
    await until(() => first.out().includes('began a'), 'begin');
    first.child.kill('SIGKILL');
    await first.end;
    const second = start(task.queue, '10 s');
    await until(async () => {
      await s.pool.query('select fetchq.mnt()');
      return second.out().includes('began a');
    }, 'it runs again');
    assert.equal((await s.fq.wait(task, 'a')).status, 'completed');
    second.child.kill('SIGTERM');
    assert.deepEqual(await second.end, [0, null]);
  });
});

describe('a pooler', async () => {
  const s = setup('pg');
  const pooler = spawn('../../scripts/pooler.sh', [`/tmp/fetchq-ts-pooler-${process.pid}`], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const port = await new Promise<number>((resolve) =>
    pooler.stdout.once('data', (data: Buffer) => {
      resolve(Number(data.toString()));
    }),
  );
  after(async () => {
    pooler.kill();
    await s.end();
  });

  for (const library of LIBRARIES) {
    test(`${library} works behind one that lends two connections to three of them`, async () => {
      const task = defineTask(await s.queue());
      const connection = { host: '127.0.0.1', port, prepare: false };
      const behind = Array.from({ length: 3 }, () => open(library, connection));
      await until(async () => {
        try {
          return (await behind[0]?.driver.query('select 1', []))?.length === 1;
        } catch (error) {
          assert.equal(classify(error), 'connection');
          return false;
        }
      }, 'the pooler answers');
      const workers = behind.map(({ driver }) =>
        new Worker(new Fetchq(driver, { logger: s.logger }), { pollInterval: 200, waitTimeout: '6 s' }).handle(
          task,
          async (n) => {
            // Meanwhile two sessions that wait take both connections for seconds, and its settlement has none.
            if (n === 0) await new Promise((resolve) => setTimeout(resolve, 500));
            return n;
          },
        ),
      );
      await Promise.all(workers.map((worker) => worker.start()));
      for (let round = 0; round < 4; round++) {
        await s.fq.put(task, round, { subject: `${round}` });
        assert.equal((await s.fq.wait(task, `${round}`)).result, round);
      }
      await Promise.all(workers.map((worker) => worker.stop()));
      await Promise.all(behind.map(({ end }) => end()));
      const lines = s.lines.splice(0).filter(({ message }) => message.includes('polling for a while'));
      const names = lines.map(({ fields }) => fields['worker']);
      assert.ok(names.length > 0 && names.length === new Set(names).size, JSON.stringify(lines));
    });
  }
});
