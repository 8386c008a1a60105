// Bundles the page into build/page.

import { cp, readFile } from "node:fs/promises"
import { build } from "esbuild"
import { correctTree } from "mlsd-client/ts-mls-tree"

/** Corrects ts-mls, which refuses valid trees: clients/typescript/README.md says why. */
const tsMlsTree = {
  name: "ts-mls-tree",
  setup({ onLoad }) {
    onLoad({ filter: /ts-mls\/dist\/src\/clientState\.js$/ }, async ({ path }) => ({
      contents: correctTree(await readFile(path, "utf8")),
    }))
  },
}

await cp("page", "build/page", { recursive: true })
const { metafile } = await build({
  entryPoints: ["src/main.ts", "src/oauth.ts"],
  outdir: "build/page",
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  sourcemap: true,
  metafile: true,
  plugins: [tsMlsTree],
})
if (!Object.keys(metafile.inputs).some((path) => path.endsWith("ts-mls/dist/src/clientState.js"))) {
  throw new Error("ts-mls is not in the bundle, or its file has another name: nothing was corrected")
}
console.log(`bundle: ${metafile.outputs["build/page/main.js"].bytes} bytes`)
