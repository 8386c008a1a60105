// The verifier of logs finds what the one in Go finds, and asks what that one asks. The vectors are
// made and checked by features/transparency/verifier.

import assert from "node:assert/strict"
import { readFile } from "node:fs/promises"
import { test } from "node:test"
import { fromHex, sha256 } from "../src/bytes.js"
import { FindingError, NotSignedError, ReadAgainError } from "../src/log-findings.js"
import { HeadError, openHead } from "../src/log-head.js"
import type { Seen } from "../src/log-state.js"
import {
  append, type Edge, edgeOf, emptyEdge, type Hash, isContinued, isIncluded, kinds, type Leaf, leafHash, recordOf, rootOf, tagOf,
} from "../src/log-tree.js"
import { countedAtMost, type LogAnswer, type LogSource, unsignedFor, Verifier } from "../src/log-verifier.js"
import { HeadSigner } from "./support/heads.js"

interface Step {
  do: "entries" | "entry" | "sent" | "head" | "refresh"
  now: number
  count?: number
  seen?: Seen
  text?: string
  from?: string
  asks?: Asking[]
  throws?: string
  says?: string
}

interface Asking {
  ask: string
  senders?: string[]
  seq?: number
  from?: number
  size?: number
  error?: string
  head?: string
  keys?: string[]
  stand?: { did: string; salt?: string; tag: string }[]
  leaf?: string
  hashes?: string[]
}

interface Run {
  name: string
  service: string
  convoId: string
  steps: Step[]
  size: number
  message: string
  found: number
}

interface Vectors {
  leaves: (Leaf & { sender: string; salt: string; hash: string })[]
  trees: { size: number; root: string }[]
  inclusion: { seq: number; size: number; hashes: string[] }[]
  consistency: { from: number; size: number; hashes: string[] }[]
  heads: { text: string; keys: string[]; error?: string; size?: number; root?: string; generation?: number; at?: number }[]
  runs: Run[]
}

const path = new URL("../../../../features/transparency/verifier/testdata/vectors.json", import.meta.url)
const vectors = JSON.parse(await readFile(path, "utf8")) as Vectors

test("leaves and tags are those of the server", async () => {
  for (const { sender, salt, hash, ...leaf } of vectors.leaves) {
    assert.equal(await tagOf(fromHex(salt), sender), leaf.tag)
    assert.equal(await leafHash(recordOf(leaf)), hash)
  }
})

const mostLeaves = 600

// The leaves and the roots of the trees of 0, 1, 2, … leaves.
async function trees(): Promise<{ leaves: Hash[]; roots: Hash[] }> {
  const leaves: Hash[] = []
  let edge = emptyEdge
  const roots = [await rootOf(edge)]
  for (let seq = 1; seq <= mostLeaves; seq++) {
    const leaf = await leafHash(`leaf ${seq}`)
    leaves.push(leaf)
    edge = await append(edge, leaf)
    roots.push(await rootOf(edge))
  }
  return { leaves, roots }
}

test("the roots of 200 trees are those of the server", async () => {
  const { roots } = await trees()
  assert.equal(vectors.trees.length, 200)
  for (const { size, root } of vectors.trees) assert.equal(roots[size], root, `${size} entries`)
})

// other is a hash with one bit changed.
const other = (hash: Hash) => `${hash.slice(0, -1)}${(Number.parseInt(hash.slice(-1), 16) ^ 1).toString(16)}`

// spoilt are proofs that are not right.
function* spoilt(proof: string[]): Generator<string[]> {
  for (const [i, hash] of proof.entries()) yield proof.with(i, other(hash))
  yield [...proof, other("00".repeat(32))]
  if (proof.length > 0) yield proof.slice(1)
  if (proof.length > 0) yield proof.slice(0, -1)
}

