// A worker: it waits for documents of a queue, works on them one at a time, and settles them.
//
//   node node-worker.mjs QUEUE [NAME]
//
// DATABASE_URL names the server. LEASE is the lease duration in seconds (60). GRACE is the time
// in seconds that a job has left after SIGTERM (25). Replace the function `job` with your own.
import { setTimeout as sleep } from 'node:timers/promises';
import { format } from 'node:util';
import pg from 'pg';

const [queue, name = `node-${process.pid}`] = process.argv.slice(2);
const { DATABASE_URL, LEASE = 60, GRACE = 25 } = process.env;
const duration = `${LEASE} seconds`;

// The work. It stops when the signal is aborted.
async function job(payload, signal) {
  await sleep((payload.sleep ?? 0) * 1000, null, { signal });
  if (payload.fail) throw new Error(payload.fail);
  return { worked: true };
}

const db = new pg.Client({ connectionString: DATABASE_URL });
await db.connect();
const started = (await db.query('select clock_timestamp()::text as now')).rows[0].now;

// After SIGTERM, or a call of worker_stop(), the worker picks no more documents, and the
// running job has GRACE seconds left.
let ending = false;
let current; // The AbortController of the running job.
function end() {
  if (ending) return;
  ending = true;
  setTimeout(() => current?.abort(), GRACE * 1000).unref();
}
process.on('SIGTERM', end).on('SIGINT', end);

// Extends the lease regularly, and aborts the job when the lease is lost.
function keep({ subject, lease }, controller) {
  const extend = async () => {
    const { rows } = await db.query(
      'select next_iteration, stop from fetchq.doc_extend($1, $2, $3, $4)',
      [queue, subject, duration, lease],
    );
    if (rows[0].next_iteration === null) controller.abort(); // The document was cancelled.
    else if (rows[0].stop) end();
  };
  return setInterval(() => extend().catch((error) => {
    console.error(`${subject}: the lease cannot be extended: ${error.message}`);
    controller.abort();
  }), (LEASE / 3) * 1000);
}

// Settles documents, and leases at most `max` other ones: one call, one transaction. The lease carries
// this worker's name, and ends when this session ends. It fails when a lease was lost.
// A statement with a name is parsed once. Leave out the name behind a pooler that cannot keep it.
async function next(settlements, max) {
  const { rows } = await db.query({
    name: 'next',
    text: `select subject, payload, lease from fetchq.docs_next($1, $2, $3, $4,
      worker => $5, binding => 'return', on_lost => 'error')`,
    values: [queue, JSON.stringify(settlements), max, duration, name],
  });
  return rows[0];
}

// Settles a document, and returns the next one. The results and the settling are one transaction:
// both, or neither.
async function settle(settlement, max, result) {
  await db.query('begin');
  try {
    if (result) {
      await db.query('insert into results (subject, result) values ($1, $2)', [settlement.subject, JSON.stringify(result.value)]);
    }
    const doc = await next([settlement], max);
    await db.query('commit');
    return doc;
  } catch (error) {
    await db.query('rollback');
    throw error;
  }
}

// What the document keeps of an error, whatever was thrown: PostgreSQL stores neither a NUL nor half
// a character. fetchq cuts a message that is too long.
function text(error) {
  return format('%s', error?.message ?? error).replaceAll('\0', '').replace(/\p{Surrogate}/gu, '\ufffd');
}

// The settlement of a document that has failed. It is retried by the retry policy of the queue.
const reject = (mine, error) => ({ ...mine, action: 'reject', message: text(error), details: { worker: name } });

// Whether fetchq says that the lease was lost: the document was cancelled, or another worker has it
// now. SQL of your own can raise that SQLSTATE, too, but then the routine is another one.
const isLost = (error) => error.code === '55000' && error.routine === 'fetchq';

// Works on a document, settles it, and returns the next one.
async function work(doc) {
  current = new AbortController();
  const heartbeat = keep(doc, current);
  const mine = { subject: doc.subject, lease: doc.lease };
  let settlement;
  let result;
  try {
    result = { value: await job(doc.payload, current.signal) };
    settlement = { ...mine, action: 'complete' };
  } catch (error) {
    // After an abort the document is ready again at once, and the attempt does not count.
    settlement = current.signal.aborted ? { ...mine, action: 'snooze' } : reject(mine, error);
  } finally {
    clearInterval(heartbeat);
  }
  try {
    return await settle(settlement, ending ? 0 : 1, result);
  } catch (error) {
    console.error(`${doc.subject}: ${error.message}`);
  }
  // Perhaps it was the next document that could not be leased. So settle this one alone. The next
  // call leases alone, and its error ends the worker.
  try {
    return await settle(settlement, 0, result);
  } catch (error) {
    // The results cannot be written, or the lease was lost, which the rejection tells.
    settlement = reject(mine, error);
  }
  try {
    return await settle(settlement, 0);
  } catch (error) {
    if (!isLost(error)) throw error;
  }
}

// Asks, once a second, whether worker_stop() was called for this worker.
let asked = 0;
async function askStop() {
  if (Date.now() - asked < 1000) return;
  asked = Date.now();
  const { rows } = await db.query('select fetchq.worker_stop_requested($1, $2, $3::timestamptz) as yes', [queue, name, started]);
  if (rows[0].yes) end();
}

let doc;
for (await askStop(); !ending; await askStop()) {
  doc = doc ? await work(doc) : await next([], 1);
  // The wait holds no snapshot. It is short, because a stop request is read only between waits.
  if (!doc && !ending) await db.query(`call fetchq.queue_wait($1, '1 s')`, [[queue]]);
}
if (doc) {
  // Hands back the document that was leased last: the work on it has not begun.
  const unworked = [{ subject: doc.subject, lease: doc.lease, action: 'snooze' }];
  await db.query('select outcome from fetchq.docs_settle($1, $2)', [queue, JSON.stringify(unworked)]);
}
await db.end();
