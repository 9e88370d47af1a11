import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql as drizzleSql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import knex from 'knex';
import { CompiledQuery, Kysely, PostgresDialect } from 'kysely';
import pg from 'pg';
import postgres from 'postgres';
import {
  ConfigurationError,
  type Driver,
  Fetchq,
  InvalidPayloadError,
  Worker,
  classify,
  defineTask,
} from '@fetchq/client';
import { open, within } from '#internal/driver.js';
import { CallTimeoutError } from '#internal/errors.js';
import { drizzleDriver, drizzleTx } from '@fetchq/client/drizzle';
import { knexDriver, knexTx } from '@fetchq/client/knex';
import { kyselyDriver, kyselyTx } from '@fetchq/client/kysely';
import { pgDriver } from '@fetchq/client/pg';
import { postgresDriver } from '@fetchq/client/postgres';
import { type PrismaExecutor, prismaDriver, prismaTx } from '@fetchq/client/prisma';
import { openPrisma } from '../prisma.js';
import { LIBRARIES, Proxy, open as openPool, setup } from '../support.js';

for (const library of LIBRARIES) {
  describe(library, () => {
    const s = setup(library);
    after(s.end);

    test('a document is put with every option, read, cancelled and waited for', async () => {
      const queue = await s.queue();
      const task = defineTask<{ to: string }>(queue);
      const put = await s.fq.put(
        task,
        { to: 'ann' },
        {
          subject: 'a',
          delay: '1 hour',
          priority: 3,
          maxAttempts: 2,
          orderingKey: 'k',
          headers: { tenant: 7 },
          expiresIn: '2 hours',
        },
      );
      assert.deepEqual(put, { subject: 'a', action: 'created' });
      const doc = await s.fq.get(task, 'a');
      assert.ok(doc);
      assert.deepEqual(
        [doc.status, doc.payload, doc.priority, doc.maxAttempts, doc.orderingKey, doc.headers],
        ['planned', { to: 'ann' }, 3, 2, 'k', { tenant: 7 }],
      );
      assert.ok(doc.dueAt && doc.expiresAt && doc.expiresAt > doc.dueAt && doc.dueAt > doc.createdAt);
      assert.deepEqual(await s.fq.put(task, { to: 'bob' }, { subject: 'a', mode: 'replace' }), {
        subject: 'a',
        action: 'updated',
      });
      assert.deepEqual(await s.fq.cancel(task, 'a'), { wasCancelled: true, status: 'pending' });
      assert.deepEqual(await s.fq.wait(task, 'a'), { status: 'killed', result: null, message: 'cancelled' });
      assert.equal(await s.fq.get(task, 'nothing'), undefined);
      assert.deepEqual(await s.fq.cancel(task, 'nothing'), { wasCancelled: false, status: null });
      await assert.rejects(s.fq.wait(task, 'nothing'), { code: 'P0002' });
      const { subject } = await s.fq.put(task, { to: 'eve' }, { at: new Date('2999-01-01') });
      assert.equal((await s.fq.wait(task, subject, { timeout: 10 })).status, 'planned');
      await assert.rejects(s.fq.wait(task, subject, { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    });

    test('a list is put as a whole or not at all', async () => {
      const task = defineTask(await s.queue());
      const items = [{ payload: 1, subject: 'a' }, { payload: [2] }, { payload: 'text', subject: 'a' }];
      const results = await s.fq.putMany(task, items);
      assert.deepEqual(
        results.map(({ action }) => action),
        ['created', 'created', 'ignored'],
      );
      assert.equal(results[1]?.subject.length, 36);
      assert.deepEqual(await s.fq.putMany(task, []), []);
      await assert.rejects(
        s.fq.putMany(task, [
          { payload: 1, subject: 'b' },
          { payload: 2, delay: '-1 s' },
        ]),
        /document 2/,
      );
      assert.equal(await s.fq.get(task, 'b'), undefined);
      await assert.rejects(s.fq.put(task, { n: 1n }), InvalidPayloadError);
    });

    test('queues are declared again and again', async () => {
      const queue = await s.queue();
      const queues = { [queue]: { max_active: 7 } };
      assert.deepEqual(await s.fq.sync({ queues }), []);
      await s.fq.sync({ queues });
      const { rows } = await s.pool.query<{ n: string }>(`select fetchq.queue_settings($1) ->> 'max_active' as n`, [
        queue,
      ]);
      assert.equal(rows[0]?.n, '7');
    });

    test('schedules are those of the owner', async (t) => {
      const { rows } = await s.pool.query(`select 1 from pg_proc where proname = 'schedules_sync'`);
      if (rows.length === 0) {
        t.skip('this extension has no schedules_sync');
        return;
      }
      const task = defineTask(await s.queue());
      const owner = task.queue;
      const nightly = { task, cron: '30 2 * * *', timezone: 'Europe/Berlin', payload: { what: 'sales' } };
      const made = await s.fq.sync({ owner, schedules: { [`${owner}_a`]: nightly } });
      assert.deepEqual(
        made.map(({ name }) => name),
        [`${owner}_a`],
      );
      await s.fq.sync({ owner, schedules: {} });
      await assert.rejects(s.fq.sync({ schedules: {} }), /schedules need an owner/);
    });
  });
}

describe('transactions', () => {
  const s = setup('pg');
  const pool = new pg.Pool({ max: 8 });
  const sql = postgres({ max: 8, onnotice: () => undefined });
  const kysely = new Kysely({ dialect: new PostgresDialect({ pool }) });
  const builder = knex({
    client: 'pg',
    connection: {
      host: process.env['PGHOST'] ?? '',
      port: Number(process.env['PGPORT']),
      user: process.env['PGUSER'] ?? '',
      password: process.env['PGPASSWORD'] ?? '',
      database: process.env['PGDATABASE'] ?? '',
    },
    pool: { min: 0, max: 2 },
  });
  const orm = drizzle(pool);
  const prisma = openPrisma();
  after(async () => {
    await Promise.all([prisma.$disconnect(), s.end(), pool.end(), sql.end(), builder.destroy()]);
  });
  const base = pgDriver(pool);
  const drivers: Record<string, Driver> = {
    pg: base,
    postgres: postgresDriver(sql),
    drizzle: drizzleDriver(orm, base),
    kysely: kyselyDriver(kysely, base),
    knex: knexDriver(builder, base),
    prisma: prismaDriver(prisma, base),
  };

  for (const [name, driver] of Object.entries(drivers)) {
    test(`a document that is put in a transaction of ${name} is committed with it, or not at all`, async () => {
      const fq = new Fetchq(driver);
      const task = defineTask<{ n: number }>(await s.queue());
      await driver.transaction(async (tx) => {
        await fq.put(task, { n: 1 }, { subject: 'a', tx });
        assert.equal(await s.status(task.queue, 'a'), undefined);
      });
      assert.equal(await s.status(task.queue, 'a'), 'pending');
      await assert.rejects(
        driver.transaction(async (tx) => {
          await fq.put(task, { n: 1 }, { subject: 'b', tx });
          throw new Error('rolled back');
        }),
        /rolled back/,
      );
      assert.equal(await s.status(task.queue, 'b'), undefined);
      assert.deepEqual((await fq.get(task, 'a'))?.payload, { n: 1 });
    });

    test(`a handler works in a transaction of ${name}`, async () => {
      const fq = new Fetchq(driver, { logger: s.logger });
      const task = defineTask<{ fail?: boolean }>(await s.queue({ max_attempts: 1 }));
      const table = `${task.queue}_rows`;
      await s.pool.query(`create table ${table} (subject text)`);
      const worker = new Worker(fq);
      worker.handleTx(task, async ({ fail }, { tx, subject }) => {
        const statement = `insert into ${table} values ('${subject}')`;
        if (name === 'pg') await (tx as pg.PoolClient).query(statement);
        else if (name === 'postgres') await (tx as postgres.Sql).unsafe(statement);
        else if (name === 'drizzle') await (tx as typeof orm).execute(drizzleSql.raw(statement));
        else if (name === 'kysely') await (tx as typeof kysely).executeQuery(CompiledQuery.raw(statement));
        else if (name === 'knex') await (tx as typeof builder).raw(statement);
        else await (tx as PrismaExecutor).$queryRawUnsafe(statement);
        if (fail) throw new Error('after the insert');
        return { done: true };
      });
      await worker.start();
      await fq.put(task, {}, { subject: 'good' });
      await fq.put(task, { fail: true }, { subject: 'bad' });
      assert.deepEqual((await fq.wait(task, 'good')).result, { done: true });
      assert.equal((await fq.wait(task, 'bad')).message, 'after the insert');
      const { rows } = await s.pool.query(`select subject from ${table}`);
      assert.deepEqual(rows, [{ subject: 'good' }]);
      await worker.stop();
    });
  }

  test('a client of one library puts in a transaction of another', async () => {
    const fq = new Fetchq(base);
    const task = defineTask(await s.queue());
    await orm.transaction((tx) => fq.put(task, 1, { subject: 'drizzle', tx: drizzleTx(tx) }));
    await kysely.transaction().execute((tx) => fq.put(task, 1, { subject: 'kysely', tx: kyselyTx(tx) }));
    await builder.transaction((tx) => fq.put(task, 1, { subject: 'knex', tx: knexTx(tx) }));
    await prisma.$transaction((tx) => fq.put(task, 1, { subject: 'prisma', tx: prismaTx(tx) }));
    for (const subject of ['drizzle', 'kysely', 'knex', 'prisma'])
      assert.equal(await s.status(task.queue, subject), 'pending');
  });
});

for (const library of LIBRARIES) {
  describe(`a session of ${library}`, () => {
    const s = setup(library);
    after(s.end);

    test('answers after a cancel that came while it connects', async () => {
      const session = await open(s.fq.driver);
      const first = session.query('select pg_sleep(0.2)', []).catch((error: unknown) => error);
      session.cancel();
      await within(first, 10_000);
      const [row] = await within(session.query('select 2 as n', []), 10_000);
      assert.equal(Number(row?.['n']), 2);
      session.release(false);
    });

    test('a cancel that the server gets before the statement is made again', async () => {
      const session = await open(s.fq.driver);
      const [row] = await session.query('select pg_backend_pid() as pid', []);
      const pid = Number(row?.['pid']);
      // The signal of the request is there first when the process goes on, and cancels nothing.
      process.kill(pid, 'SIGSTOP');
      const waiting = session.query('select pg_sleep(60)', []).catch((error: unknown) => error);
      const again = setInterval(() => {
        session.cancel();
      }, 200);
      await sleep(500);
      process.kill(pid, 'SIGCONT');
      const error = await within(waiting, 10_000);
      clearInterval(again);
      assert.equal((error as { code?: unknown }).code, '57014');
      session.release(true);
    });

    test('a call whose time was over before it was sent does nothing when it is sent', async () => {
      const task = defineTask(await s.queue());
      await s.fq.put(task, 1, { subject: 'a' });
      const proxy = new Proxy();
      const { driver, end } = openPool(library, { host: '127.0.0.1', port: await proxy.start(), max: 1 });
      const lease = 'select * from fetchq.doc_lease($1, $2)';
      proxy.isMute = true;
      await assert.rejects(driver.call(lease, [task.queue, '1'], 200), CallTimeoutError);
      proxy.isMute = false;
      proxy.cut();
      await driver.call('select 1', [], 10_000);
      assert.equal(await s.status(task.queue, 'a'), 'pending');
      await end();
      await proxy.end();
    });
  });
}

describe('a database that does not fit', () => {
  const s = setup('pg');
  after(s.end);

  test('one without the extension is one clear error', async () => {
    const name = `t_bare_${process.pid}`;
    await s.pool.query(`create database ${name}`);
    const pool = new pg.Pool({ database: name, max: 4 });
    const fq = new Fetchq(pgDriver(pool), { logger: s.logger });
    const task = defineTask('mail');
    for (const call of [() => fq.put(task, 1), () => fq.sync({}), () => new Worker(fq).handle(task, () => 1).run()]) {
      await assert.rejects(call(), (error: unknown) => {
        assert.ok(error instanceof ConfigurationError, String(error));
        assert.match(error.message, /create extension fetchq/);
        return true;
      });
    }
    await pool.end();
    await s.pool.query(`drop database ${name} with (force)`);
  });

  test('a pool that only puts outlives the end of its idle connection', async () => {
    const queue = await s.queue();
    const pool = new pg.Pool({ max: 1 });
    const fq = new Fetchq(pgDriver(pool), { logger: s.logger });
    const task = defineTask(queue);
    await fq.put(task, 1, { subject: 'a' });
    const { rows } = await pool.query<{ pid: number }>('select pg_backend_pid() as pid');
    const removed = new Promise<void>((resolve) => pool.once('remove', () => resolve()));
    await s.pool.query('select pg_terminate_backend($1)', [rows[0]?.pid]);
    await removed;
    await fq.put(task, 1, { subject: 'b' });
    assert.equal(await s.status(queue, 'b'), 'pending');
    await pool.end();
  });

  test('a queue that does not exist, a pool that is too small, and no handler are errors of the start', async () => {
    const queue = await s.queue();
    const start = (max: number, name: string): Promise<void> => {
      const pool = new pg.Pool({ max });
      const worker = new Worker(new Fetchq(pgDriver(pool), { logger: s.logger })).handle(defineTask(name), () => 1);
      return worker.start().finally(() => pool.end());
    };
    await assert.rejects(start(4, 'no_such_queue'), (error) => classify(error) === 'configuration');
    await assert.rejects(start(2, queue), /pool has 2 connections at most, and the worker needs 3/);
    await assert.rejects(new Worker(s.fq).start(), /no handlers/);
    const worker = new Worker(s.fq).handle(defineTask(queue), () => 1);
    assert.throws(() => worker.handle(defineTask(queue), () => 1), /two handlers/);
  });

  test('a role without the right ends the worker with that error', async () => {
    const queue = await s.queue();
    const role = `t_role_${process.pid}`;
    await s.pool.query(`create role ${role} login password 'x'`);
    const pool = new pg.Pool({ user: role, password: 'x', max: 4 });
    const worker = new Worker(new Fetchq(pgDriver(pool), { logger: s.logger })).handle(defineTask(queue), () => 1);
    await assert.rejects(worker.run(), { code: '42501' });
    await pool.end();
    await s.pool.query(`drop role ${role}`);
  });
});
