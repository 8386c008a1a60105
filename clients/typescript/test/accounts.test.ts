// What accounts say of their devices, read from doubles of PDSes and of the directory.

import assert from "node:assert/strict"
import { type TestContext, test } from "node:test"
import { Secp256k1Keypair } from "@atproto/crypto"
import { AccountAwayError, MemoryAccounts, recordKeyOf } from "../src/accounts.js"
import { AtprotoAccounts, type AtprotoAccountsOptions } from "../src/accounts-atproto.js"
import { type Clock, systemClock } from "../src/clock.js"
import { XrpcError } from "../src/errors.js"
import type { Did } from "../src/ids.js"
import { DirectoryDouble, PdsDouble } from "./support/accounts.js"
import { agentOf, clearFaults, dev, needsServer, newAccounts, plan, serverURL } from "./support/dev.js"
import { Pds, pdsFolders } from "./support/pds.js"
import { Repository } from "./support/repositories.js"

const alice = "did:plc:ewvi7nxzyoun6zhxrhs64oiz" as Did
const bob = "did:plc:44ybard66vv44zksje25o7dz" as Did
const suite = "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"
const keyOf = (seed: number) => new Uint8Array(32).fill(seed)
const away = (why: RegExp) => (err: unknown) => err instanceof AccountAwayError && err.did === alice && why.test(err.message)

test("a record's key is the base32 of the signature key's digest", async () => {
  // python3 -c 'import base64,hashlib;print(base64.b32encode(hashlib.sha256(b"\1"*32).digest()[:20]).lower())'
  assert.equal(await recordKeyOf(keyOf(1)), "olgw5bbcyqd7w3ijq2ipceylpxwx5qxx")
  assert.equal(await recordKeyOf(new Uint8Array()), "4oymiquy7qobjgx36tejs35zeqt24qpe")
})

test("accounts in memory are one world for all clients", async () => {
  const world = new Map()
  const [ofAlice, ofBob] = [new MemoryAccounts(alice, world), new MemoryAccounts(bob, world)]
  await ofAlice.list({ key: keyOf(1), cipherSuite: suite })
  await ofAlice.list({ key: keyOf(1), cipherSuite: suite, name: "Phone" })
  await ofAlice.list({ key: keyOf(2), cipherSuite: suite })
  const order = (await recordKeyOf(keyOf(1))) < (await recordKeyOf(keyOf(2))) ? [1, 2] : [2, 1]
  assert.deepEqual(await ofBob.keys(alice), order.map(keyOf))
  assert.deepEqual([await ofBob.lists(alice, keyOf(1)), await ofBob.lists(bob, keyOf(1))], [true, false])
  await ofAlice.unlist(keyOf(1))
  await ofAlice.unlist(keyOf(1))
  assert.equal(await ofBob.lists(alice, keyOf(1)), false)
  ofBob.away(alice)
  const questions = [ofBob.lists(alice, keyOf(2)), ofBob.keys(alice), ofBob.hasEnded(alice)]
  await Promise.all(questions.map((question) => assert.rejects(question, away(/is away/))))
  ofBob.away(alice, false)
  assert.equal(await ofBob.hasEnded(alice), false)
  ofBob.end(alice)
  assert.equal(await ofBob.hasEnded(alice), true)
  await assert.rejects(ofBob.lists(alice, keyOf(2)), AccountAwayError)
})

const collection = "blue.catbird.mls.device"
const minute = 60_000

/** A clock that the test moves, and whose sleeps end when the test says so. */
class TestClock implements Clock {
  time = Date.now()
  readonly random = systemClock.random
  readonly randomBytes = systemClock.randomBytes
  private readonly sleeping = new Set<() => void>()

  now(): number {
    return this.time
  }

  sleep(_ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      this.sleeping.add(resolve)
      signal.addEventListener("abort", () => resolve())
    })
  }

  /** All that waits has waited long enough. */
  wake(): void {
    for (const resolve of this.sleeping) resolve()
  }
}

