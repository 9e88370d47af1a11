import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  InvalidPayloadError,
  classify,
  clean,
  complete,
  defineTask,
  drop,
  interval,
  kill,
  reject,
  reschedule,
  snooze,
} from '@fetchq/client';
import { textArray } from '#internal/driver.js';
import { errorCode, text } from '#internal/errors.js';
import { decode, encode, versions } from '#internal/task.js';
import { Backoff, milliseconds } from '#internal/time.js';
import * as v from 'valibot';
import { z } from 'zod';

test('durations are numbers of milliseconds, or texts with units', () => {
  assert.equal(milliseconds('90 s'), 90_000);
  assert.equal(milliseconds('1 hour 30 min'), 5_400_000);
  assert.equal(milliseconds('250ms'), 250);
  assert.equal(milliseconds(5), 5);
  assert.equal(interval(1500), '1500 milliseconds');
  assert.equal(interval('1 month'), '1 month');
  for (const wrong of ['5', '', 'soon', '1 fortnight', -1, NaN]) assert.throws(() => milliseconds(wrong), RangeError);
  assert.throws(() => interval(-1), RangeError);
});

test('the pause after failures grows up to a limit, with jitter', () => {
  const backoff = new Backoff();
  const pauses = Array.from({ length: 12 }, () => backoff.next());
  pauses.forEach((pause, at) => {
    const full = Math.min(250 * 2 ** at, 30_000);
    assert.ok(pause >= full / 2 && pause <= full, `${at}: ${pause}`);
  });
  backoff.reset();
  assert.ok(backoff.next() <= 250);
});

test('texts are cleaned of what PostgreSQL cannot store', () => {
  assert.equal(clean('a\0b'), 'ab');
  assert.equal(clean('a\ud800b'), 'a\ufffdb');
  assert.equal(clean('\ud83d\ude00'), '\ud83d\ude00');
  assert.equal(Array.from(clean('\ud83d\ude00'.repeat(3000))).length, 2000);
});

test('whatever is thrown has a message', () => {
  assert.equal(text(new Error('bad luck')), 'bad luck');
  assert.equal(text(new TypeError('')), 'TypeError');
  assert.equal(text('just text'), 'just text');
  assert.equal(text(undefined), 'undefined');
  assert.equal(text(Object.create(null)), '[Object: null prototype] {}');
});

test('errors are told apart by their SQLSTATE, also where an ORM has wrapped them', () => {
  const of = (code: string, routine?: string): string => classify(Object.assign(new Error('x'), { code, routine }));
  assert.equal(of('55000', 'fetchq'), 'lost');
  assert.equal(of('55000', 'currval_oid'), 'invalid');
  assert.equal(of('08006'), 'connection');
  assert.equal(of('57P01'), 'connection');
  assert.equal(of('ECONNREFUSED'), 'connection');
  assert.equal(of('CONNECTION_CLOSED'), 'connection');
  assert.equal(of('40P01'), 'conflict');
  assert.equal(of('42501'), 'configuration');
  assert.equal(of('22P05'), 'invalid');
  assert.equal(of('57014'), 'other');
  assert.equal(classify(new Error('Connection terminated unexpectedly')), 'connection');
  assert.equal(classify(new Error('a bug')), 'other');
  const wrapped = new Error('Failed query', { cause: Object.assign(new Error('x'), { code: '40001' }) });
  assert.equal(classify(wrapped), 'conflict');
  assert.equal(errorCode(Object.assign(new Error('x'), { code: 'P2010', meta: { code: '23505' } })).code, '23505');
});

test('an outcome has the keys of its settlement', () => {
  assert.deepEqual(complete({ a: 1 }).fields, { result: { a: 1 } });
  assert.deepEqual(snooze('5 min').fields, { delay: '5 min' });
  assert.deepEqual(reschedule({ at: new Date(0) }, { payload: 1 }).fields, {
    payload: 1,
    due_at: '1970-01-01T00:00:00.000Z',
  });
  assert.deepEqual(reject('no\0', { delay: 10 }).fields, { message: 'no', delay: '10 milliseconds' });
  assert.deepEqual(kill('gone', { details: [1] }).fields, { message: 'gone', details: [1] });
  assert.deepEqual(drop().fields, {});
});

test('an array of texts is quoted', () => {
  assert.equal(textArray(['a', 'b "c"', 'd\\']), '{"a","b \\"c\\"","d\\\\"}');
});

test('a payload is checked by any Standard Schema, and its input is what is stored', async () => {
  const day = defineTask('day', { schema: z.object({ at: z.string().transform((text) => new Date(text)) }) });
  const doc = await encode(day, { at: '2030-01-01' }, {});
  assert.deepEqual(doc.payload, { at: '2030-01-01' });
  assert.deepEqual(await decode(day, { at: '2030-01-01' }, 0), { at: new Date('2030-01-01') });
  const name = defineTask('name', { schema: v.object({ name: v.string() }) });
  await assert.rejects(encode(name, { name: 7 }, {}, ' at position 3'), (error: unknown) => {
    assert.ok(error instanceof InvalidPayloadError);
    assert.match(error.message, /task name at position 3 does not match its schema: name: /);
    return true;
  });
});

test('what JSON or PostgreSQL cannot hold is refused before it is sent', async () => {
  const any = defineTask('any');
  await assert.rejects(encode(any, { n: 1n }, {}), InvalidPayloadError);
  await assert.rejects(encode(any, { text: 'a\0' }, {}), InvalidPayloadError);
  await assert.rejects(encode(any, { ['a\ud800']: 1 }, {}), InvalidPayloadError);
  await encode(any, { text: 'a\\u0000 \ud83d\ude00' }, {});
});

test('options are the arguments of doc_put', async () => {
  const shared = defineTask('welcome', { queue: 'mail', version: 2 });
  const options = {
    subject: 's',
    delay: 1000,
    mode: 'debounce',
    orderingKey: 'k',
    maxAttempts: 3,
    priority: 4,
    expiresIn: '1 h',
    headers: { tenant: 7 },
    unique: { by: ['to'], per: '1 hour' },
  } as const;
  assert.deepEqual(await encode(shared, { to: 'ann' }, options), {
    queue: 'mail',
    subject: 's',
    payload: { to: 'ann' },
    headers: { tenant: 7, 'fetchq-task': 'welcome' },
    version: 2,
    delay: '1000 milliseconds',
    priority: 4,
    mode: 'debounce',
    ordering_key: 'k',
    max_attempts: 3,
    expires_in: '1 h',
    unique_by: ['to'],
    unique_per: '1 hour',
  });
});

test('payloads of older versions are upcast step by step', async () => {
  const task = defineTask<{ n: number[] }>('up', {
    version: 3,
    upcast: { 1: (old) => ({ n: [old] }), 2: (old) => ({ n: [...(old as { n: number[] }).n, 2] }) },
  });
  assert.deepEqual(versions(task), [3, 1, 2]);
  assert.deepEqual(await decode(task, 1, 1), { n: [1, 2] });
  await assert.rejects(decode(task, 1, 0), InvalidPayloadError);
  assert.throws(() => defineTask('gap', { version: 3, upcast: { 1: (old) => old } }), TypeError);
});