test("proofs of the server are good, and spoilt ones are not", async () => {
  const { leaves, roots } = await trees()
  const at = (all: Hash[], i: number) => all[i] ?? ""
  for (const { seq, size, hashes } of vectors.inclusion) {
    const [root, leaf] = [at(roots, size), at(leaves, seq - 1)]
    assert.ok(await isIncluded(hashes, size, root, seq, leaf), `entry ${seq} of ${size}`)
    assert.ok(!(await isIncluded(hashes, size, root, seq, other(leaf))))
    assert.ok(!(await isIncluded(hashes, size, other(root), seq, leaf)))
    for (const wrong of spoilt(hashes)) assert.ok(!(await isIncluded(wrong, size, root, seq, leaf)), `spoilt, entry ${seq} of ${size}`)
    if (seq === size) assert.equal(await rootOf(await edgeOf(size, leaf, hashes)), root)
    if (seq === size) await assert.rejects(edgeOf(size, leaf, [...hashes, root]), /wrong number of hashes/)
  }
  for (const { from, size, hashes } of vectors.consistency) {
    const [root, fromRoot] = [at(roots, size), at(roots, from)]
    assert.ok(await isContinued(hashes, size, root, from, fromRoot), `${from} of ${size}`)
    assert.ok(!(await isContinued(hashes, size, root, from, other(fromRoot))))
    assert.ok(!(await isContinued(hashes, size, other(root), from, fromRoot)))
    for (const wrong of spoilt(hashes)) assert.ok(!(await isContinued(wrong, size, root, from, fromRoot)), `spoilt, ${from} of ${size}`)
  }
})

test("heads are read and refused as by the server's own code", async () => {
  for (const { text, keys, error, ...want } of vectors.heads) {
    if (error !== undefined) {
      await assert.rejects(openHead(text, keys), (err) => err instanceof HeadError && err.message === error, JSON.stringify(text))
      continue
    }
    const { size, root, generation, at } = await openHead(text, keys)
    assert.deepEqual({ size, root, generation, at }, { generation: 0, ...want })
  }
})

// Answering is a server that expects the questions of a step, in their order.
class Answering implements LogSource {
  waiting: Asking[] = []
  /** What was asked otherwise. To throw it would look like a server that does not answer. */
  readonly unexpected: string[] = []

  async head(_convo: string, senders: readonly string[]): Promise<LogAnswer> {
    const { head = "", keys = [], stand = [] } = this.answer({ ask: "head", ...(senders.length > 0 && { senders: [...senders] }) })
    const senderOf = ({ did, salt, tag }: (typeof stand)[number]) => ({ did, tag, ...(salt !== undefined && { salt: fromHex(salt) }) })
    return { head, keys, senders: stand.map(senderOf) }
  }

  async inclusion(_convo: string, seq: number, size: number): Promise<{ leaf: Hash; proof: Hash[] }> {
    const { leaf = "", hashes = [] } = this.answer({ ask: "inclusion", seq, size })
    return { leaf, proof: hashes }
  }

  async consistency(_convo: string, from: number, size: number): Promise<Hash[]> {
    return this.answer({ ask: "consistency", from, size }).hashes ?? []
  }

  private answer(asked: Asking): Asking {
    const next = this.waiting.shift()
    const { ask, senders, seq, from, size } = next ?? { ask: "nothing" }
    const want = JSON.parse(JSON.stringify({ ask, senders, seq, from, size })) as Asking // without what is absent
    if (JSON.stringify(want) !== JSON.stringify(asked)) this.unexpected.push(`asked ${JSON.stringify(asked)}, want ${JSON.stringify(want)}`)
    if (next?.error !== undefined) throw new Error(next.error)
    return next ?? asked
  }
}

async function* callsOf(step: Step): AsyncGenerator<{ now: number; call: (v: Verifier) => Promise<void> }> {
  const { seen, now, text = "", from = "" } = step
  if (step.do === "refresh") yield { now, call: (v) => v.refresh() }
  if (step.do === "head") yield { now, call: (v) => v.head(text, from) }
  if (seen === undefined) return
  if (step.do === "sent") yield { now, call: (v) => v.sent(seen) }
  if (step.do === "entry") yield { now, call: (v) => v.entry(seen) }
  for (let i = 0; i < (step.count ?? 0); i++) {
    const seq = seen.seq + i
    const body = await sha256(new TextEncoder().encode(`${seen.sender} ${seq}`))
    yield { now: now + 1000 * i, call: (v) => v.entry({ ...seen, seq, at: seen.at + 1000 * i, body }) }
  }
}