// world makes an account of Alice at a PDS, with the keys listed, and Bob's way to look at it.
async function world(t: TestContext, keys: Uint8Array[] = [], options: Partial<AtprotoAccountsOptions> = {}) {
  const [directory, pds, clock] = [await DirectoryDouble.start(t), await PdsDouble.start(t), new TestClock()]
  const repository = await Repository.create(alice)
  pds.repositories.set(alice, repository)
  directory.place(repository, pds.url)
  const open = (did: Did) => new AtprotoAccounts({ did, agent: pds.agent, plcDirectory: directory.url, clock, ...options })
  const [ofAlice, ofBob] = [open(alice), open(bob)]
  for (const key of keys) await ofAlice.list({ key, cipherSuite: suite })
  const asked = () => {
    const all = [...directory.asked, ...pds.asked]
    directory.asked = []
    pds.asked = []
    return all
  }
  asked()
  return { directory, pds, clock, repository, ofAlice, ofBob, asked }
}

const [document, proof] = ["document", "com.atproto.sync.getRecord"]

test("an account lists its device, and everybody can prove it", async (t) => {
  const { ofAlice, ofBob, repository, asked } = await world(t)
  assert.equal(await ofBob.lists(alice, keyOf(1)), false)
  asked()
  await ofAlice.list({ key: keyOf(1), cipherSuite: suite })
  assert.deepEqual(asked(), ["com.atproto.repo.getRecord", "com.atproto.repo.putRecord"])
  const rkey = await recordKeyOf(keyOf(1))
  const record = (await repository.get(collection, rkey)) as { createdAt: string }
  assert.deepEqual(record, { $type: collection, signatureKey: keyOf(1), cipherSuite: suite, createdAt: record.createdAt })
  assert.equal(await ofBob.lists(alice, keyOf(1)), true)
  assert.equal(await ofBob.lists(alice, keyOf(2)), false)
  asked()
  await ofAlice.list({ key: keyOf(1), cipherSuite: suite })
  assert.deepEqual(asked(), ["com.atproto.repo.getRecord"], "the record is as it should be")
  await ofAlice.list({ key: keyOf(1), cipherSuite: suite, name: "Phone" })
  await ofAlice.list({ key: keyOf(1), cipherSuite: suite })
  assert.deepEqual(await repository.get(collection, rkey), { ...record, name: "Phone" })
  await ofAlice.list({ key: keyOf(1), cipherSuite: "MLS_256_DHKEMX448_AES256GCM_SHA512_Ed448" })
  const want = { ...record, cipherSuite: "MLS_256_DHKEMX448_AES256GCM_SHA512_Ed448", name: "Phone" }
  assert.deepEqual(await repository.get(collection, rkey), want, "it keeps its name and its time")
  await ofAlice.unlist(keyOf(1))
  await ofAlice.unlist(keyOf(1))
  assert.equal(await ofBob.lists(alice, keyOf(1)), false)
})

test("what the own PDS does not take is the caller's to know", async (t) => {
  const { ofAlice, pds, repository } = await world(t)
  await repository.put(collection, await recordKeyOf(keyOf(1)), { $type: collection, signatureKey: keyOf(1) })
  await ofAlice.list({ key: keyOf(1), cipherSuite: suite })
  assert.equal(await ofAlice.lists(alice, keyOf(1)), true, "a damaged record is written anew")
  await assert.rejects(ofAlice.list({ key: keyOf(1), cipherSuite: suite, name: "x".repeat(100) }), /grapheme/)
  pds.fault = (_, response) => response.writeHead(503).end("{}")
  const writes = [ofAlice.list({ key: keyOf(2), cipherSuite: suite }), ofAlice.unlist(keyOf(2))]
  await Promise.all(writes.map((write) => assert.rejects(write, (err) => err instanceof XrpcError && err.status === 503)))
})

test("a new member costs two requests, each further device one, and an hour later the document again", async (t) => {
  const { ofBob, clock, asked } = await world(t, [keyOf(1), keyOf(2)])
  assert.equal(await ofBob.lists(alice, keyOf(1)), true)
  assert.deepEqual(asked(), [document, proof])
  assert.equal(await ofBob.lists(alice, keyOf(2)), true)
  assert.deepEqual(asked(), [proof])
  clock.time += 59 * minute
  assert.equal(await ofBob.lists(alice, keyOf(1)), true)
  assert.deepEqual(asked(), [proof])
  clock.time += 2 * minute
  assert.equal(await ofBob.lists(alice, keyOf(1)), true)
  assert.deepEqual(asked(), [document, proof])
})

