// A worker for the queue `jobs`, until SIGTERM:  DATABASE_URL=… node node-worker.mjs
import { defineTask, Fetchq, Worker } from '@fetchq/client';
import { pgDriver } from '@fetchq/client/pg';
import pg from 'pg';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const worker = new Worker(new Fetchq(pgDriver(pool)));

worker.handleTx(defineTask('jobs', { lease: '1 min' }), async (payload, { subject, tx }) => {
  if (payload.fail) throw new Error(payload.fail);
  await tx.query('insert into results (subject, result) values ($1, $2)', [subject, { worked: true }]);
});

await worker.run({ signals: ['SIGTERM', 'SIGINT'] });
await pool.end();
