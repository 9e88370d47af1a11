// fetchq through its package for TypeScript, with as many handlers at a time as jobs at a time.
import pg from 'pg';
import { defineTask, Fetchq, Worker } from '../../../clients/typescript/dist/index.js';
import { pgDriver } from '../../../clients/typescript/dist/pg.js';

export const QUEUE = 'jobs';
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

export default {
  async setup(url) {
    const { pool, fq } = open(url, 1);
    await pool.query('create extension fetchq');
    await fq.sync({ queues: { [QUEUE]: {} } });
    await pool.end();
  },
  producer,
  async worker(url, concurrency, handle) {
    const { pool, fq } = open(url);
    const worker = new Worker(fq, { concurrency });
    worker.handle(task, (job) => handle(job));
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
  },
};
