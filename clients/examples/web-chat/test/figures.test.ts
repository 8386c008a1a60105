// How fast the page is: check.sh --figures. It prints figures, and has bounds that only a mistake exceeds.

import assert from "node:assert/strict"
import { after, before, test } from "node:test"
import type { Browser, Page } from "playwright-core"
import { compile, type Running, start } from "../server/world.js"
import { Person } from "./person.js"
import { openBrowser, Stage } from "./stage.js"

const [chats, messages] = [200, 10_000]

let world: Running
let browser: Browser

before(async () => {
  world = await start(process.env.MLSD_BINARIES ?? compile(), 0)
  browser = await openBrowser()
})

after(async () => {
  await browser.close()
  await world.stop()
})

test("200 chats are listed, and 10,000 messages opened and scrolled", async () => {
  const stage = await Stage.open(browser, world.url)
  const [alice, bob] = await stage.chat("alice", "bob")
  await alice.say("the first one")
  await alice.reaches("the first one", "read")
  const convo = decodeURIComponent(new URL(alice.page.url()).hash.slice(1))
  await Promise.all([alice, bob].map(({ page }) => page.close()))

  const { people } = (await (await fetch(`${world.url}/world`)).json()) as { people: { handle: string; did: string }[] }
  const did = (handle: string) => people.find((person) => person.handle === handle)?.did ?? ""
  const page = await stage.page("/icon.svg")
  await page.evaluate(fill, { self: did("alice.test"), other: did("bob.test"), convo, chats, messages })
  // Nothing of this was at the service: so the device is offline.
  await page.route("**/pds/**", (route) => route.abort())

  await page.goto(`${world.url}/?as=alice`)
  await page.locator(".chat-row").nth(chats).waitFor()
  const list = await sinceStart(page)
  const openedAt = Date.now()
  await new Person(page, "alice").openChat("Bob")
  await page.getByText(`message ${messages}`, { exact: false }).last().waitFor()
  const opened = Date.now() - openedAt
  const scrolling = await page.getByRole("log").evaluate(scroll)
  const shown = await page.locator("li.message").count()
  console.log(`${chats} chats are listed after ${list} ms; a chat of ${messages} messages is open after ${opened} ms`)
  console.log(`scrolling: ${scrolling.frames} frames, ${scrolling.dropped} dropped, the longest ${scrolling.longest} ms; ${shown} messages were read`)
  assert.ok(list < 60_000 && opened < 60_000)
  assert.ok(shown > 500, "scrolling reads pages upward")
  await stage.close()
})

/** Milliseconds since the page was asked for. */
function sinceStart(page: Page): Promise<number> {
  return page.evaluate(() => Math.round(performance.now()))
}

interface Filling {
  readonly self: string
  readonly other: string
  readonly convo: string
  readonly chats: number
  readonly messages: number
}

/** Writes a long chat, and chats that are over, into the store of a device. */
async function fill({ self, other, convo, chats, messages }: Filling): Promise<void> {
  const database = await new Promise<IDBDatabase>((resolve, reject) => {
    const request = indexedDB.open(`web-chat/${self}`)
    request.onsuccess = () => resolve(request.result)
    request.onerror = () => reject(request.error)
  })
  const transaction = database.transaction("records", "readwrite")
  const records = transaction.objectStore("records")
  const put = (name: string, value: object) => records.put(new TextEncoder().encode(JSON.stringify(value)), name)
  const begin = Date.now() - messages * 60_000
  for (let seq = 100; seq < 100 + messages; seq++) {
    const text = `message ${seq - 99}: ${"words that fill a line or two of it, ".repeat(seq % 4)}and an end`
    const own = seq % 3 === 0
    put(`item/${convo}/${String(seq).padStart(16, "0")}`, {
      seq, id: `entry-${seq}`, kind: "application", sender: own ? self : other, createdAt: new Date(begin + seq * 60_000).toISOString(),
      digest: "", own, state: "read", messageId: seq.toString(16).padStart(32, "0"), content: { $bytes: btoa(text).replaceAll("=", "") },
    })
  }
  for (let n = 0; n < chats; n++) {
    const id = `over-${n}`
    put(`thread/${id}`, { convoId: id, groupId: "00", first: 0, cursor: 0, last: "", entered: 0, left: true })
    const last = { id: "", author: other, text: `the last words of chat ${n}`, at: new Date(begin - n * 60_000).toISOString() }
    put(`app/summary/${id}`, { convo: id, upTo: 0, read: 0, unread: n % 3, since: last.at, name: `Chat ${n}`, others: [other], last })
  }
  await new Promise<void>((resolve, reject) => {
    transaction.oncomplete = () => resolve()
    transaction.onerror = () => reject(transaction.error)
  })
  database.close()
}

/** Scrolls upward for 300 frames, and counts those that were dropped. */
async function scroll(element: Element): Promise<{ frames: number; dropped: number; longest: number }> {
  let [frames, dropped, longest, before] = [0, 0, 0, performance.now()]
  while (frames < 300) {
    element.scrollBy(0, -150)
    await new Promise((resolve) => requestAnimationFrame(resolve))
    const now = performance.now()
    longest = Math.max(longest, Math.round(now - before))
    dropped += Math.max(0, Math.round((now - before) / (1000 / 60)) - 1)
    before = now
    frames++
  }
  return { frames, dropped, longest }
}
