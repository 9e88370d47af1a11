// fetchq through its package for TypeScript, with handlers that get batches.
import single, { BATCH, producer, work } from './fetchq-node.mjs';

export default {
  setup: single.setup,
  producer,
  worker: (url, concurrency, handle) =>
    work(url, concurrency * BATCH, (worker, task) => {
      const all = (docs) => {
        for (const { payload } of docs) handle(payload);
      };
      worker.handleBatch(task, all, { size: BATCH, concurrency });
    }),
};
