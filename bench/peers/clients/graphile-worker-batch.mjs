// graphile-worker with the settings of its page about performance: jobs are fetched 500 at a time,
// and completed together.
import { make } from './graphile-worker.mjs';

export default make({ localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 });
