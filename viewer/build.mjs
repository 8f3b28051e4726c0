// Bundles the front end into the Python package (or --out FILE), or the tests into build/.
import { build } from "esbuild";
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

const shared = {
  bundle: true,
  format: "esm",
  target: "es2022",
  legalComments: "none", // the notices below are the packages' whole licences
  loader: { ".css": "text", ".html": "text" },
  logLevel: "warning",
};

/** Every package whose code is in the bundle: its name, version, licence and the licence's text. */
function bundledPackages(metafile) {
  const bundled = Object.keys(metafile.outputs).flatMap((name) => Object.keys(metafile.outputs[name].inputs));
  const folders = new Set(bundled.map((path) => path.match(/^node_modules\/(@[^/]+\/)?[^/]+/)?.[0]).filter(Boolean));
  return [...folders].sort().map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
    if (!file) throw new Error(`${name} has no licence file, so it cannot be bundled`);
    const text = readFileSync(join(folder, file), "utf8").trim().replaceAll("*/", "* /");
    return { name, version, license, text };
  });
}

/** The licences of bundled packages, as a comment. */
function notices(packages) {
  const named = new Map(); // licence text → packages under it
  for (const { name, version, text } of packages) named.set(text, [...(named.get(text) ?? []), `${name} ${version}`]);
  const parts = [...named].map(([text, names]) => `${names.join(", ")}:\n\n${text}\n`);
  return `/*! The NormLens viewer (Apache-2.0) contains these packages:\n\n${parts.join("\n")}*/\n`;
}

/** Bundled packages as a software bill of materials (CycloneDX), which the wheel holds. */
function billOfMaterials(packages) {
  const components = packages.map(({ name, version, license }) => ({
    type: "library",
    "bom-ref": `pkg:npm/${name.replace("@", "%40")}@${version}`,
    name,
    version,
    licenses: [{ license: { id: license } }],
    purl: `pkg:npm/${name.replace("@", "%40")}@${version}`,
  }));
  return `${JSON.stringify({ bomFormat: "CycloneDX", specVersion: "1.6", version: 1, components }, null, 2)}\n`;
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
  const out = process.argv[process.argv.indexOf("--out") + 1 || Infinity];
  const built = await build({
    ...shared,
    minify: true,
    charset: "utf8",
    metafile: true,
    write: false,
    entryPoints: ["src/main.ts"],
    outfile: out ?? "../src/normlens/viewer/static/viewer.js",
  });
  const packages = bundledPackages(built.metafile);
  for (const file of built.outputFiles) writeFileSync(file.path, notices(packages) + file.text);
  writeFileSync(out ? join(dirname(out), "viewer.cdx.json") : "viewer.cdx.json", billOfMaterials(packages));
}
