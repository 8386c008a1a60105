// The content of messages, and what people see of it: content.ts, transcript.ts.

import assert from "node:assert/strict"
import { readFile, writeFile } from "node:fs/promises"
import { test } from "node:test"
import { encode } from "@atproto/lex-cbor"
import { type Body, body, bodyAs, type Content, ContentError, decodeContent, encodeContent, kindOf } from "../src/content.js"
import { encodeMessage } from "../src/history-format.js"
import { asDid, type Did } from "../src/ids.js"
import { type LexValue, lexStringify } from "../src/json.js"
import { type Entry, type ShownMessage, Transcript } from "../src/transcript.js"
import { chanceOf } from "./support/chance.js"

const [alice, bob, carol] = [asDid("did:plc:ewvi7nxzyoun6zhxrhs64oiz"), asDid("did:web:bob.example.com"), asDid("did:web:carol.example.com")]
const id = (n: number) => n.toString(16).padStart(32, "0")
const toBase64 = (bytes: Uint8Array) => Buffer.from(bytes).toString("base64")
const fromBase64 = (text: string) => new Uint8Array(Buffer.from(text, "base64"))
/** Whole numbers below a bound, which only depend on the seed. */
const seeded = (seed: number) => {
  const chance = chanceOf(seed)
  return (below: number) => Math.floor(chance() * below)
}
const utf8 = (text: string) => new TextEncoder().encode(text)

const file = {
  id: "f1", uri: "https://chat.example.com/f1" as const, key: "A".repeat(43), nonce: "B".repeat(16), sha256: "0f".repeat(32), size: 1040,
}
/** A body that a later version of the lexicon can have. */
const asBody = (value: { $type: string; [field: string]: LexValue }) => value as Body
const link = { $type: "app.bsky.richtext.facet#link", uri: "https://example.com" }

/** One of each kind, and one that this version does not know. */
const samples: Readonly<Record<string, Content>> = {
  text: { body: body.text({ text: "Grüße 👋" }) },
  "text with facets, an answer": {
    body: body.text({ text: "see example.com", facets: [{ index: { byteStart: 4, byteEnd: 15 }, features: [link] }], langs: ["en"] }),
    replyTo: { id: id(1), author: bob },
  },
  attachment: {
    body: body.attachment({
      file, mimeType: "image/webp", size: 1024, name: "cat.webp", alt: "a cat", width: 640, height: 480, preview: Uint8Array.of(1, 2, 3),
      caption: { text: "ours" },
    }),
  },
  reaction: { body: body.reaction({ message: { id: id(1), author: bob }, emoji: "👍🏽" }) },
  "reaction taken back": { body: body.reaction({ message: { id: id(1), author: bob }, emoji: "👍🏽", removed: true }) },
  edit: { body: body.edit({ id: id(1), text: "hello" }) },
  deletion: { body: body.deletion({ id: id(1) }) },
  details: { body: body.details({ name: "Family", description: "all of us", avatar: { file, mimeType: "image/png", size: 900 } }) },
  receipt: { body: body.receipt({ delivered: 12, read: 10 }) },
  "unknown kind": { body: asBody({ $type: "com.example.poll", question: "Tea?", answers: ["yes", "no"] }) },
  "unknown kind that shows nothing": { body: asBody({ $type: "blue.catbird.mls.content#pin", id: id(1) }), silent: true },
}

/** Bytes that are no content. */
const broken: Readonly<Record<string, Uint8Array>> = {
  nothing: new Uint8Array(),
  "a text with NUL": utf8("a\0"),
  "no UTF-8 and no map": Uint8Array.of(0xff, 0xfe),
  "a map that ends early": encode({ body: { $type: "blue.catbird.mls.content#text", text: "a" } }).subarray(0, 20),
  "a map without a body": encode({ text: "a" }),
  "a body without its type": encode({ body: { text: "a" } }),
  "a text without text": encode({ body: { $type: "blue.catbird.mls.content#text" } }),
  "a reaction of two emojis": encode({
    body: { $type: "blue.catbird.mls.content#reaction", message: { id: id(1), author: bob }, emoji: "👍👍" },
  }),
  "another type": encode({ $type: "app.bsky.feed.post", body: { $type: "blue.catbird.mls.content#text", text: "a" } }),
  "a name that is too short": encode({ body: { $type: "blue.catbird.mls.content#deletion", id: "1" } }),
  "bytes behind it": Uint8Array.of(...encodeContent(samples.text!), 0),
}

