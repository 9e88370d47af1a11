// The published clients, each with the version of fetchq for which it was built.
import assert from 'node:assert/strict';
import fetchq411 from 'fetchq-411';
import fetchq420 from 'fetchq-420';
import { poll } from './support.js';

export const CLIENTS = {
  '4.1.1': { create: fetchq411, compat: '4.0.0' },
  '4.2.0': { create: fetchq420, compat: '4.0.2' },
};

/** Makes a logger that collects the messages of the client. */
function recorder() {
  const lines = [];
  const log = (level) => (...args) => lines.push({ level, text: args.map((a) => a?.message ?? String(a)).join(' ') });
  return {
    lines,
    errors: () => lines.filter((line) => line.level === 'error').map((line) => line.text),
    ...Object.fromEntries(['error', 'info', 'verbose', 'debug', 'silly'].map((level) => [level, log(level)])),
  };
}

/** Makes a client that ends with the test. It has few retries, so that it fails soon. */
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
  // A test may have ended it.
  t.after(() => client.pool?.ended || client.end());
  return Object.assign(client, { log });
}

/** Starts a client. It must log no error until the test ends, unless `mayFail` is set. */
export async function bootClient(t, version, url, settings = {}, { mayFail = false } = {}) {
  const client = makeClient(t, version, url, settings);
  await client.boot();
  if (!mayFail) t.after(() => assert.deepEqual(client.log.errors(), []));
  return client;
}

/** Waits until all earlier notifications have reached the client. */
export async function notified(client) {
  const channel = `probe_${Math.random().toString(36).slice(2)}`;
  let back = false;
  // One connection listens and notifies, so the order is kept.
  client.once(channel, () => (back = true));
  await client.emit(channel, { probe: true });
  await poll('the client hears its own notification', () => back);
}

/**
 * Waits until every running worker sleeps. A notification wakes a worker that sleeps, but is lost
 * while a worker picks documents.
 */
export async function asleep(client) {
  await notified(client);
  const sleeps = ({ id, timer }) => {
    const last = client.log.lines.findLast(({ text }) => text.includes(`[PICK] ${id} `) || text.includes(`job worker ${id}`));
    return timer !== null && last?.text.includes('[PICK]'); // The pick returned nothing.
  };
  await poll('the workers sleep', () => client.workers.workers.filter(({ isRunning }) => isRunning).every(sleeps));
}