test("an unlisted key costs one document in five minutes: the account may have moved", async (t) => {
  const { ofBob, clock, asked } = await world(t, [keyOf(1)])
  await ofBob.lists(alice, keyOf(1))
  clock.time += 6 * minute
  asked()
  for (const want of [[document, proof], [proof], [proof]]) {
    assert.equal(await ofBob.lists(alice, keyOf(3)), false)
    assert.deepEqual(asked(), want)
  }
})

test("questions at the same time share their requests", async (t) => {
  const { ofBob, asked } = await world(t, [keyOf(1), keyOf(2)])
  const answers = await Promise.all([1, 1, 1, 2, 2, 3].map((seed) => ofBob.lists(alice, keyOf(seed))))
  assert.deepEqual(answers, [true, true, true, true, true, false])
  assert.deepEqual(asked(), [document, proof, proof, proof])
})

test("all keys of an account, with a proof of each", async (t) => {
  const seeds = Array.from({ length: 14 }, (_, i) => i)
  const { ofBob, pds, repository, asked } = await world(t, seeds.map(keyOf))
  const named = await Promise.all(seeds.map(async (seed) => ({ seed, name: await recordKeyOf(keyOf(seed)) })))
  const want = named.sort((a, b) => (a.name < b.name ? -1 : 1)).map(({ seed }) => keyOf(seed))
  assert.deepEqual(await ofBob.keys(alice), want)
  const count = (all: string[], what: string) => all.filter((one) => one === what).length
  const all = asked()
  assert.deepEqual([count(all, document), count(all, "com.atproto.repo.listRecords"), count(all, proof)], [1, 2, 14])
  pds.page = 4
  await repository.put(collection, "self", { $type: collection, signatureKey: keyOf(1), cipherSuite: suite, createdAt: new Date(0).toISOString() })
  assert.deepEqual(await ofBob.keys(alice), want, "in pages, and without a record under a wrong name")
  assert.equal(count(asked(), proof), 14)
  pds.fault = (_, response) => {
    const records = Array.from({ length: 101 }, (_, i) => ({ uri: `at://${alice}/${collection}/${i}` }))
    response.end(JSON.stringify({ records }))
  }
  await assert.rejects(ofBob.keys(alice), away(/more than 100 devices/))
})

test("another key under the name of a key counts as not there", async (t) => {
  const { ofBob, repository } = await world(t)
  const other = { $type: collection, signatureKey: keyOf(2), cipherSuite: suite, createdAt: new Date(0).toISOString() }
  await repository.put(collection, await recordKeyOf(keyOf(1)), other)
  for (const seed of [1, 2]) assert.equal(await ofBob.lists(alice, keyOf(seed)), false)
  assert.deepEqual(await ofBob.keys(alice), [])
  await repository.put(collection, await recordKeyOf(keyOf(1)), { ...other, signatureKey: "1" })
  assert.equal(await ofBob.lists(alice, keyOf(1)), false)
})

test("an answer that proves nothing is no answer", async (t) => {
  const { ofBob, pds, repository, clock, asked } = await world(t, [keyOf(1)])
  const mallory = await Repository.create(alice)
  const proofOf = (of: Repository, rkey: string) => of.proof(collection, rkey)
  const [name, none] = [await recordKeyOf(keyOf(1)), await recordKeyOf(keyOf(9))]
  await mallory.put(collection, name, (await repository.get(collection, name)) as never)
  const ofOther = await Repository.create(bob)
  for (let i = 0; i < 50; i++) await repository.put("com.example.post", `${i}`, { i })
  const cars = {
    "of another signer": await proofOf(mallory, name),
    "of another account": await proofOf(ofOther, name),
    "of another path": await repository.proof("com.example.post", "7"),
    "empty": new Uint8Array(),
    "a page": new TextEncoder().encode("<html>"),
  }
  for (const [what, car] of Object.entries(cars)) {
    pds.fault = (_, response) => response.end(car)
    for (const key of [keyOf(1), keyOf(9)]) await assert.rejects(ofBob.lists(alice, key), away(/its answer proves nothing/), what)
  }
  pds.fault = undefined
  assert.equal(await ofBob.lists(alice, keyOf(1)), true)
  pds.fault = async (_, response) => response.end(await proofOf(mallory, none))
  await assert.rejects(ofBob.lists(alice, keyOf(9)), away(/its answer proves nothing/))
  asked()
  clock.time += 6 * minute
  for (const want of [[document, proof], [proof]]) {
    await assert.rejects(ofBob.lists(alice, keyOf(1)), away(/its answer proves nothing/))
    assert.deepEqual(asked(), want, "one document in five minutes")
  }
})