interface Vectors {
  readonly contents: readonly { readonly name: string; readonly bytes: string; readonly content: unknown }[]
  readonly texts: readonly { readonly bytes: string; readonly text: string }[]
  readonly broken: readonly { readonly name: string; readonly bytes: string }[]
  readonly transcripts: readonly { readonly name: string; readonly entries: readonly VectorEntry[]; readonly messages: readonly unknown[] }[]
}

interface VectorEntry extends Omit<Entry, "content"> {
  readonly bytes: string
}

test("one format: the contents of clients/vectors", async () => {
  const path = new URL("../../../vectors/content.json", import.meta.url)
  if (process.env.CONTENT_VECTORS === "write") await writeFile(path, `${JSON.stringify(newVectors(), undefined, 1)}\n`)
  const vectors = JSON.parse(await readFile(path, "utf8")) as Vectors
  assert.deepEqual(vectors.contents.map(({ name }) => name), Object.keys(samples))
  for (const { name, bytes, content } of vectors.contents) {
    const read = decodeContent(fromBase64(bytes))
    assert.deepEqual(JSON.parse(lexStringify(read as LexValue)), content, name)
    assert.equal(toBase64(encodeContent(read!)), bytes, name)
  }
  for (const { bytes, text } of vectors.texts) assert.equal(bodyAs("text", decodeContent(fromBase64(bytes)))?.text, text)
  for (const { name, bytes } of vectors.broken) assert.equal(decodeContent(fromBase64(bytes)), undefined, name)
  for (const { name, entries, messages } of vectors.transcripts) {
    assert.deepEqual(shown(entries.map(fromVector)), messages, name)
  }
})

const fromVector = ({ bytes, ...entry }: VectorEntry): Entry => ({ ...entry, content: fromBase64(bytes) })
const shown = (entries: Iterable<Entry>): unknown => {
  const transcript = new Transcript()
  transcript.add(entries)
  return JSON.parse(lexStringify(transcript.messages() as unknown as LexValue))
}

function newVectors(): Vectors {
  return {
    contents: Object.entries(samples).map(([name, content]) => {
      const bytes = encodeContent(content)
      return { name, bytes: toBase64(bytes), content: JSON.parse(lexStringify(decodeContent(bytes) as LexValue)) as unknown }
    }),
    texts: ["hello", "0", "{\"type\":\"text\"}", "🙂"].map((text) => ({ bytes: toBase64(utf8(text)), text })),
    broken: Object.entries(broken).map(([name, bytes]) => ({ name, bytes: toBase64(bytes) })),
    transcripts: [...conversations()].map(([name, entries]) => ({
      name, entries: entries.map(({ content, ...entry }) => ({ ...entry, bytes: toBase64(content!) })), messages: shown(entries) as unknown[],
    })),
  }
}

