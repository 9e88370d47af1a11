// A worker: it waits for documents of a queue, works on them one at a time, and settles them.
//
//   node node-worker.mjs QUEUE [NAME]
//
// DATABASE_URL names the server. LEASE is the lease duration in seconds (60). GRACE is the time
// in seconds that a job has left after SIGTERM (25). Replace the function `job` with your own.
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

const [queue, name = `node-${process.pid}`] = process.argv.slice(2);
const { DATABASE_URL, LEASE = 60, GRACE = 25 } = process.env;
const duration = `${LEASE} seconds`;
const LEASE_LOST = '55000';

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

// Settles documents, and leases the next one: one call, one transaction. The lease carries this
// worker's name, and ends when this session ends. It fails when a lease was lost.
// A statement with a name is parsed once. Leave out the name behind a pooler that cannot keep it.
async function next(settlements) {
  const { rows } = await db.query({
    name: 'next',
    text: `select subject, payload, lease from fetchq.docs_next($1, $2, $3, $4,
      worker => $5, binding => 'return', on_lost => 'error')`,
    values: [queue, JSON.stringify(settlements), ending ? 0 : 1, duration, name],
  });
  return rows[0];
}

// Works on a document, settles it, and returns the next one.
async function work(doc) {
  current = new AbortController();
  const heartbeat = keep(doc, current);
  const settlement = { subject: doc.subject, lease: doc.lease };
  let result;
  let failure;
  try {
    result = await job(doc.payload, current.signal);
  } catch (error) {
    failure = error;
  } finally {
    clearInterval(heartbeat);
  }
  if (failure) {
    return next([current.signal.aborted
      // The document is ready again at once, and the attempt does not count.
      ? { ...settlement, action: 'snooze' }
      // The document is retried by the retry policy of the queue.
      : { ...settlement, action: 'reject', message: failure.message, details: { worker: name } }]);
  }
  // The results and the settling are one transaction: both, or neither.
  await db.query('begin');
  await db.query('insert into results (subject, result) values ($1, $2)', [doc.subject, JSON.stringify(result)]);
  const following = await next([{ ...settlement, action: 'complete' }]);
  await db.query('commit');
  return following;
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
  try {
    doc = doc ? await work(doc) : await next([]);
  } catch (error) {
    await db.query('rollback');
    // The document was cancelled, or another worker has it now. The results are rolled back.
    if (error.code !== LEASE_LOST) throw error;
    console.error(error.message);
    doc = undefined;
  }
  // The wait holds no snapshot. It is short, because a stop request is read only between waits.
  if (!doc && !ending) await db.query(`call fetchq.queue_wait($1, '1 s')`, [[queue]]);
}
if (doc) {
  // Hands back the document that was leased last: the work on it has not begun.
  const unworked = [{ subject: doc.subject, lease: doc.lease, action: 'snooze' }];
  await db.query('select outcome from fetchq.docs_settle($1, $2)', [queue, JSON.stringify(unworked)]);
}
await db.end();
