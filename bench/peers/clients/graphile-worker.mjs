// graphile-worker with its default settings: each job is fetched and completed by itself.
import { Logger, makeWorkerUtils, run, runMigrations } from 'graphile-worker';

const logger = new Logger(() => (level, message) => {
  if (level === 'error') console.error(message);
});

/** Makes a client with more settings of the worker. */
export function make(more = {}) {
  const preset = (connectionString) => ({ worker: { connectionString, logger, ...more } });
  return {
    setup: (url) => runMigrations({ preset: preset(url) }),
    async producer(url) {
      const utils = await makeWorkerUtils({ preset: preset(url) });
      return {
        one: (job) => utils.addJob('job', job),
        many: (jobs) => utils.addJobs(jobs.map((job) => ({ identifier: 'job', payload: job }))),
        close: () => utils.release(),
      };
    },
    async worker(url, concurrency, handle) {
      const settings = preset(url);
      settings.worker.concurrentJobs = concurrency;
      const runner = await run({
        preset: settings,
        taskList: { job: async (job) => handle(job) },
        parsedCronItems: [],
        noHandleSignals: true,
      });
      return { stop: () => runner.stop() };
    },
  };
}

export default make();
