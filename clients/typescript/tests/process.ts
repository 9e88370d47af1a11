// A worker in a process of its own: process.js QUEUE [LEASE]
import pg from 'pg';
import { Fetchq, Worker, defineTask } from '@fetchq/client';
import { pgDriver } from '@fetchq/client/pg';

const [queue = '', lease = '1 min'] = process.argv.slice(2);
const pool = new pg.Pool();
const worker = new Worker(new Fetchq(pgDriver(pool)), { grace: '20 s' });
worker.handle(
  defineTask<{ ms: number }>(queue),
  async ({ ms }, { subject, signal }) => {
    console.log(`began ${subject}`);
    await new Promise<void>((resolve, reject) => {
      setTimeout(resolve, ms);
      signal.addEventListener('abort', () => {
        reject(signal.reason as Error);
      });
    });
  },
  { lease },
);
const run = worker.run({ signals: ['SIGTERM'] });
await worker.start();
console.log('started');
await run;
await pool.end();
