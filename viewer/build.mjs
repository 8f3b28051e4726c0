// Bundles the front end into the Python package, or the tests into build/.
import { build } from "esbuild";
import { readdirSync, rmSync } from "node:fs";

const shared = {
  bundle: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  loader: { ".css": "text", ".html": "text" },
  logLevel: "warning",
};

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
  await build({
    ...shared,
    minify: true,
    charset: "utf8",
    entryPoints: ["src/main.ts"],
    outfile: "../src/normlens/viewer/static/viewer.js",
  });
}
