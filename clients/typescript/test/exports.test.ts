// The README's table has every export.

import assert from "node:assert/strict"
import { readFile, writeFile } from "node:fs/promises"
import { test } from "node:test"
import { fileURLToPath } from "node:url"
import ts from "typescript"

const folder = new URL("../../", import.meta.url)

interface Manifest {
  readonly exports: Readonly<Record<string, string | { readonly types: string }>>
}

// exportsOf lists what a file of src exports, types too.
function exportsOf(file: string): string[] {
  const path = fileURLToPath(new URL(file, folder))
  const program = ts.createProgram([path], { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext, noResolve: false, types: [] })
  const checker = program.getTypeChecker()
  const module = checker.getSymbolAtLocation(program.getSourceFile(path)!)
  assert.ok(module, file)
  return checker.getExportsOfModule(module).map(({ name }) => name)
}

test("the README's table has every export, and no other names", async () => {
  const { exports } = JSON.parse(await readFile(new URL("package.json", folder), "utf8")) as Manifest
  const readme = new URL("README.md", folder)
  const text = await readFile(readme, "utf8")
  let table = "| import | exports |\n|---|---|\n"
  for (const [path, at] of Object.entries(exports)) {
    const file = typeof at === "string" ? undefined : /^\.\/dist\/(.*)\.d\.ts$/.exec(at.types)?.[1]
    if (file === undefined) continue // generated, or no code
    const names = exportsOf(`src/${file}.ts`).sort()
    table += `| \`${path.replace(/^\./, "mlsd-client")}\` | ${names.map((name) => `\`${name}\``).join(", ")} |\n`
  }
  const marked = /(<!-- generated -->\n)([^]*)(<!-- end -->)/
  if (process.env.UPDATE) await writeFile(readme, text.replace(marked, `$1${table}$3`))
  else assert.equal(marked.exec(text)?.[2], table, "to write it: UPDATE=1 npm test")
})
