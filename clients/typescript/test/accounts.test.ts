// What accounts say of their devices, read from doubles of PDSes and of the directory.

import assert from "node:assert/strict"
import { test } from "node:test"
import { AccountAwayError, MemoryAccounts, recordKeyOf } from "../src/accounts.js"
import type { Did } from "../src/ids.js"

const alice = "did:plc:ewvi7nxzyoun6zhxrhs64oiz" as Did
const bob = "did:plc:44ybard66vv44zksje25o7dz" as Did
const suite = "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"
const keyOf = (seed: number) => new Uint8Array(32).fill(seed)

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
  for (const ask of [ofBob.lists(alice, keyOf(2)), ofBob.keys(alice), ofBob.hasEnded(alice)]) {
    await assert.rejects(ask, (err) => err instanceof AccountAwayError && err.did === alice)
  }
  ofBob.away(alice, false)
  assert.equal(await ofBob.hasEnded(alice), false)
  ofBob.end(alice)
  assert.equal(await ofBob.hasEnded(alice), true)
  await assert.rejects(ofBob.lists(alice, keyOf(2)), AccountAwayError)
})
