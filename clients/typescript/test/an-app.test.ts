// The page "An app of your own" (docs/clients/AN-APP.md): its pieces are one module, which compiles as an app's
// would, and which two people run.

import assert from "node:assert/strict"
import { readFile, writeFile } from "node:fs/promises"
import { test } from "node:test"
import { fileURLToPath } from "node:url"
import ts from "typescript"
import type { Accounts } from "../src/accounts.js"
import { Attachments } from "../src/attachments.js"
import type { Client } from "../src/client.js"
import type { ConvoId, Did } from "../src/ids.js"
import type { Item } from "../src/records.js"
import { MemoryStore, type Store } from "../src/store.js"
import type { Transport } from "../src/transport.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { accountsOf } from "./support/everyone.js"
import { bytesOf } from "./support/phone.js"

interface Screen {
  ask(convo: ConvoId, by: Did, people: readonly Did[]): void
  show(convo: ConvoId, items: readonly Item[]): void
  redraw(queue: string): void
  note(text: string): void
}

interface Content {
  readonly type: string
  readonly text?: string
}

/** The page's app.ts. */
interface App {
  open(did: Did, store: Store, accounts: Accounts, transport: Transport, screen: Screen): Promise<Client>
  answer(client: Client, convo: ConvoId, says: "yes" | "no" | "never again"): Promise<void>
  invite(client: Client, people: readonly Did[], convo?: ConvoId): Promise<ConvoId>
  peopleOf(client: Client, convo: ConvoId): Promise<{ here: string[]; later: string[] }>
  numberWith(client: Client, did: Did): Promise<string>
  contentOf(item: Pick<Item, "kind" | "content">): Content | undefined
  sendDraft(client: Client, store: Store, convo: ConvoId): Promise<void>
  unsent(client: Client, convo: ConvoId): Promise<{ waiting: number; refused: string[] }>
  sendFile(client: Client, files: Attachments, convo: ConvoId, name: string, plain: Uint8Array): Promise<void>
  fileOf(files: Attachments, convo: ConvoId, content: Content): Promise<Uint8Array | undefined>
  isBack(client: Client): void
  hasSeen(client: Client, convo: ConvoId): Promise<void>
  signOut(client: Client, store: Store): Promise<void>
}

const clientFolder = new URL("../../", import.meta.url)

/** The page's pieces as one module that imports this client's sources. */
async function source(): Promise<string> {
  const page = await readFile(new URL("../../docs/clients/AN-APP.md", clientFolder), "utf8")
  const pieces = page.split("```ts app.ts\n").slice(1).map((piece) => piece.split("```")[0])
  assert.ok(pieces.length > 5)
  return pieces.join("\n").replace('"mlsd-client"', '"../src/index.js"').replace('"mlsd-client/device"', '"../src/device-node.js"')
}

// problemsOf compiles the module strictly, beside the client's tests.
function problemsOf(text: string): string[] {
  const path = fileURLToPath(new URL("test/page-an-app.ts", clientFolder))
  const config = fileURLToPath(new URL("tsconfig.json", clientFolder))
  const { options } = ts.parseJsonConfigFileContent(ts.readConfigFile(config, ts.sys.readFile).config, ts.sys, fileURLToPath(clientFolder))
  const host = ts.createCompilerHost(options)
  const { getSourceFile, fileExists } = host
  host.getSourceFile = (name, ...rest) => (name === path ? ts.createSourceFile(name, text, ts.ScriptTarget.ES2022) : getSourceFile(name, ...rest))
  host.fileExists = (name) => name === path || fileExists(name)
  const program = ts.createProgram([path], { ...options, noEmit: true }, host)
  const file = program.getSourceFile(path)
  assert.ok(file)
  const all = [...program.getSemanticDiagnostics(file), ...program.getSyntacticDiagnostics(file)]
  return all.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n"))
}

async function load(text: string): Promise<App> {
  const { outputText } = ts.transpileModule(text, { compilerOptions: { module: ts.ModuleKind.ES2022, target: ts.ScriptTarget.ES2022 } })
  const path = new URL("page-an-app.js", import.meta.url)
  await writeFile(path, outputText)
  return (await import(path.href)) as App
}

