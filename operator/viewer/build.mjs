// Builds the page into dist/. Equal sources give equal bytes. The first line of app.js is a checksum of the sources,
// with which a test of kubectl-grpo finds a dist/ that was not built again.

import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync, writeFileSync, mkdirSync, copyFileSync } from "node:fs";
import { join } from "node:path";

/** Every file that decides the result, in order, as paths with `/`. */
function sources(folder) {
  const names = readdirSync(folder).sort();
  return names.flatMap((name) => {
    const path = `${folder}/${name}`;
    return statSync(path).isDirectory() ? sources(path) : [path];
  });
}

const hash = createHash("sha256");
for (const path of ["build.mjs", "package-lock.json", ...sources("src")]) {
  const bytes = readFileSync(path);
  hash.update(`${path}\n${bytes.length}\n`);
  hash.update(bytes);
}
const stamp = hash.digest("hex");

mkdirSync("dist", { recursive: true });
await build({
  entryPoints: { app: "src/main.tsx" },
  outdir: "dist",
  bundle: true,
  minify: true,
  target: "es2022",
  format: "iife",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "eof",
  banner: { js: `// sources ${stamp}` },
  logLevel: "warning",
});
copyFileSync(join("src", "index.html"), join("dist", "index.html"));
writeFileSync(join("dist", ".gitattributes"), "* -diff linguist-generated\n");