test("a PDS or a directory that fails is away", async (t) => {
  const faults: Record<string, [fault: PdsDouble["fault"], why: RegExp]> = {
    "500": [(_, response) => response.writeHead(500).end("<html>"), /500.*127\.0\.0\.1|status 500/],
    "refused": [(_, response) => response.writeHead(400).end('{"error":"RepoDeactivated"}'), /status 400|RepoDeactivated/],
    "closed": [(_, response) => response.destroy(), /127\.0\.0\.1/],
    "cut": [(_, response) => response.writeHead(200, { "content-length": "500" }).write("x", () => response.destroy()), /127\.0\.0\.1/],
    "huge": [(_, response) => response.end(Buffer.alloc((1 << 20) + 1)), /more than \d+ bytes/],
  }
  for (const [what, [fault, why]] of Object.entries(faults)) {
    await t.test(what, async (t) => {
      const { ofBob, pds, directory } = await world(t, [keyOf(1)])
      pds.fault = fault
      const questions = [ofBob.lists(alice, keyOf(1)), ofBob.keys(alice), ofBob.hasEnded(alice)]
      await Promise.all(questions.map((question) => assert.rejects(question, away(why))))
      pds.fault = undefined
      assert.equal(await ofBob.lists(alice, keyOf(1)), true, "a failure is not remembered")
      directory.fault = fault
      await assert.rejects(ofBob.hasEnded(alice), away(why))
      assert.equal(await ofBob.lists(alice, keyOf(1)), true, "the document of before is good enough for a listed key")
    })
  }
})

test("a redirect is not followed", async (t) => {
  const { ofBob, pds, directory } = await world(t, [keyOf(1)])
  for (const host of [directory, pds]) {
    host.fault = (request, response) => {
      host.fault = undefined
      response.writeHead(307, { location: request.url }).end()
    }
    await assert.rejects(ofBob.lists(alice, keyOf(1)), away(/127\.0\.0\.1/))
    assert.equal(await ofBob.lists(alice, keyOf(1)), true)
  }
})

test("a slow PDS is away when the question's time is over", async (t) => {
  const { ofBob, pds, clock, directory, repository } = await world(t, [keyOf(1)])
  const asked = new Promise<void>((resolve) => (pds.fault = () => resolve()))
  const [first, second] = [ofBob.lists(alice, keyOf(1)), ofBob.lists(alice, keyOf(1))]
  const outcomes = Promise.allSettled([first, second])
  await asked
  clock.wake()
  for (const { status } of await outcomes) assert.equal(status, "rejected")
  await assert.rejects(first, away(/no answer in 10000 ms/))
  const next = await PdsDouble.start(t)
  next.repositories.set(alice, repository)
  directory.place(repository, next.url)
  clock.time += 6 * minute
  assert.equal(await ofBob.lists(alice, keyOf(1)), true, "the next question looks first whether the account has moved")
})

test("a caller that no longer waits does not stop others", async (t) => {
  const { ofBob, pds } = await world(t, [keyOf(1)])
  let answer = () => {}
  const asked = new Promise<void>((resolve) => {
    pds.fault = async (_, response) => {
      pds.fault = undefined
      answer = async () => response.end(await pds.repositories.get(alice)!.proof(collection, await recordKeyOf(keyOf(1))))
      resolve()
    }
  })
  const abort = new AbortController()
  const [first, second] = [ofBob.lists(alice, keyOf(1), abort.signal), ofBob.lists(alice, keyOf(1))]
  await asked
  abort.abort(new Error("the app closes"))
  await assert.rejects(first, away(/the app closes/))
  answer()
  assert.equal(await second, true)
  await assert.rejects(ofBob.lists(alice, keyOf(1), abort.signal), away(/the app closes/))
})

