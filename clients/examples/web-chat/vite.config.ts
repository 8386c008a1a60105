// Bundles the pages into build/page.

import { correctTree } from "mlsd-client/ts-mls-tree"
import { defineConfig, type Plugin } from "vite"

/** Corrects ts-mls, which refuses valid trees: clients/typescript/README.md says why. */
export function tsMlsTree(): Plugin {
  let corrected = false
  return {
    name: "ts-mls-tree",
    transform: {
      filter: { id: /ts-mls\/dist\/src\/clientState\.js$/ },
      handler(code) {
        corrected = true
        return { code: correctTree(code), map: null }
      },
    },
    buildEnd(err) {
      if (err === undefined && !corrected) throw new Error("ts-mls is not in the bundle, or its file has another name: nothing was corrected")
    },
  }
}

export default defineConfig({
  plugins: [tsMlsTree()],
  build: {
    outDir: "build/page",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: true,
    modulePreload: { polyfill: false },
    rolldownOptions: {
      input: ["index.html", "oauth.html"],
      output: {
        codeSplitting: {
          groups: [
            // What encrypts stands in a file of its own: it changes seldom, and the rest has a limit of its size.
            { name: "mls", test: /node_modules\/(ts-mls|@noble|@hpke|@hpke-)\/|clients\/typescript\// },
          ],
        },
      },
    },
  },
})