async function foundBy(call: Promise<void>): Promise<{ throws?: string; says?: string }> {
  try {
    await call
    return {}
  } catch (err) {
    assert.ok(err instanceof Error)
    if (err instanceof FindingError) return { throws: err.finding.kind, says: err.message }
    const throws = err instanceof ReadAgainError ? "readAgain" : err instanceof NotSignedError ? "notSigned" : "source"
    return { throws, says: err.message }
  }
}

for (const restarts of [false, true]) {
  for (const { name, service, convoId, steps, size, message, found } of vectors.runs) {
    test(`the run "${name}"${restarts ? ", with an app that restarts at every step" : ""}`, async () => {
      const source = new Answering()
      let now = 0
      let verifier = Verifier.create(service, convoId, source, () => now)
      for (const [i, step] of steps.entries()) {
        source.waiting = [...(step.asks ?? [])]
        for await (const one of callsOf(step)) {
          now = one.now
          const { throws, says } = await foundBy(one.call(verifier))
          assert.deepEqual({ throws, says }, { throws: step.throws, says: step.says }, `step ${i}`)
          if (restarts) verifier = Verifier.restore(verifier.save(), source, () => now)
        }
        assert.deepEqual(source.waiting, [], `step ${i}: questions that were not asked`)
        assert.deepEqual(source.unexpected, [], `step ${i}`)
      }
      assert.deepEqual([verifier.size, verifier.message, verifier.findings.length], [size, message, found])
    })
  }
}

async function edgeAfter(leaves: readonly Hash[]): Promise<Edge> {
  let edge = emptyEdge
  for (const leaf of leaves) edge = await append(edge, leaf)
  return edge
}

// proofOf is SUBPROOF of RFC 6962, section 2.1.2.
async function proofOf(from: number, leaves: readonly Hash[], isWhole: boolean): Promise<Hash[]> {
  const root = async (some: readonly Hash[]) => rootOf(await edgeAfter(some))
  if (from === leaves.length) return isWhole ? [] : [await root(leaves)]
  const half = 2 ** Math.floor(Math.log2(leaves.length - 1))
  const [left, right] = [leaves.slice(0, half), leaves.slice(half)]
  if (from <= half) return [...(await proofOf(from, left, isWhole)), await root(right)]
  return [...(await proofOf(from - half, right, false)), await root(left)]
}

// The test's own service, which signs the log as it stands.
class Service implements LogSource {
  readonly convo = "0192f3a4-0000-7000-8000-000000000001"
  readonly signer = new HeadSigner("did:web:chat.example")
  readonly salt = new Uint8Array(16)
  generation = 1
  now = Date.parse("2026-11-22T09:30:00Z")
  log: Seen[] = []
  isUp = true

  async head(_: string, dids: readonly string[]): Promise<LogAnswer> {
    if (!this.isUp) throw new Error("no head now")
    const edge = await edgeAfter(await Promise.all(this.log.map((one) => this.leaf(one))))
    const senders = dids.map(async (did) => ({ did, salt: this.salt, tag: await tagOf(this.salt, did) }))
    const head = await this.signer.head(this.convo, edge, this.generation, this.now)
    return { head, keys: [await this.signer.key()], senders: await Promise.all(senders) }
  }

  inclusion(): Promise<never> {
    return Promise.reject(new Error("no proofs"))
  }

  async consistency(_: string, from: number, size: number): Promise<Hash[]> {
    return proofOf(from, await Promise.all(this.log.slice(0, size).map((one) => this.leaf(one))), true)
  }

  async leaf(one: Seen): Promise<Hash> {
    return leafHash(recordOf({ ...one, tag: await tagOf(this.salt, one.sender) }))
  }

