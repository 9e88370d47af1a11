// fetchq through its package for TypeScript, with as many handlers at a time as jobs at a time.
import pg from 'pg';
import { defineTask, Fetchq, Worker } from '../../../clients/typescript/dist/index.js';
import { pgDriver } from '../../../clients/typescript/dist/pg.js';

export const QUEUE = 'jobs';
// The size of the batches of those clients that handle batches.
export const BATCH = 100;
const task = defineTask(QUEUE);

function open(url, max) {
  const pool = new pg.Pool({ connectionString: url, max });
  return { pool, fq: new Fetchq(pgDriver(pool, { prepare: true })) };
}

export async function producer(url, clients) {
  const { pool, fq } = open(url, clients);
  return {
    one: (job) => fq.put(task, job),
    many: (jobs) => fq.putMany(task, jobs.map((payload) => ({ payload }))),
    close: () => pool.end(),
  };
}

/** Starts a worker. `register` gives it its handler. */
export async function work(url, concurrency, register) {
  const { pool, fq } = open(url);
  const worker = new Worker(fq, { concurrency });
  register(worker, task);
  worker.done.catch((error) => {
    console.error(error.message);
    process.exit(1);
  });
  await worker.start();
  return {
    async stop() {
      await worker.stop();
      await pool.end();
    },
  };
}

export default {
  async setup(url) {
    const { pool, fq } = open(url, 1);
    await pool.query('create extension fetchq');
    await fq.sync({ queues: { [QUEUE]: {} } });
    await pool.end();
  },
  producer,
  worker: (url, concurrency, handle) =>
    work(url, concurrency, (worker, task) => worker.handle(task, (job) => handle(job))),
};
