// fetchq through examples/node-worker.mjs. It works on one document at a time, so the worker process
// runs as many copies of it as jobs at a time. Two parts differ: the job does nothing, and as it has
// no results, the document is completed without a transaction around a row of results.
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import pg from 'pg';

export const QUEUE = 'jobs';

/** Replaces a part of the example, which must be there. */
function replace(text, part, by) {
  if (!part.test(text)) throw new Error(`examples/node-worker.mjs has changed: no ${part}`);
  return text.replace(part, () => by);
}

export async function producer(url, clients) {
  const pool = new pg.Pool({ connectionString: url, max: clients });
  return {
    one: (job) => pool.query('select fetchq.doc_append($1, $2)', [QUEUE, job]),
    many: (jobs) => pool.query('select count(*) from fetchq.doc_append_many($1, $2)', [QUEUE, jobs.map((job) => JSON.stringify(job))]),
    close: () => pool.end(),
  };
}

export default {
  async setup(url) {
    const db = new pg.Client({ connectionString: url });
    await db.connect();
    await db.query('create extension fetchq');
    await db.query('select fetchq.queue_create($1)', [QUEUE]);
    await db.end();
  },
  producer,
  async worker(url, concurrency, handle) {
    let text = await readFile(new URL('../../../examples/node-worker.mjs', import.meta.url), 'utf8');
    text = replace(text, /^async function job\(.*?^}$/ms, 'const job = async (payload) => globalThis.benchHandle(payload);');
    text = replace(text, /^ *await db\.query\('begin'\);\n *await db\.query\('insert into results.*\n/m, '');
    text = replace(text, /^ *await db\.query\('commit'\);\n/m, '');
    // The folder is one that git ignores, and from which `pg` is found.
    const folder = new URL('../node_modules/.fetchq-example/', import.meta.url);
    await mkdir(folder, { recursive: true });
    const file = new URL(`node-worker-${process.pid}.mjs`, folder);
    await writeFile(file, text);

    globalThis.benchHandle = handle;
    process.argv.splice(2, process.argv.length, QUEUE);
    const before = new Set(process.listeners('SIGTERM'));
    // Each import is a module of its own, which ends when its worker has stopped.
    const running = Array.from({ length: concurrency }, (_, i) => import(`${file.href}?${i}`));
    const failed = Promise.all(running);
    failed.catch((error) => {
      console.error(error.message);
      process.exit(1);
    });
    while (process.listeners('SIGTERM').length < before.size + concurrency) await new Promise((next) => setTimeout(next, 10));
    return {
      async stop() {
        process.emit('SIGTERM');
        await failed;
      },
    };
  },
};
