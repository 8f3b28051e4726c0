// Bundles the front end into the Python package (or --out FILE), or the tests into build/.
import { build } from "esbuild";
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const shared = {
  bundle: true,
  format: "esm",
  target: "es2022",
  legalComments: "none", // the notices below are the packages' whole licences
  loader: { ".css": "text", ".html": "text" },
  logLevel: "warning",
};

/** The licence of every package whose code is in the bundle, as a comment. */
function notices(metafile) {
  const bundled = Object.keys(metafile.outputs).flatMap((name) => Object.keys(metafile.outputs[name].inputs));
  const folders = new Set(bundled.map((path) => path.match(/^node_modules\/(@[^/]+\/)?[^/]+/)?.[0]).filter(Boolean));
  const packages = new Map(); // licence text → packages under it
  for (const folder of [...folders].sort()) {
    const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
    if (!file) throw new Error(`${name} has no licence file, so it cannot be bundled`);
    const text = readFileSync(join(folder, file), "utf8").trim().replaceAll("*/", "* /");
    packages.set(text, [...(packages.get(text) ?? []), `${name} ${version}`]);
  }
  const parts = [...packages].map(([text, names]) => `${names.join(", ")}:\n\n${text}\n`);
  return `/*! The NormLens viewer (Apache-2.0) contains these packages:\n\n${parts.join("\n")}*/\n`;
}

if (process.argv.includes("--tests")) {
  rmSync("build", { recursive: true, force: true });
  await build({
    ...shared,
    platform: "node",
    entryPoints: readdirSync("tests").filter((name) => name.endsWith(".test.ts")).map((name) => `tests/${name}`),
    outdir: "build",
    outExtension: { ".js": ".mjs" },
  });
} else {
  const out = process.argv.indexOf("--out") + 1;
  const built = await build({
    ...shared,
    minify: true,
    charset: "utf8",
    metafile: true,
    write: false,
    entryPoints: ["src/main.ts"],
    outfile: out ? process.argv[out] : "../src/normlens/viewer/static/viewer.js",
  });
  for (const file of built.outputFiles) writeFileSync(file.path, notices(built.metafile) + file.text);
}
