// fetchq through the loop in one call of docs/guides/workers.md: `docs_next` settles a batch of
// documents and leases the next one.
import pg from 'pg';
import single, { BATCH, producer, QUEUE } from './fetchq-node.mjs';

export default {
  setup: single.setup,
  producer,
  async worker(url, concurrency, handle) {
    let ending = false;
    async function loop() {
      const db = new pg.Client({ connectionString: url });
      await db.connect();
      let settlements = [];
      while (!ending) {
        const { rows } = await db.query(
          'select subject, payload, lease from fetchq.docs_next($1, $2, max_docs => $3)',
          [QUEUE, JSON.stringify(settlements), BATCH],
        );
        settlements = rows.map(({ subject, payload, lease }) => {
          handle(payload);
          return { subject, lease, action: 'complete' };
        });
        if (rows.length === 0) await db.query(`call fetchq.queue_wait($1, '1 s')`, [[QUEUE]]);
      }
      await db.query('select count(*) from fetchq.docs_settle($1, $2)', [QUEUE, JSON.stringify(settlements)]);
      await db.end();
    }
    const running = Promise.all(Array.from({ length: concurrency }, loop));
    running.catch((error) => {
      console.error(error.message);
      process.exit(1);
    });
    return {
      async stop() {
        ending = true;
        await running;
      },
    };
  },
};
