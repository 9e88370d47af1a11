// Makes a program of the code of each page: its `ts` blocks, and what its comments `<!-- run: … -->` add, in order.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';

const guides = '../../docs/guides';
const pages = { readme: 'README.md', guide: `${guides}/typescript.md`, recipes: `${guides}/recipes.md` };
rmSync('tests/pages', { recursive: true, force: true });
mkdirSync('tests/pages', { recursive: true });
for (const [name, page] of Object.entries(pages)) {
  const imports = new Set(["import assert from 'node:assert/strict';"]);
  const lines = [];
  for (const [, block, added] of readFileSync(page, 'utf8').matchAll(/^```ts\n(.*?)^```$|^<!-- run: (.*?) -->$/gms)) {
    for (const line of (block ?? added).split('\n')) {
      if (line.startsWith('import ')) imports.add(line);
      else lines.push(line);
    }
  }
  writeFileSync(`tests/pages/${name}.ts`, `// Made of ${page}.\n${[...imports, ...lines].join('\n')}\n`);
}