/** A person with a device, and what its app has shown. */
class Person {
  client!: Client
  readonly asked: [ConvoId, Did][] = []
  readonly notes: string[] = []
  readonly items: Item[] = []
  private wake = () => {}

  constructor(readonly did: Did, readonly store = new MemoryStore()) {}

  async open(app: App): Promise<void> {
    const hear = <A extends unknown[]>(take: (...args: A) => unknown) => (...args: A) => {
      take(...args)
      this.wake()
    }
    this.client = await app.open(this.did, this.store, accountsOf(this.did), transportOf(this.did), {
      ask: hear((convo: ConvoId, by: Did) => this.asked.push([convo, by])),
      show: hear((_: ConvoId, items: readonly Item[]) => this.items.push(...items)),
      redraw: hear(() => {}),
      note: hear((text: string) => this.notes.push(text)),
    })
  }

  async until(look: () => boolean | Promise<boolean>): Promise<void> {
    for (;;) {
      const heard = new Promise<void>((resolve) => (this.wake = resolve))
      if (await look()) return
      await heard
    }
  }
}

test("the page's app compiles", async () => {
  assert.deepEqual(problemsOf(await source()), [])
})

test("two people run the page's app", { ...needsServer, timeout: 180_000 }, async () => {
  const app = await load(await source())
  const [a, b, carol] = await newAccounts(3)
  assert.ok(a && b && carol)
  const [alice, bob] = [new Person(a), new Person(b)]
  await Promise.all([alice.open(app), bob.open(app)])

  const convo = await app.invite(alice.client, [b, carol])
  assert.deepEqual(await app.peopleOf(alice.client, convo), { here: [a, b], later: [carol] })
  assert.ok(alice.notes.some((note) => note.startsWith(carol)), "the app says who is invited later")
  await bob.until(() => bob.asked.length > 0)
  assert.deepEqual(bob.asked, [[convo, a]])
  assert.deepEqual(await bob.client.convos(), [])
  await app.answer(bob.client, convo, "yes")
  await bob.until(async () => (await bob.client.convos()).length > 0)
  assert.equal(await app.numberWith(alice.client, b), await app.numberWith(bob.client, a))

  const texts = () => bob.items.flatMap((item) => app.contentOf(item)?.text ?? [])
  await alice.store.write(new Map([[`app/draft/${convo}`, bytesOf("hello")]]))
  await app.sendDraft(alice.client, alice.store, convo)
  await app.sendDraft(alice.client, alice.store, convo) // there is none any more
  await bob.until(() => texts().length > 0)
  assert.deepEqual(texts(), ["hello"])
  await alice.client.outbox.idle()
  assert.deepEqual(await app.unsent(alice.client, convo), { waiting: 0, refused: [] })

  const plain = bytesOf("a photo")
  await app.sendFile(alice.client, new Attachments(alice.client.transport), convo, "photo", plain)
  const file = () => bob.items.map((item) => app.contentOf(item)).find((content) => content?.type === "file")
  await bob.until(() => file() !== undefined)
  assert.deepEqual(await app.fileOf(new Attachments(bob.client.transport), convo, file() as Content), plain)
  app.isBack(bob.client)
  await app.hasSeen(bob.client, convo)

  await bob.client.close() // and starts again: it shows what it has
  const again = new Person(b, bob.store)
  await again.open(app)
  assert.deepEqual(again.items.flatMap((item) => app.contentOf(item)?.text ?? []), ["hello"])
  const second = await app.invite(alice.client, [b])
  await again.until(async () => (await again.client.convos()).some(({ convoId }) => convoId === second))
  assert.deepEqual(again.asked, [], "people who share a convo need no answer")
  assert.deepEqual([...alice.notes, ...bob.notes, ...again.notes].filter((note) => note.includes("Error")), [])
  await app.signOut(again.client, again.store)
  await alice.client.close()
})