  // accept takes a message a second after the last one, and acknowledges it.
  async accept(text: string, sender: string): Promise<Seen> {
    this.now += 1000
    const body = await sha256(new TextEncoder().encode(text))
    const one = { seq: this.log.length + 1, kind: kinds.application, epoch: 1, at: this.now, body, sender }
    this.log.push(one)
    return one
  }

  verifier(): Verifier {
    return Verifier.create(this.signer.service, this.convo, this, () => this.now)
  }
}

const [me, bob] = ["did:plc:alice", "did:plc:bob"]

// What a device finds that reads a service's log from the start, and reads again if it must.
async function readAll(v: Verifier, log: readonly Seen[]): Promise<string[]> {
  const found: string[] = []
  for (let again = true; again; ) {
    again = false
    for (const one of log.slice(v.size)) {
      const { throws, says } = await foundBy(v.entry(one))
      if (throws !== undefined && throws !== "readAgain") found.push(`${throws}: ${says}`)
      again = throws === "readAgain" || throws === "wentBack"
      if (throws !== undefined) break
    }
  }
  return found
}

// T10 of the third examination: the first head of a later generation made the verifier forget what was acknowledged.
for (const [name, change, says] of [
  ["sender", { sender: bob }, "entry 2 is mine, and is shown as one of did:plc:bob"],
  ["text", { body: "00".repeat(32) }, "entry 2 is mine, and is shown with other bytes"],
  ["time", { at: 0 }, "entry 2 is mine, was acknowledged at 2026-11-22T09:30:02.000Z and is shown with the time 1970-01-01T00:00:00.000Z"],
] as const) {
  test(`T10: what was acknowledged before the first head is shown with another ${name}`, async () => {
    const service = new Service()
    const v = service.verifier()
    await service.accept("hello", bob)
    for (const text of ["one", "two"]) await v.sent(await service.accept(text, me))
    service.log[1] = { ...service.log[1]!, ...change }
    service.now += 1000
    const sentence = `the server went back from 2 entries to 3; the first 1 are the same (generation 1): ${says}`
    assert.deepEqual(await readAll(v, service.log), [`wentBack: ${sentence}`], "it is heard once")
    assert.equal(v.size, 3, "reading goes on")
    assert.deepEqual(v.findings.map(({ kind }) => kind), ["wentBack"])
  })
}

test("T10: the acknowledgement comes after the first head, and the entry before it", async () => {
  const service = new Service()
  const v = service.verifier()
  const mine = await service.accept("one", me)
  service.log[0] = { ...mine, sender: bob }
  service.now += 1000
  await v.refresh()
  assert.deepEqual(await readAll(v, service.log), [])
  const { throws, says } = await foundBy(v.sent(mine))
  assert.deepEqual([throws, says?.split(": ")[1]], ["wentBack", "entry 1 is mine, and was shown as another one"])
})

test("what was acknowledged before the first head, and is not in it, is lost", async () => {
  const service = new Service()
  const v = service.verifier()
  await service.accept("hello", bob)
  for (const text of ["one", "two"]) await v.sent(await service.accept(text, me))
  service.log.length = 1
  service.now += 1000
  const sentence = "the server went back from 3 entries to 1; the first 0 are the same (generation 1)"
  assert.deepEqual(await foundBy(v.refresh()), { throws: "wentBack", says: sentence })
  await v.sent(await service.accept("one", me)) // the client sends it again
  assert.deepEqual(await readAll(v, service.log), [])
})

test("a restore before the first head is no lie, even if the clock of heads is behind", async () => {
  const service = new Service()
  const v = service.verifier()
  await v.sent(await service.accept("one", me))
  service.log.length = 0
  service.now -= 100_000
  await service.accept("hello", bob)
  assert.deepEqual((await readAll(v, service.log)).map((one) => one.split(":")[0]), ["wentBack"])
  await v.sent(await service.accept("one", me)) // the client sends it again
  assert.deepEqual(await readAll(v, service.log), [])
  await v.refresh()
  assert.deepEqual(v.findings.map(({ kind }) => kind), ["wentBack"])
})

