import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

for (const page of ['readme', 'guide']) {
  test(`the code of the ${page} runs`, () => {
    const program = fileURLToPath(new URL(`../pages/${page}.js`, import.meta.url));
    const { status, stderr, signal } = spawnSync(process.execPath, [program], { encoding: 'utf8', timeout: 60_000 });
    assert.deepEqual([status, signal], [0, null], stderr);
  });
}
