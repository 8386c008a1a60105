// The page of recipes: its files arrive once, at whatever step the app is killed, and its screen of safety
// numbers says what has changed. internal/guide runs the whole page.

import assert from "node:assert/strict"
import { readFile, writeFile } from "node:fs/promises"
import { test } from "node:test"
import ts from "typescript"
import { Attachments } from "../src/attachments.js"
import type { Client } from "../src/client.js"
import type { BodyOf } from "../src/content.js"
import { asDid, type ConvoId, type Did } from "../src/ids.js"
import { MemoryStore, type Store } from "../src/store.js"
import type { Transport } from "../src/transport.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { Killed, KillingStore } from "./support/killing.js"
import { bytesOf, openPhone } from "./support/phone.js"

/** The page's files.ts. */
interface Files {
  keepFile(store: Store, convo: ConvoId, name: string, plain: Uint8Array): Promise<void>
  sendFiles(client: Client, store: Store, attachments: Attachments): Promise<void>
  fileIn(content: Uint8Array | undefined): BodyOf<"attachment"> | undefined
}

async function fromPage<Exports>(name: string): Promise<Exports> {
  const page = await readFile(new URL("../../../../docs/clients/RECIPES.md", import.meta.url), "utf8")
  const source = page.split("```ts " + name + "\n")[1]?.split("```")[0]
  assert.ok(source, name)
  const options = { module: ts.ModuleKind.ES2022, target: ts.ScriptTarget.ES2022 }
  const { outputText } = ts.transpileModule(source.replace('"mlsd-client"', '"../src/index.js"'), { compilerOptions: options })
  const path = new URL(`recipe-${name.replace(/ts$/, "js")}`, import.meta.url)
  await writeFile(path, outputText)
  return (await import(path.href)) as Exports
}

/** A way on which the process is killed at one of its calls, before the request or after it. */
function mortal(transport: Transport, store: KillingStore, calls: number): Transport {
  let left = calls
  const step = () => (left-- <= 0 || store.killed) && store.kill()
  return {
    call: async (call) => {
      step()
      const answer = await transport.call(call)
      step()
      return answer
    },
  }
}

test("a file arrives once, at whatever step the app is killed", needsServer, async () => {
  const { keepFile, sendFiles, fileIn } = await fromPage<Files>("files.ts")
  const [one, two] = await newAccounts(2)
  assert.ok(one && two)
  const disk = new MemoryStore()
  const bob = await openPhone(two, new MemoryStore())
  await bob.replenish()
  const first = await openPhone(one, disk)
  const convo = await first.createConvo([two])
  await bob.join(convo)
  await first.close()

  // live is a life of the app, which sends what is kept. Reports whether it was killed.
  const live = async (writes: number, late: boolean, calls: number): Promise<boolean> => {
    const store = new KillingStore(disk, writes, late)
    const transport = mortal(transportOf(one), store, calls)
    let failed = () => {}
    const dying = new Promise<void>((resolve) => (failed = resolve))
    const phone = await openPhone(one, store, { transport, events: { onFailure: failed } })
    const sent = sendFiles(phone, store, new Attachments(transport)).catch((err) => {
      if (!(err instanceof Killed) && !store.killed) throw err
    })
    await Promise.race([dying, sent.then(() => phone.outbox.idle())])
    await phone.close()
    return store.killed
  }

  const names: string[] = []
  let kills = 0
  const killAt = async (name: string, writes: number, late: boolean, calls: number): Promise<boolean> => {
    await keepFile(disk, convo, name, bytesOf(`the content of ${name}`))
    names.push(name)
    const killed = await live(writes, late, calls)
    if (killed) kills++
    assert.equal(await live(Infinity, false, Infinity), false)
    return killed
  }
  for (const late of [false, true]) {
    for (let writes = 0; await killAt(`write ${writes}, late ${late}`, writes, late, Infinity); ) writes++
  }
  for (let calls = 0; await killAt(`call ${calls}`, Infinity, false, calls); ) calls++

  await bob.sync(convo)
  const files = (await bob.items(convo)).flatMap(({ content }) => fileIn(content) ?? [])
  assert.deepEqual(files.map(({ name }) => name), names)
  for (const { file, name } of files) {
    const plain = await new Attachments(transportOf(two)).download(convo, file)
    assert.deepEqual(plain, bytesOf(`the content of ${name}`))
  }
  assert.deepEqual(await disk.list("app/"), [], "nothing is kept any more")
  console.log(`${names.length} files, ${kills} kills: 0 lost, 0 doubled`)
  await bob.close()
})

/** The page's safety.ts. */
interface Safety {
  screenOf(store: Store, own: Person, other: Person): Promise<Screen>
  confirm(store: Store, other: Person, screen: Screen): Promise<void>
  scanned(screen: Screen, text: string): string
}

interface Person {
  did: Did
  keys: Uint8Array[]
}

interface Screen {
  qr: string
  digits: string
  compared: string
}

test("the screen of a safety number says if the number has changed since people compared it", async () => {
  const { screenOf, confirm, scanned } = await fromPage<Safety>("safety.ts")
  const alice: Person = { did: asDid("did:plc:alice"), keys: [new Uint8Array(32).fill(1)] }
  const bob: Person = { did: asDid("did:plc:bob"), keys: [new Uint8Array(32).fill(2)] }
  const store = new MemoryStore()
  const screen = await screenOf(store, alice, bob)
  assert.equal(screen.compared, "never")
  assert.match(screen.digits, /^([0-9]{5} ){11}[0-9]{5}$/)
  const { qr } = await screenOf(new MemoryStore(), bob, alice)
  assert.deepEqual([scanned(screen, qr), scanned(screen, qr.replace(":1:", ":2:")), scanned(screen, "https://example.com")], ["same", "otherVersion", "noNumber"])
  await confirm(store, bob, screen)
  assert.equal((await screenOf(store, alice, bob)).compared, "same")
  const changed = await screenOf(store, alice, { ...bob, keys: [...bob.keys, new Uint8Array(32).fill(3)] })
  assert.deepEqual([changed.compared, scanned(changed, qr)], ["differs", "differs"])
})
