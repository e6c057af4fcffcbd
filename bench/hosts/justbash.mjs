// just-bash over a tree that it holds in its memory.
//
//     node justbash.mjs DIRECTORY-OF-node_modules TREE
//
// {"do": "shell", "line": "grep -r …"} runs one line of its shell at the top of the tree.
import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, tree] = process.argv.slice(2);
const entry = join(modules, "just-bash", "dist", "bundle", "index.js");
const { Bash } = await import(pathToFileURL(entry));

const files = {};
for (const found of readdirSync(tree, { recursive: true, withFileTypes: true })) {
  if (!found.isFile()) continue;
  const path = join(found.parentPath, found.name);
  files[join("/tree", relative(tree, path))] = readFileSync(path);
}
const none = Number.MAX_SAFE_INTEGER;
const bash = new Bash({
  files,
  cwd: "/tree",
  executionLimits: {
    maxCommandCount: none,
    maxExecutionTimeMs: Infinity,
    maxFileSystemBytes: none,
    maxOutputSize: none,
  },
});
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  const start = process.hrtime.bigint();
  const { stdout, stderr, exitCode } = await bash.exec(JSON.parse(line).line);
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;
  if (exitCode > 1 || stderr) say({ error: `exit ${exitCode}: ${stderr.slice(0, 200)}` });
  else say({ seconds, lines: stdout.split("\n").length - 1 });
}
