// What the client relies on of an MLS library.

import assert from "node:assert/strict"
import { test } from "node:test"
import { TsMls } from "../src/mls-ts.js"
import { bytesOf, suite } from "./support/phone.js"

// Before, encrypt erased the key in the bytes that it was given. A FileStore hands out its record: after
// a request that could not be stored or was discarded, nobody could read what was written next.
test("a state stays as it was, whatever is made of it", async () => {
  const mls = await TsMls.create("did:plc:alice", suite)
  const { keyPackage } = await (await TsMls.create("did:plc:bob", suite)).keyPackage(false)
  const { state } = await mls.stage(await mls.create(bytesOf("group")), { add: [keyPackage] })
  const before = state.slice()
  await mls.encrypt(state, bytesOf("hello"))
  await mls.stage(state, {})
  await mls.groupInfo(state)
  assert.deepEqual(state, before)
})

test("two members have the same epoch_authenticator, and each commit makes another one", async () => {
  const [alice, bob] = await Promise.all([TsMls.create("did:plc:alice", suite), TsMls.create("did:plc:bob", suite)])
  const { keyPackage, secret } = await bob.keyPackage(false)
  const { state: hers, welcome } = await alice.stage(await alice.create(bytesOf("group")), { add: [keyPackage] })
  const { state: his } = await bob.join(welcome!, async () => secret)
  const first = alice.describe(hers)
  assert.equal(first.authenticator.length, 32)
  assert.deepEqual(bob.describe(his).authenticator, first.authenticator)
  const staged = await bob.stage(his, {})
  const { state: next } = await alice.process(hers, staged.commit)
  const second = alice.describe(next)
  assert.deepEqual([second.epoch, second.authenticator], [first.epoch + 1, bob.describe(staged.state).authenticator])
  assert.notDeepEqual(second.authenticator, first.authenticator)
})
