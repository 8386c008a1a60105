// Proofs of records, compared with those of @atproto/repo.

import assert from "node:assert/strict"
import { test } from "node:test"
import { encode } from "@atproto/lex-cbor"
import { blocksToCarFile, cidForRecord, readCarWithRoot, verifyProofs } from "@atproto/repo"
import { provenRecord, verifierOf } from "../src/accounts-proof.js"
import { concat, fromHex, hex } from "../src/bytes.js"
import { newKeys, Repository, withoutEachBlock } from "./support/repositories.js"

const did = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
const collection = "blue.catbird.mls.device"
const recordOf = (name: string) => ({ $type: collection, name })

for (const [curve, newKey] of Object.entries(newKeys)) {
  test(`a repository signed with ${curve} proves what it has and what it has not, as @atproto/repo says too`, async () => {
    const repository = await Repository.create(did, await newKey())
    const verify = verifierOf(repository.multikey)
    const names = Array.from({ length: 60 }, (_, i) => `name${i * 37 % 1000}`)
    const look = async (rkey: string, has: boolean) => {
      const car = await repository.proof(collection, rkey)
      assert.deepEqual(await provenRecord(car, did, verify, `${collection}/${rkey}`), has ? recordOf(rkey) : undefined, rkey)
      const claim = { collection, rkey, cid: has ? await cidForRecord(recordOf(rkey)) : null }
      assert.equal((await verifyProofs(car, [claim], did, repository.didKey)).verified.length, 1, rkey)
    }
    await look("name0", false)
    for (const [i, name] of names.entries()) {
      await repository.put(collection, name, recordOf(name))
      if (i % 15 === 0) for (const one of names.slice(0, 30)) await look(one, names.indexOf(one) <= i)
    }
    for (const other of ["", "name", "name9999", "zzz", "-"]) await look(other, false)
    await repository.delete(collection, "name37")
    await look("name37", false)
  })
}

test("what proves nothing is refused", async () => {
  const repository = await Repository.create(did)
  for (let i = 0; i < 200; i++) await repository.put(collection, `name${i}`, recordOf(`name${i}`))
  const verify = verifierOf(repository.multikey)
  const refuses = (car: Uint8Array, why: RegExp, rkey = "name7", who = did, by = verify) =>
    assert.rejects(provenRecord(car, who, by, `${collection}/${rkey}`), why)
  for (const rkey of ["name7", "none"]) {
    const car = await repository.proof(collection, rkey)
    const less = await withoutEachBlock(car)
    assert.ok(less.length > 2)
    for (const some of less) await refuses(some, /a block is missing/, rkey)
    await refuses(car, /another repository/, rkey, "did:plc:44ybard66vv44zksje25o7dz")
    await refuses(car, /wrong signature/, rkey, did, verifierOf((await Repository.create(did)).multikey))
    for (let at = 1; at < car.length; at += 7) {
      await assert.rejects(provenRecord(car.subarray(0, at), did, verify, `${collection}/${rkey}`), `cut at ${at}`)
      const changed = car.slice()
      changed[at]! ^= 1
      await assert.rejects(provenRecord(changed, did, verify, `${collection}/${rkey}`), `changed at ${at}`)
    }
  }
  await refuses(await repository.proof(collection, "name199"), /a block is missing/)
  await refuses(new Uint8Array(), /.*/)
  const { blocks, root } = await readCarWithRoot(await repository.proof(collection, "name7"))
  const blocksFile = (await blocksToCarFile(root, blocks)).subarray(1 + 58)
  for (const roots of [[], [root, root]]) {
    const header = encode({ version: 1, roots })
    await refuses(concat([Uint8Array.of(header.length), header, blocksFile]), /not a CAR of one root/)
  }
  const header = encode({ version: 1, roots: [root] })
  await provenRecord(concat([Uint8Array.of(header.length), header, blocksFile]), did, verify, `${collection}/name7`)
})

const orders = {
  secp256k1: 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n,
  "P-256": 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n,
}

test("of the two forms of a signature only the one with the low s counts", async () => {
  for (const [curve, order] of Object.entries(orders)) {
    const [key, message] = [await newKeys[curve]!(), new TextEncoder().encode("a commit")]
    const [verify, signature] = [verifierOf(key.did().replace("did:key:", "")), await key.sign(message)]
    const high = order - BigInt(`0x${hex(signature.subarray(32))}`)
    const other = concat([signature.subarray(0, 32), fromHex(high.toString(16).padStart(64, "0"))])
    assert.deepEqual([verify(message, signature), verify(message, other)], [true, false], curve)
  }
})

test("only multikeys of the two curves are keys", async () => {
  const { multikey } = await Repository.create(did)
  for (const wrong of ["", "z", multikey.slice(1), multikey + "1", "z" + "6".repeat(48), multikey.replace("z", "u")]) {
    assert.throws(() => verifierOf(wrong), wrong)
  }
})
