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
const LEASE_LOST = '55000';

// The work. It stops when the signal is aborted.
async function job(payload, signal) {
  await sleep((payload.sleep ?? 0) * 1000, null, { signal });
  if (payload.fail) throw new Error(payload.fail);
  return { worked: true };
}

const db = new pg.Client({ connectionString: DATABASE_URL });
await db.connect();
// The leases carry this worker's name. They end when this session ends.
await db.query(`select set_config('fetchq.worker', $1, false), set_config('fetchq.session_leases', 'return', false)`, [name]);
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
      'select next_iteration, stop from fetchq.doc_extend($1, $2, make_interval(secs => $3), $4)',
      [queue, subject, LEASE, lease],
    );
    if (rows[0].next_iteration === null) controller.abort(); // The document was cancelled.
    else if (rows[0].stop) end();
  };
  return setInterval(() => extend().catch((error) => {
    console.error(`${subject}: the lease cannot be extended: ${error.message}`);
    controller.abort();
  }), (LEASE / 3) * 1000);
}

// Works on a document and settles it.
async function work(doc) {
  current = new AbortController();
  const heartbeat = keep(doc, current);
  let result;
  let failure;
  try {
    result = await job(doc.payload, current.signal);
  } catch (error) {
    failure = error;
  } finally {
    clearInterval(heartbeat);
  }
  if (!failure) {
    // The results and the settling are one transaction: both, or neither.
    await db.query('begin');
    await db.query('insert into results (subject, result) values ($1, $2)', [doc.subject, JSON.stringify(result)]);
    await db.query('select fetchq.doc_complete($1, $2, lease => $3)', [queue, doc.subject, doc.lease]);
    await db.query('commit');
  } else if (current.signal.aborted) {
    // The document is ready again at once, and the attempt does not count.
    await db.query('select fetchq.doc_snooze($1, $2, now(), $3)', [queue, doc.subject, doc.lease]);
  } else {
    // The document is retried by the retry policy of the queue.
    await db.query('select fetchq.doc_reject($1, $2, left($3, 2000), $4, lease => $5)', [queue, doc.subject, failure.message, { worker: name }, doc.lease]);
  }
}

async function isStopped() {
  const { rows } = await db.query('select fetchq.worker_stop_requested($1, $2, $3::timestamptz) as yes', [queue, name, started]);
  return rows[0].yes;
}

while (!ending && !(await isStopped())) {
  const { rows } = await db.query('select subject, payload, lease from fetchq.doc_pick($1, 0, 1, make_interval(secs => $2))', [queue, LEASE]);
  if (rows.length === 0) {
    // The wait holds no snapshot. It is short, because a stop request is read only between waits.
    await db.query(`call fetchq.queue_wait($1, '2 s')`, [[queue]]);
    continue;
  }
  try {
    await work(rows[0]);
  } catch (error) {
    await db.query('rollback');
    // The document was cancelled, or another worker has it now. The results are rolled back.
    if (error.code !== LEASE_LOST) throw error;
    console.error(error.message);
  }
}
await db.end();
