// The published clients, each with the version of fetchq that it was built for.
import assert from 'node:assert/strict';
import fetchq411 from 'fetchq-411';
import fetchq420 from 'fetchq-420';
import { poll } from './support.js';

export const CLIENTS = {
  '4.1.1': { create: fetchq411, compat: '4.0.0' },
  '4.2.0': { create: fetchq420, compat: '4.0.2' },
};

/** Collects what the client logs. */
function recorder() {
  const lines = [];
  const log = (level) => (...args) => lines.push({ level, text: args.map((a) => a?.message ?? String(a)).join(' ') });
  return {
    lines,
    errors: () => lines.filter((line) => line.level === 'error').map((line) => line.text),
    ...Object.fromEntries(['error', 'info', 'verbose', 'debug', 'silly'].map((level) => [level, log(level)])),
  };
}

/** A client that ends with the test. Retries are few, so that a failure shows soon. */
export function makeClient(t, { create }, url, settings = {}) {
  const log = recorder();
  const client = create({
    connectionString: url,
    logger: { instance: log },
    skipMaintenance: true,
    connectionRetry: { retries: 2, minTimeout: 50 },
    initializationRetry: { retries: 0 },
    ...settings,
  });
  t.after(() => client.end());
  return Object.assign(client, { log });
}

/** A client that runs; it must log no error until the test ends, unless `mayFail`. */
export async function bootClient(t, version, url, settings = {}, { mayFail = false } = {}) {
  const client = makeClient(t, version, url, settings);
  await client.boot();
  if (!mayFail) t.after(() => assert.deepEqual(client.log.errors(), []));
  return client;
}

/** Waits until everything notified so far has reached the client. */
export async function notified(client) {
  const channel = `probe_${Math.random().toString(36).slice(2)}`;
  let back = false;
  // One connection listens and notifies, in order.
  client.once(channel, () => (back = true));
  await client.emit(channel, { probe: true });
  await poll('the client hears its own notification', () => back);
}

/**
 * Waits until every running worker sleeps: a notification wakes a worker that sleeps,
 * and is lost on one that is just asking for documents.
 */
export async function asleep(client) {
  await notified(client);
  const sleeps = ({ id, timer }) => {
    const last = client.log.lines.findLast(({ text }) => text.includes(`[PICK] ${id} `) || text.includes(`job worker ${id}`));
    return timer !== null && last?.text.includes('[PICK]'); // and it got nothing
  };
  await poll('the workers sleep', () => client.workers.workers.filter(({ isRunning }) => isRunning).every(sleeps));
}
