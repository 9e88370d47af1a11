// The tests that both published clients must pass.
import { after, describe } from 'node:test';
import { api } from './api.js';
import { CLIENTS } from './client.js';
import { gate } from './gate.js';
import { createDatabase } from './support.js';
import { workers } from './workers.js';

export async function run(name) {
  const version = CLIENTS[name];
  const base = await createDatabase(`npm_${name.replaceAll('.', '')}`, {
    'fetchq.compat': name,
  });
  // A test that hangs must not prevent the other tests from running.
  describe(`fetchq ${name}`, () => {
    describe('version gate', { timeout: 60_000 }, () => gate(name, version, base));
    describe('calls', { timeout: 60_000 }, () => api(version, base));
    describe('workers', { timeout: 90_000 }, () => workers(version, base));
    after(() => base.drop());
  });
}
