// The npm client of fetchq 4, on the SQL of fetchq 4 that it installs. It pauses after each document
// for at least a millisecond, and for 250 by default.
import fetchq from 'fetchq';

const QUEUE = 'jobs';
const silent = () => {};
const logger = { instance: { error: console.error, info: silent, verbose: silent, debug: silent, silly: silent } };

export default {
  async setup(url) {
    const client = fetchq({ connectionString: url, logger, skipMaintenance: true, queues: [{ name: QUEUE, enableNotifications: true }] });
    await client.boot();
    await client.end();
  },
  async producer(url) {
    const client = fetchq({ connectionString: url, logger, skipMaintenance: true });
    await client.boot();
    let next = 0;
    return {
      one: (job) => client.doc.append(QUEUE, job),
      many: (jobs) => client.doc.pushMany(QUEUE, { docs: jobs.map((job) => [`bulk-${process.pid}-${(next += 1)}`, 0, job]) }),
      close: () => client.end(),
    };
  },
  async worker(url, concurrency, handle) {
    const client = fetchq({
      connectionString: url,
      logger,
      workers: [{
        queue: QUEUE,
        concurrency,
        batch: 10,
        delay: 1,
        handler: async (doc) => {
          handle(doc.payload);
          return doc.complete();
        },
      }],
    });
    await client.boot();
    return { stop: () => client.end() };
  },
};