test("a document that names no PDS, no key or a wrong one says nothing", async (t) => {
  const { ofBob, directory, pds, asked, repository } = await world(t, [keyOf(1)])
  const good = directory.documents.get(alice) as { service: { serviceEndpoint: string }[]; verificationMethod: object[] }
  const at = (serviceEndpoint: string) => ({ ...good, service: [{ ...good.service[0], serviceEndpoint }] })
  const documents: [object, RegExp][] = [
    [{ ...good, service: [] }, /names no PDS/],
    [{ ...good, verificationMethod: [] }, /no signing key/],
    [{ ...good, verificationMethod: [{ ...good.verificationMethod[0], type: "Other" }] }, /no signing key/],
    [{ ...good, id: bob }, /another DID/],
    [{ ...good, alsoKnownAs: ["x".repeat(64 << 10)] }, /more than 65536 bytes/],
    [at("http://pds.example.com"), /not https/],
    [at("http://127.0.0.1.example.com"), /not https/],
    [at("ftp://pds.example.com"), /not https/],
    [at(`${pds.url}/path`), /more than the address of a host/],
    [at("https://user:password@pds.example.com"), /more than the address of a host/],
    [at("nowhere"), /Invalid URL/],
  ]
  for (const [document, why] of documents) {
    directory.documents.set(alice, document)
    await assert.rejects(ofBob.lists(alice, keyOf(1)), away(why), String(why))
  }
  directory.documents.set(alice, { ...good, verificationMethod: [{ ...good.verificationMethod[0], publicKeyMultibase: "zKey" }] })
  await assert.rejects(ofBob.lists(alice, keyOf(1)), away(/not a multikey/))
  directory.documents.delete(alice)
  assert.equal(asked().filter((one) => one !== "document" && one !== proof).length, 0)
  await assert.rejects(ofBob.hasEnded(alice), away(/status 404/))
  directory.place(repository, pds.url)
  const strict = new AtprotoAccounts({ did: bob, agent: pds.agent, plcDirectory: directory.url, loopback: false })
  await assert.rejects(strict.lists(alice, keyOf(1)), away(/not https/))
  for (const plcDirectory of ["http://plc.example.com", "https://plc.example.com/path"]) {
    assert.throws(() => new AtprotoAccounts({ did: bob, agent: pds.agent, plcDirectory }), /not https|more than/)
  }
})

test("a did:web is found at its host", async (t) => {
  const { ofBob, directory, pds } = await world(t)
  const did = directory.web as Did
  const repository = await Repository.create(did)
  pds.repositories.set(did, repository)
  directory.place(repository, pds.url)
  const record = { $type: collection, signatureKey: keyOf(1), cipherSuite: suite, createdAt: new Date(0).toISOString() }
  await repository.put(collection, await recordKeyOf(keyOf(1)), record)
  assert.deepEqual([await ofBob.lists(did, keyOf(1)), await ofBob.lists(did, keyOf(2))], [true, false])
  for (const other of ["did:web:127.0.0.1%3A1%2Fpath", "did:web:a%40127.0.0.1", "did:key:zQ3sh"]) {
    await assert.rejects(ofBob.lists(other as Did, keyOf(1)), /more than the address|nobody knows|https/, other)
  }
  await assert.rejects(ofBob.lists("did:web:localhost%3A1" as Did, keyOf(1)), AccountAwayError)
})

test("an account that moved is found at its new PDS, or with its new key", async (t) => {
  const moves: Record<string, { pds?: true; key?: true }> = { "PDS and key": { pds: true, key: true }, "PDS": { pds: true }, "key": { key: true } }
  for (const [what, move] of Object.entries(moves)) {
    await t.test(what, async (t) => {
      const { ofBob, directory, pds, repository, clock, asked } = await world(t, [keyOf(1)])
      assert.equal(await ofBob.lists(alice, keyOf(1)), true)
      const [next, former] = [move.pds ? await PdsDouble.start(t) : pds, await repository.copy()]
      pds.repositories.set(alice, former) // a former PDS goes on to answer, with the former key
      next.repositories.set(alice, repository)
      if (move.key) await repository.rotate(await Secp256k1Keypair.create())
      const device = { $type: collection, signatureKey: keyOf(2), cipherSuite: suite, createdAt: new Date(0).toISOString() }
      await repository.put(collection, await recordKeyOf(keyOf(2)), device)
      directory.place(repository, next.url)
      clock.time += 6 * minute
      asked()
      assert.equal(await ofBob.lists(alice, keyOf(2)), true)
      assert.deepEqual([...asked(), ...(move.pds ? next.asked : [])], [document, proof, proof])
      if (!move.pds) return
      directory.place(former, pds.url)
      clock.time += 6 * minute
      assert.equal((await ofBob.keys(alice)).length, 1, "it has moved back")
      directory.place(repository, next.url)
      pds.repositories.delete(alice)
      asked()
      assert.equal(await ofBob.hasEnded(alice), false)
      assert.deepEqual(asked(), [document], "the former PDS is not asked")
    })
  }
})

