// Encrypted files: sealed, uploaded in parts, resumed, read by another member, and refused if changed.

import assert from "node:assert/strict"
import { test } from "node:test"
import { Attachments, FileChangedError, openFile, sealFile } from "../src/attachments.js"
import { MemoryStore } from "../src/store.js"
import type { Call, Transport } from "../src/transport.js"
import { NoAnswerError } from "../src/errors.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { openPhone } from "./support/phone.js"

function fileOf(size: number): Uint8Array {
  return Uint8Array.from({ length: size }, (_, i) => (i * 31 + (i >> 8)) & 255)
}

test("a file is sealed under a fresh key, and a changed one is refused", async () => {
  const plain = fileOf(1000)
  const [one, two] = [await sealFile(plain), await sealFile(plain)]
  assert.notEqual(one.key, two.key)
  assert.notEqual(one.sha256, two.sha256)
  assert.deepEqual(await openFile(one, one.ciphertext), plain)
  const changed = one.ciphertext.slice()
  changed[500]! ^= 1
  await assert.rejects(openFile(one, changed), FileChangedError)
  await assert.rejects(openFile(one, one.ciphertext.subarray(1)), FileChangedError)
  await assert.rejects(openFile({ ...one, key: two.key }, one.ciphertext), FileChangedError)
})

/** A way on which every third answer is lost, and that dies after some calls. */
class Losing implements Transport {
  calls: string[] = []
  constructor(private readonly way: Transport, private left = Infinity) {}
  call(call: Call): Promise<string> {
    return this.lose(call, this.way.call(call))
  }
  receive(call: Call): Promise<Uint8Array> {
    return this.lose(call, this.way.receive!(call))
  }
  private async lose<T>(call: Call, answer: Promise<T>): Promise<T> {
    if (this.left-- <= 0) throw new TypeError("the app was killed")
    this.calls.push(call.method)
    const got = await answer
    if (this.calls.length % 3 === 0) throw new NoAnswerError("lost")
    return got
  }
}

test("a file is uploaded, resumed after the app was killed, and read by another member", needsServer, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const phone = await openPhone(alice, new MemoryStore())
  const other = await openPhone(bob, new MemoryStore())
  await other.replenish()
  const convo = await phone.createConvo([bob])
  const plain = fileOf((5 << 20) / 2)
  const sealed = await sealFile(plain)
  await assert.rejects(new Attachments(new Losing(transportOf(alice), 4)).upload(convo, sealed), TypeError)
  const losing = new Losing(transportOf(alice))
  const pointer = await new Attachments(losing).upload(convo, sealed)
  const puts = losing.calls.filter((method) => method.endsWith("putAttachmentPart")).length
  assert.ok(puts >= 1 && puts < 6, `${puts} parts were sent after the app was killed`)
  assert.equal(pointer.uri, `mlsd:attachment/${pointer.id}`)
  assert.deepEqual(await new Attachments(new Losing(transportOf(bob))).download(convo, pointer), plain)
  assert.deepEqual(await new Attachments(transportOf(alice)).upload(convo, sealed), pointer)
  await assert.rejects(new Attachments(transportOf(bob)).download(convo, { ...pointer, sha256: "00".repeat(32) }), FileChangedError)
  await Promise.all([phone.close(), other.close()])
})
