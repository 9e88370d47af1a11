// pg-boss. A worker that fetches one job at a time does not look again before 0.5 seconds, so it
// fetches batches, and looks again at once while they are full. A new job wakes it by NOTIFY.
import { PgBoss } from 'pg-boss';

const QUEUE = 'jobs';

async function start(url, settings = {}) {
  const boss = new PgBoss({ connectionString: url, ...settings });
  boss.on('error', (error) => console.error(error.message));
  await boss.start();
  return boss;
}

export default {
  async setup(url) {
    const boss = await start(url, { supervise: false, schedule: false });
    await boss.createQueue(QUEUE, { notify: true });
    await boss.stop({ graceful: false });
  },
  async producer(url) {
    const boss = await start(url, { supervise: false, schedule: false });
    return {
      one: (job) => boss.send(QUEUE, job),
      many: (jobs) => boss.insert(QUEUE, jobs.map((data) => ({ data }))),
      close: () => boss.stop({ graceful: false }),
    };
  },
  async worker(url, concurrency, handle) {
    const boss = await start(url, { useListenNotify: true });
    await boss.work(
      QUEUE,
      { localConcurrency: concurrency, batchSize: 100, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
      async (jobs) => {
        for (const { data } of jobs) handle(data);
      },
    );
    return { stop: () => boss.stop({ graceful: true, timeout: 3000 }) };
  },
};