for (const generation of [0, 1]) {
  test(`an honest service of generation ${generation} has what it acknowledged before the first head`, async () => {
    const service = new Service()
    service.generation = generation
    const v = service.verifier()
    await service.accept("hello", bob)
    for (const text of ["one", "two"]) await v.sent(await service.accept(text, me))
    service.now += 1000
    assert.deepEqual(await readAll(v, service.log), [])
    await v.refresh()
    assert.deepEqual(v.findings, [])
  })
}

test("T10: what was not shown yet when the service went on with another generation", async () => {
  const service = new Service()
  const v = service.verifier()
  await service.accept("hello", bob)
  await readAll(v, service.log)
  await v.refresh()
  const mine = await service.accept("one", me)
  await v.sent(mine)
  service.generation = 2
  service.log[1] = { ...mine, sender: bob }
  service.now += 1000
  await v.refresh() // nothing seems to be lost
  const sentence = "the server went back from 2 entries to 2; the first 1 are the same (generation 2)"
  const why = "entry 2 is mine, and is shown as one of did:plc:bob"
  assert.deepEqual(await readAll(v, service.log), [`wentBack: ${sentence}: ${why}`])
})

// A device that has sent something at a service of which it has a head, and what it finds while none comes.
async function withoutHeads() {
  const service = new Service()
  const v = service.verifier()
  await v.sent(await service.accept("hello", me))
  await readAll(v, service.log)
  await v.refresh()
  service.isUp = false
  const found: string[] = []
  const refresh = async () => {
    const { throws, says } = await foundBy(v.refresh())
    assert.ok(throws !== undefined, "a head came")
    if (throws !== "source") found.push(`${throws}: ${says}`)
  }
  const say = async () => {
    await v.sent(await service.accept("and", me))
    await refresh()
  }
  return { service, v, found, refresh, say }
}

const rounds = unsignedFor / countedAtMost

test("T11: the service acknowledges for an hour, and gives no head", async () => {
  const { service, v, found, refresh, say } = await withoutHeads()
  for (let round = 0; round < rounds; round++) {
    await say()
    service.now += countedAtMost
    assert.deepEqual(found, [], `round ${round}`)
  }
  await say()
  const sentence = "the server has acknowledged my entry 8, and for 1h0m0s given no head of more than 1 entries (no head now)"
  assert.deepEqual(found, [`unsigned: ${sentence}`])
  for (let round = 0; round <= rounds; round++) {
    service.now += countedAtMost
    await say()
    await refresh()
  }
  assert.equal(found.length, 1, "the app hears it once")
  assert.deepEqual(v.findings.map(({ kind }) => kind), ["unsigned"])
  service.isUp = true
  await v.refresh()
  assert.deepEqual(v.findings, [], "it ends with a head")
  service.isUp = false
  for (let round = 0; round <= rounds; round++) {
    await say()
    service.now += countedAtMost
  }
  assert.equal(found.length, 2, "the next time is heard, too")
})

test("a service that is down for a day is no finding", async () => {
  const { service, v, found, refresh, say } = await withoutHeads()
  await say() // the last one before
  for (let minute = 0; minute < 24 * 60; minute++) {
    service.now += 60_000
    await refresh()
  }
  await say()
  service.isUp = true
  await v.refresh()
  assert.deepEqual([found, v.findings], [[], []])
})

test("a device that is offline for days, and loses the connection before a head comes, is no finding", async () => {
  const { service, found, say } = await withoutHeads()
  for (let day = 0; day < rounds; day++) {
    await say()
    service.now += 24 * 3_600_000
  }
  assert.deepEqual(found, [])
})

test("a clock that jumps, and jumps back, is no finding", async () => {
  const { service, found, say } = await withoutHeads()
  const start = service.now
  for (const time of [start, start + 365 * 24 * 3_600_000, start, start + 60_000, 0, start]) {
    service.now = time
    await say()
  }
  assert.deepEqual(found, [])
})
