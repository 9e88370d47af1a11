import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Producer, complete, defineTask, kill, reject, snooze } from '@fetchq/client';
import { fakeFetchq, runHandler } from '@fetchq/client/testing';
import { z } from 'zod';

const mail = defineTask('mail', { schema: z.object({ to: z.email() }) });

test('a fake remembers what was put, and checks payloads', async () => {
  const fake = fakeFetchq();
  const signUp = async (fq: Producer, to: string): Promise<void> => {
    await fq.put(mail, { to }, { subject: to });
  };
  await signUp(fake, 'ann@example.com');
  await signUp(fake, 'ann@example.com');
  assert.deepEqual(
    fake.puts(mail).map(({ payload, action }) => [payload.to, action]),
    [
      ['ann@example.com', 'created'],
      ['ann@example.com', 'ignored'],
    ],
  );
  await assert.rejects(signUp(fake, 'nobody'), /does not match its schema/);
  fake.settle(mail, 'ann@example.com', { result: { sent: true } });
  assert.deepEqual(await fake.wait(mail, 'ann@example.com'), {
    status: 'completed',
    result: { sent: true },
    message: null,
  });
  assert.deepEqual(await fake.cancel(mail, 'ann@example.com'), { wasCancelled: false, status: 'completed' });
  assert.equal(
    (await fake.putMany(mail, [{ payload: { to: 'bob@example.com' } }, { payload: { to: 'eve@example.com' } }])).length,
    2,
  );
  fake.clear();
  assert.equal(fake.puts(mail).length, 0);
});

test('a handler is run as a worker runs it', async () => {
  const to = 'ann@example.com';
  assert.deepEqual(await runHandler(mail, () => ({ sent: true }), { to }), complete({ sent: true }));
  assert.deepEqual(await runHandler(mail, () => snooze('1 h'), { to }), snooze('1 h'));
  assert.deepEqual(
    await runHandler(
      mail,
      (_, ctx) => {
        throw new Error(`try ${ctx.attempts}`);
      },
      { to },
      { attempts: 2 },
    ),
    reject('try 2'),
  );
  const retry = (error: unknown) => ((error as Error).message === 'gone' ? kill('gone') : undefined);
  assert.deepEqual(await runHandler(mail, () => Promise.reject(new Error('gone')), { to }, { retry }), kill('gone'));
});

test('steps run once, and their results are kept', async () => {
  let runs = 0;
  let saved: unknown;
  const handler = async (
    _: unknown,
    ctx: { step: <T>(name: string, run: () => T) => Promise<T>; progress: (value: { at: number }) => Promise<void> },
  ) => {
    const first = await ctx.step('first', () => ++runs);
    await ctx.progress({ at: first });
    const again = await ctx.step('first', () => ++runs);
    return { first, again };
  };
  const options = {
    onProgress: (value: unknown) => {
      saved = value;
    },
  };
  assert.deepEqual(
    await runHandler(mail, handler, { to: 'ann@example.com' }, options),
    complete({ first: 1, again: 1 }),
  );
  assert.deepEqual(saved, { at: 1, 'fetchq-steps': { first: 1 } });
  assert.deepEqual(
    await runHandler(mail, handler, { to: 'ann@example.com' }, { saved: saved as never }),
    complete({ first: 1, again: 1 }),
  );
  assert.equal(runs, 1);
});

test('a handler that a stop interrupts is snoozed, and one that fails by itself is rejected', async () => {
  const to = 'ann@example.com';
  const signal = AbortSignal.abort();
  assert.deepEqual(
    await runHandler(
      mail,
      (_, ctx) => {
        ctx.signal.throwIfAborted();
      },
      { to },
      { signal },
    ),
    snooze(),
  );
  assert.deepEqual(
    await runHandler(
      mail,
      () => {
        throw new Error('own');
      },
      { to },
      { signal },
    ),
    reject('own'),
  );
});