test("an account that has ended is one that its PDS deleted, or whose DID is a tombstone", async (t) => {
  const { ofBob, directory, pds, repository, asked } = await world(t, [keyOf(1)])
  const statuses: [object, boolean][] = [
    [{ active: true }, false],
    [{ active: false, status: "deactivated" }, false],
    [{ active: false, status: "suspended" }, false],
    [{ active: false, status: "takendown" }, false],
    [{ active: false }, false],
    [{ active: false, status: "deleted" }, true],
  ]
  for (const [status, ended] of statuses) {
    pds.status = status
    assert.equal(await ofBob.hasEnded(alice), ended, JSON.stringify(status))
    assert.deepEqual(asked(), [document, "com.atproto.sync.getRepoStatus"])
  }
  pds.status = { did: bob, active: false, status: "deleted" }
  await assert.rejects(ofBob.hasEnded(alice), away(/another account/))
  pds.repositories.delete(alice)
  assert.equal(await ofBob.hasEnded(alice), true)
  await assert.rejects(ofBob.lists(alice, keyOf(1)), away(/RepoNotFound/))
  pds.repositories.set(alice, repository)
  assert.equal(await ofBob.lists(alice, keyOf(1)), true)
  directory.documents.set(alice, undefined)
  assert.equal(await ofBob.hasEnded(alice), true)
  await assert.rejects(ofBob.lists(alice, keyOf(1)), away(/has ended/), "the document of before is forgotten")
})

test("a real PDS proves what it lists", { ...(pdsFolders.length === 0 && { skip: "TEST_PDS is not set: check.sh sets it" }) }, async (t) => {
  for (const [i, folder] of pdsFolders.entries()) {
    await t.test(folder, async (t) => {
      const pds = await Pds.start(folder)
      t.after(() => pds.end())
      const { did, agent } = await pds.account(`lists${i}.test`)
      const accounts = new AtprotoAccounts({ did, agent, plcDirectory: serverURL() })
      assert.deepEqual([await accounts.lists(did, keyOf(1)), await accounts.keys(did)], [false, []])
      for (const seed of [1, 2, 2]) await accounts.list({ key: keyOf(seed), cipherSuite: suite, name: "Phone" })
      const listed = await Promise.all([1, 2, 3].map((seed) => accounts.lists(did, keyOf(seed))))
      assert.deepEqual([listed, (await accounts.keys(did)).length], [[true, true, false], 2])
      await accounts.unlist(keyOf(1))
      await accounts.unlist(keyOf(1))
      assert.deepEqual([await accounts.lists(did, keyOf(1)), await accounts.keys(did)], [false, [keyOf(2)]])
      assert.equal(await accounts.hasEnded(did), false)
      await pds.deleteAccount(did)
      assert.equal(await accounts.hasEnded(did), true)
    })
  }
})

test("mlsd-dev is a PDS that lists devices, and fails as it is asked", needsServer, async (t) => {
  const [did, other] = await newAccounts(2) as [Did, Did]
  const open = (did: Did) => new AtprotoAccounts({ did, agent: agentOf(did), plcDirectory: serverURL() })
  const [own, others] = [open(did), open(other)]
  t.after(clearFaults)
  await own.list({ key: keyOf(1), cipherSuite: suite })
  assert.deepEqual([await others.lists(did, keyOf(1)), await others.lists(did, keyOf(2))], [true, false])
  await dev("POST", "/dev/devices", { did })
  assert.equal((await others.keys(did)).length, 2, "a device of mlsd-dev is listed too")
  for (const kind of ["recordMissing", "recordOtherKey"] as const) {
    await plan({ kind, did })
    assert.equal(await others.lists(did, keyOf(1)), false, kind)
  }
  for (const kind of ["badProof", "pdsAway"] as const) {
    await plan({ kind, did })
    await assert.rejects(others.lists(did, keyOf(1)), AccountAwayError, kind)
  }
  assert.equal(await others.lists(did, keyOf(1)), true)
  await own.unlist(keyOf(1))
  assert.equal(await others.lists(did, keyOf(1)), false)
})
