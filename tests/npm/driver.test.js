// Tests of the plain driver: parameters are bound, and values are stored as they are.
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { assertCounters, createDatabase, HOSTILE, HOSTILE_PAYLOAD, poll } from './support.js';

const base = await createDatabase('npm_driver');
const { one, all } = base;

describe('pg, with bound parameters', { timeout: 60_000 }, () => {
  after(() => base.drop());

  test('a hostile payload survives every kind of push, and three rounds', async () => {
    await one('select * from fetchq.queue_create($1)', ['q']);
    const payload = JSON.stringify(HOSTILE_PAYLOAD);
    const literal = (text) => `'${text.replaceAll("'", "''")}'`;
    assert.deepEqual(await one('select * from fetchq.doc_push($1, $2, $3)', ['q', 'push3', payload]), { queued_docs: 1 });
    assert.deepEqual(await one('select * from fetchq.doc_push($1, $2, $3::jsonb, $4)', ['q', 'push4', HOSTILE_PAYLOAD, new Date(0)]), { queued_docs: 1 });
    assert.deepEqual(await one('select * from fetchq.doc_push($1, $2, $3, $4, $5, $6)', ['q', 'push6', 0, 0, new Date(0), payload]), { queued_docs: 1 });
    assert.deepEqual(
      await one('select * from fetchq.doc_push($1, $2::int, $3, $4)', ['q', 0, new Date(0), `('list', 0, ${literal(payload)}, {DATA})`]),
      { queued_docs: 1 },
    );
    assert.deepEqual(await one('select * from fetchq.doc_upsert($1, $2, $3, $4, $5, $6)', ['q', 'upsert', 0, 0, new Date(0), payload]), { queued_docs: 1, updated_docs: 0 });
    const { subject } = await one('select * from fetchq.doc_append($1, $2)', ['q', payload]);
    assert.equal(typeof subject, 'string');

    for (let round = 1; round <= 3; round += 1) {
      const docs = await all('select * from fetchq.doc_pick($1, $2, $3, $4)', ['q', 0, 10, '5m']);
      assert.equal(docs.length, 6);
      for (const doc of docs) {
        assert.deepEqual(doc.payload, HOSTILE_PAYLOAD, `${doc.subject}, round ${round}`);
        assert.deepEqual(
          await one('select * from fetchq.doc_reschedule($1, $2, $3, $4)', ['q', doc.subject, new Date(0), doc.payload]),
          { affected_rows: 1 },
        );
      }
    }
    for (const row of await all('select subject, payload from fetchq_data.q__docs')) assert.deepEqual(row.payload, HOSTILE_PAYLOAD, row.subject);
    await assertCounters(base, 'q');
  });

  test('a hostile message survives three rounds', async () => {
    await one('select * from fetchq.queue_create($1)', ['m']);
    await one('select * from fetchq.doc_push($1, $2)', ['m', 's']);
    for (let round = 1; round <= 3; round += 1) {
      // A rejected document can be picked when its lease would have expired.
      await poll('it can be picked', async () => (await all('select * from fetchq.doc_pick($1, $2, $3, $4)', ['m', 0, 1, '500 ms'])).length === 1);
      const params = ['m', 's', HOSTILE, JSON.stringify(HOSTILE_PAYLOAD), HOSTILE];
      assert.deepEqual(await one('select * from fetchq.doc_reject($1, $2, $3, $4, $5)', params), { affected_rows: 1 });
      assert.deepEqual(await one('select * from fetchq.log_error($1, $2, $3, $4, $5)', params), { queued_logs: true });
    }
    const expected = { subject: 's', message: HOSTILE, details: HOSTILE_PAYLOAD, ref_id: HOSTILE };
    assert.deepEqual(await all('select subject, message, details, ref_id from fetchq_data.m__logs'), Array(6).fill(expected));
  });

  test('untyped parameters and literals resolve to a function', async () => {
    await one('select * from fetchq.queue_create($1)', ['untyped']);
    assert.deepEqual(await one("select * from fetchq.doc_push('untyped', 'a', '{}', '2020-01-01')"), { queued_docs: 1 });
    assert.deepEqual(await one('select * from fetchq.doc_push($1, $2, $3, $4)', ['untyped', 'b', {}, new Date(0)]), { queued_docs: 1 });
  });

  test('hostile subjects are stored as they are', async () => {
    await one('select * from fetchq.queue_create($1)', ['h']);
    const subjects = [`it's`, `''`, `"; drop table x; --`, `back\\slash`, `🦊`.repeat(50), ' ', '%s', '$1'];
    for (const subject of subjects) {
      assert.deepEqual(await one('select * from fetchq.doc_push($1, $2)', ['h', subject]), { queued_docs: 1 }, subject);
      assert.equal((await all('select * from fetchq.trace($1)', [subject])).length, 1, subject);
    }
    const docs = await all('select subject from fetchq.doc_pick($1, $2::int)', ['h', 100]);
    assert.deepEqual(docs.map(({ subject }) => subject), subjects);
    for (const subject of subjects) {
      assert.deepEqual(await one('select * from fetchq.doc_complete($1, $2)', ['h', subject]), { affected_rows: 1 }, subject);
    }
    await assertCounters(base, 'h');
  });

  test('pairs of apostrophes stay pairs, and errors and warnings name the cause', async () => {
    const session = await base.db.connect();
    const notices = [];
    const note = (notice) => notices.push(notice);
    session.on('notice', note);
    try {
      await session.query('select * from fetchq.queue_create($1)', ['plain']);
      await session.query('select * from fetchq.doc_push($1, $2, $3)', ['plain', 's', { text: "two '' and one '" }]);
      const { rows } = await session.query('select payload from fetchq.doc_pick($1)', ['plain']);
      assert.deepEqual(rows, [{ payload: { text: "two '' and one '" } }]);
      await assert.rejects(session.query('select * from fetchq.doc_complete($1, $2)', ['nowhere', 's']), { code: '42704', message: 'queue "nowhere" does not exist' });
      await session.query('set fetchq.strict = off');
      const gone = await session.query('select * from fetchq.doc_complete($1, $2)', ['nowhere', 's']);
      assert.deepEqual(gone.rows, [{ affected_rows: 0 }]);
      assert.deepEqual(notices.map(({ severity, code, message }) => ({ severity, code, message })), [
        { severity: 'WARNING', code: '42704', message: 'queue "nowhere" does not exist' },
      ]);
    } finally {
      session.off('notice', note);
      await session.query('reset fetchq.strict');
      session.release();
    }
  });
});
