// The README's table has every export.

import assert from "node:assert/strict"
import { readFile } from "node:fs/promises"
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
  const readme = await readFile(new URL("README.md", folder), "utf8")
  const rows = readme.slice(readme.indexOf("| import | exports |")).split("\n").map((row) => row.split("|").map((cell) => cell.trim()))
  for (const [path, at] of Object.entries(exports)) {
    const file = typeof at === "string" ? undefined : /^\.\/dist\/(.*)\.d\.ts$/.exec(at.types)?.[1]
    if (file === undefined) continue // generated, or no code
    const entry = path.replace(/^\./, "mlsd-client")
    const first = rows.findIndex(([, name]) => name === `\`${entry}\``)
    assert.ok(first >= 0, `a row of ${entry}`)
    let end = first + 1
    while (rows[end]?.[1] === "") end++
    const names = rows.slice(first, end).flatMap(([, , text = ""]) => [...text.matchAll(/`(\w+)`/g)].map(([, name]) => name))
    assert.deepEqual(names.sort(), exportsOf(`src/${file}.ts`).sort(), entry)
  }
})