/** Small conversations, one rule each. */
function conversations(): Map<string, Entry[]> {
  const hello = say(1, alice, id(1), { body: body.text({ text: "helo" }) })
  const edit = (seq: number, sender: Did, text: string) => say(seq, sender, id(100 + seq), { body: body.edit({ id: id(1), text }) })
  const remove = (seq: number, sender: Did) => say(seq, sender, id(100 + seq), { body: body.deletion({ id: id(1) }) })
  const react = (seq: number, sender: Did, emoji: string, removed = false) =>
    say(seq, sender, id(100 + seq), { body: body.reaction({ message: { id: id(1), author: alice }, emoji, ...(removed && { removed }) }) })
  const history = { ...hello, seq: 2, id: "e2", messageId: id(2), content: encodeMessage({ type: "cancel", id: id(9) }) }
  const word = (entry: Entry): Entry => ({ ...entry, from: carol })
  return new Map([
    ["only the author edits", [hello, edit(2, bob, "mine"), edit(3, alice, "hello"), edit(4, alice, "hello!")]],
    ["only the author deletes", [hello, remove(2, bob), react(3, bob, "👍")]],
    ["a deletion is the end", [hello, react(2, bob, "👍"), edit(3, alice, "hello"), remove(4, alice), edit(5, alice, "again")]],
    ["the last reaction counts", [hello, react(2, bob, "👍"), react(3, carol, "👍"), react(4, bob, "👍", true), react(5, bob, "🙂")]],
    ["an edit comes before its text", [edit(3, alice, "hello"), hello]],
    ["a message that is in the log twice is shown once", [hello, { ...hello, seq: 2 }]],
    ["the id of another person's message", [hello, say(2, bob, id(1), { body: body.text({ text: "not Alice" }) })]],
    ["a caption is edited", [
      say(1, alice, id(1), { body: body.attachment({ file, mimeType: "image/png", size: 900, caption: { text: "cta" } }) }), edit(2, alice, "cat"),
    ]],
    ["history changes nothing that was read", [hello, word(edit(2, alice, "invented")), word(remove(3, alice)), word(react(4, bob, "👎"))]],
    ["what was read changes what history brought", [word(hello), word(edit(2, alice, "hello")), react(3, bob, "👍")]],
    ["what was read takes the place of what history brought", [
      word(say(1, alice, id(1), { body: body.text({ text: "invented" }) })), hello, word(say(1, alice, id(1), { body: body.text({ text: "again" }) })),
    ]],
    ["what is not supported is shown as that", [
      say(1, alice, id(1), samples["unknown kind"]!), say(2, alice, id(2), samples["unknown kind that shows nothing"]!),
      { ...hello, seq: 3, id: "e3", messageId: id(3), content: broken["a map without a body"]! },
    ]],
    ["a message about history is not shown", [hello, history]],
    ["an answer", [hello, say(2, bob, id(2), { body: body.text({ text: "hi" }), replyTo: { id: id(1), author: alice } })]],
  ])
}

function say(seq: number, sender: Did, messageId: string, content: Content): Entry {
  return { seq, id: `e${seq}`, sender, createdAt: new Date(Date.UTC(2026, 0, 1, 0, 0, seq)).toISOString(), messageId, content: encodeContent(content) }
}

test("a content that breaks the lexicon is refused, and the error says where", () => {
  for (const [content, want] of [
    [{ body: body.text({ text: "" }) }, /text/],
    [{ body: body.text({ text: "a".repeat(60_001) }) }, /60000/],
    [{ body: body.reaction({ message: { id: "1", author: bob }, emoji: "👍" }) }, /message\.id/],
    [{ body: body.receipt({ read: 0 }) }, /read/],
    [{ body: { text: "no type" } }, /body/],
  ] as [Content, RegExp][]) {
    assert.throws(() => encodeContent(content), (err) => err instanceof ContentError && want.test(err.message))
  }
})

test("whatever stands in a plaintext, it is a content or none: 20,000 damaged ones", () => {
  const random = seeded(7)
  const good = Object.values(samples).map(encodeContent)
  for (let i = 0; i < 20_000; i++) {
    const bytes = good[random(good.length)]!.slice(0, 1 + random(400))
    for (let flips = random(4); flips > 0; flips--) bytes[random(bytes.length)] = random(256)
    const read = decodeContent(bytes)
    if (read !== undefined) assert.ok(decodeContent(encodeContent(read)), toBase64(bytes))
  }
})

