// A worker: waits for documents of a queue, works on them one at a time, settles them.
//
//   node node-worker.mjs QUEUE [NAME]
//
// DATABASE_URL: the server. LEASE: for how many seconds a document is ours (60), GRACE:
// how many a job has left after SIGTERM (25). Cut `job` out and write your own.
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
// Whose documents these are; when this session dies they are free at once.
await db.query(`select set_config('fetchq.worker', $1, false), set_config('fetchq.session_leases', 'return', false)`, [name]);
const started = (await db.query('select clock_timestamp()::text as now')).rows[0].now;

// SIGTERM, or somebody called worker_stop(): no more documents, and little time.
let ending = false;
let current; // of the job that runs: aborts it
function end() {
  if (ending) return;
  ending = true;
  setTimeout(() => current?.abort(), GRACE * 1000).unref();
}
process.on('SIGTERM', end).on('SIGINT', end);

// Extends the lease now and then; aborts the job when the document is not ours any more.
function keep({ subject, lease }, controller) {
  const extend = async () => {
    const { rows } = await db.query(
      'select next_iteration, stop from fetchq.doc_extend($1, $2, make_interval(secs => $3), $4)',
      [queue, subject, LEASE, lease],
    );
    if (rows[0].next_iteration === null) controller.abort(); // cancelled
    else if (rows[0].stop) end();
  };
  return setInterval(() => extend().catch((error) => {
    console.error(`${subject}: the lease can not be extended: ${error.message}`);
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
    // Back at once, as if it had not been picked.
    await db.query('select fetchq.doc_snooze($1, $2, now(), $3)', [queue, doc.subject, doc.lease]);
  } else {
    // Tried again later, by the queue's retry policy.
    await db.query('select fetchq.doc_reject($1, $2, left($3, 255), $4, lease => $5)', [queue, doc.subject, failure.message, { worker: name }, doc.lease]);
  }
}

async function isStopped() {
  const { rows } = await db.query('select from fetchq.stop_requests where name = $1 and since >= $2::timestamptz', [name, started]);
  return rows.length > 0;
}

while (!ending && !(await isStopped())) {
  const { rows } = await db.query('select subject, payload, lease from fetchq.doc_pick($1, 0, 1, make_interval(secs => $2))', [queue, LEASE]);
  if (rows.length === 0) {
    // Without a snapshot; short, because a signal is seen only in between.
    await db.query(`call fetchq.queue_wait($1::text, '2 s')`, [queue]);
    continue;
  }
  try {
    await work(rows[0]);
  } catch (error) {
    await db.query('rollback');
    // Somebody cancelled it, or has it now: what we did is undone.
    if (error.code !== LEASE_LOST) throw error;
    console.error(error.message);
  }
}
await db.end();
