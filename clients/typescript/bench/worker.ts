// The worker with an empty handler against the bare loop around docs_next, in turns on the same server.
//
//   node out/bench/worker.js [DOCUMENTS] [ROUNDS]
import pg from 'pg';
import { Fetchq, Worker, defineTask } from '@fetchq/client';
import { pgDriver } from '@fetchq/client/pg';

const documents = Number(process.argv[2] ?? 20_000);
const rounds = Number(process.argv[3] ?? 5);
const concurrency = Number(process.env['CONCURRENCY'] ?? 100);
const queue = 'bench_ts';
const pool = new pg.Pool({ max: 10 });
const fq = new Fetchq(pgDriver(pool, { prepare: true }));
const task = defineTask(queue);

async function fill(): Promise<void> {
  await fq.sync({ queues: { [queue]: {} } });
  await pool.query('select fetchq.queue_truncate($1, empty => true)', [queue]);
  await pool.query(
    'select count(*) from fetchq.doc_append_many($1, array(select jsonb_build_object($2::text, i) from generate_series(1, $3::int) i))',
    [queue, 'n', documents],
  );
}

/** What a program does that calls docs_next by itself. */
async function loop(): Promise<number> {
  const client = await pool.connect();
  const from = performance.now();
  let settlements: unknown[] = [];
  for (let done = 0; ;) {
    const { rows } = await client.query<{ subject: string; lease: string }>({
      name: 'next',
      text: 'select subject, payload, attempts, lease from fetchq.docs_next($1, $2, $3, worker => $4)',
      values: [queue, JSON.stringify(settlements), concurrency, 'loop'],
    });
    if (rows.length === 0 && done >= documents) break;
    settlements = rows.map(({ subject, lease }) => ({ subject, lease, action: 'complete' }));
    done += rows.length;
  }
  client.release();
  return documents / ((performance.now() - from) / 1000);
}

async function worker(): Promise<number> {
  let left = documents;
  const runner = new Worker(fq, { concurrency });
  let end = (): void => undefined;
  const all = new Promise<void>((resolve) => {
    end = resolve;
  });
  runner.handle(task, () => {
    if (--left === 0) end();
  });
  const from = performance.now();
  await runner.start();
  await all;
  await runner.stop();
  return documents / ((performance.now() - from) / 1000);
}

const ratios: number[] = [];
for (let round = 0; round < rounds; round++) {
  const result: Record<string, number> = {};
  for (const [name, run] of round % 2 === 0
    ? ([
        ['loop', loop],
        ['worker', worker],
      ] as const)
    : ([
        ['worker', worker],
        ['loop', loop],
      ] as const)) {
    await fill();
    result[name] = await run();
  }
  const ratio = (result['worker'] ?? 0) / (result['loop'] ?? 1);
  ratios.push(ratio);
  console.log(
    `loop ${Math.round(result['loop'] ?? 0)}/s, worker ${Math.round(result['worker'] ?? 0)}/s, ratio ${ratio.toFixed(2)}`,
  );
}
ratios.sort((a, b) => a - b);
console.log(`median of the ratios: ${(ratios[ratios.length >> 1] ?? 0).toFixed(2)}`);
await pool.end();
