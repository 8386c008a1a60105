// The README's tables have every export, and every error's code.

import assert from "node:assert/strict"
import { readdir, readFile, writeFile } from "node:fs/promises"
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

// codeOf reads the code of an error's class and its description, from the source.
async function errorIn(sources: readonly string[], name: string): Promise<string> {
  const found = sources.map((text) => new RegExp(`/\\*\\* ([^\\n]*) \\*/\nexport class ${name} extends .*?\n\\}`, "s").exec(text)).find((match) => match !== null)
  assert.ok(found, `${name} has a description of one line`)
  const code = /readonly code(?:: string)? = "(\w+)"/.exec(found[0])?.[1]
  assert.equal(code, name.replace(/Error$/, ""), `${name} has a code`)
  return `| \`${code}\` | \`${name}\` | ${found[1]!.replace(/\{@link ([^}]*)\}/g, "`$1`")} |`
}

test("D11: each error that the package exports has a code, and its row in the README", async () => {
  const { exports } = JSON.parse(await readFile(new URL("package.json", folder), "utf8")) as Manifest
  const files = Object.values(exports).flatMap((at) => (typeof at === "string" ? [] : /^\.\/dist\/(.*)\.d\.ts$/.exec(at.types)?.[1] ?? []))
  const names = new Set(files.flatMap((file) => exportsOf(`src/${file}.ts`)).filter((name) => name.endsWith("Error")))
  names.delete("LexValidationError") // of @atproto/lex-schema
  const source = new URL("src/", folder)
  const sources = await Promise.all((await readdir(source)).filter((name) => name.endsWith(".ts")).map((name) => readFile(new URL(name, source), "utf8")))
  const rows = await Promise.all([...names].sort().map((name) => errorIn(sources, name)))
  const table = `| code | class | |\n|---|---|---|\n${rows.join("\n")}\n`
  const readme = new URL("README.md", folder)
  const text = await readFile(readme, "utf8")
  const marked = /(<!-- errors -->\n)([^]*)(<!-- end of errors -->)/
  if (process.env.UPDATE) await writeFile(readme, text.replace(marked, (_, start: string, __, end: string) => start + table + end))
  else assert.equal(marked.exec(text)?.[2], table, "to write it: UPDATE=1 npm test")
})

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