test("all devices show the same, in whatever order they read, and however often: 300 conversations", () => {
  for (let seed = 1; seed <= 300; seed++) {
    const random = seeded(seed)
    const entries = conversation(random)
    const known = entries.filter(() => random(5) > 0) // history has brought the others
    const all = entries.map((entry): Entry => (known.includes(entry) ? entry : { ...entry, from: carol }))
    const want = shown(all)
    for (let device = 0; device < 4; device++) {
      const transcript = new Transcript()
      const words = known.filter(() => random(3) === 0).map((entry): Entry => ({ ...entry, from: carol, content: utf8("invented") }))
      const again = shuffled([...all, ...all.filter(() => random(3) === 0), ...words], random)
      while (again.length > 0) {
        transcript.add(again.splice(0, 1 + random(5)))
        if (random(3) === 0) transcript.messages({ limit: random(5), before: random(40) })
      }
      assert.deepEqual(JSON.parse(lexStringify(transcript.messages() as unknown as LexValue)), want, `seed ${seed}`)
      const paged: ShownMessage[] = []
      for (let page; (page = transcript.messages({ limit: 3, before: paged[0]?.seq ?? Infinity })).length > 0; ) paged.unshift(...page)
      assert.deepEqual(paged, transcript.messages(), `seed ${seed}`)
    }
  }
})

/** A conversation of three people, of whom each does everything at once with two devices. */
function conversation(random: (below: number) => number): Entry[] {
  const people = [alice, bob, carol]
  return Array.from({ length: 40 }, (_, i) => {
    const [sender, target] = [people[random(3)]!, id(1 + random(12))]
    const content = ((): Content => {
      switch (random(8)) {
        case 0: return { body: body.edit({ id: target, text: `edit ${i}` }) }
        case 1: return { body: body.deletion({ id: target }) }
        case 2: case 3: return { body: body.reaction({ message: { id: target, author: people[random(3)]! }, emoji: ["👍", "🙂"][random(2)]!, removed: random(2) === 0 }) }
        case 4: return random(2) === 0 ? samples["unknown kind"]! : samples.details!
        default: return { body: body.text({ text: `text ${i}` }) }
      }
    })()
    const entry = say(i + 1, sender, random(4) === 0 ? id(1 + random(12)) : id(1 + i), content)
    return entry
  })
}

function shuffled<T>(all: T[], random: (below: number) => number): T[] {
  for (let i = all.length - 1; i > 0; i--) {
    const j = random(i + 1)
    ;[all[i], all[j]] = [all[j]!, all[i]!]
  }
  return all
}

test("an unknown kind keeps its bytes", () => {
  const bytes = encodeContent(samples["unknown kind"]!)
  const read = decodeContent(bytes)!
  assert.equal(kindOf(read.body), undefined)
  assert.deepEqual(encodeContent(read), bytes)
})

test("ten thousand messages: a page, and one more, cost little", () => {
  const transcript = new Transcript()
  transcript.add(Array.from({ length: 10_000 }, (_, i) => say(i + 1, alice, id(i + 1), samples.text!)))
  const page = transcript.messages({ limit: 50 })
  assert.equal(page.length, 50)
  const changed = transcript.add([say(10_001, bob, id(10_001), { body: body.reaction({ message: { id: id(10_000), author: alice }, emoji: "👍" }) })])
  assert.deepEqual([...changed], [`${alice} ${id(10_000)}`])
  const after = transcript.messages({ limit: 50 })
  assert.equal(after[48], page[48], "an unchanged message is the same object")
  assert.deepEqual(after[49]!.reactions, [{ emoji: "👍", by: [bob] }])
  assert.equal(transcript.find({ author: alice, id: id(7) })?.seq, 7)
})

test("details are the last ones, and receipts the highest", () => {
  const transcript = new Transcript()
  transcript.add([
    say(3, alice, id(3), { body: body.details({ name: "Family" }) }), say(2, bob, id(2), { body: body.details({ name: "Work" }) }),
    { ...say(4, bob, id(4), { body: body.details({ name: "Invented" }) }), from: carol },
    say(5, bob, id(5), { body: body.receipt({ read: 3 }) }), say(6, bob, id(6), { body: body.receipt({ delivered: 5, read: 2 }) }),
  ])
  assert.deepEqual(transcript.details(), { $type: "blue.catbird.mls.content#details", name: "Family", by: alice })
  assert.deepEqual(transcript.receipt(bob), { delivered: 5, read: 3 })
  assert.deepEqual(transcript.receipt(carol), { delivered: 0, read: 0 })
})

