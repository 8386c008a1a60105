// Safety numbers and group codes: digits.ts, safety-number.ts, group-code.ts.

import assert from "node:assert/strict"
import { readFile, writeFile } from "node:fs/promises"
import { test } from "node:test"
import type { Client } from "../src/client.js"
import { CodeError, formatDigits } from "../src/digits.js"
import { UnknownConvoError } from "../src/errors.js"
import { groupCode } from "../src/group-code.js"
import { asDid, type ConvoId } from "../src/ids.js"
import { compareSafetyNumbers, parseSafetyNumber, safetyNumber, safetyNumberText } from "../src/safety-number.js"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts } from "./support/dev.js"
import { openPhone } from "./support/phone.js"

/** Bytes of a length that a number determines. */
const bytes = (length: number, n: number) => Uint8Array.from({ length }, (_, i) => (n * 61 + i * 83 + (i >> 3)) % 256)

const [alice, bob] = [asDid("did:plc:ewvi7nxzyoun6zhxrhs64oiz"), asDid("did:web:bob.example.com")]

const problem = (name: string) => (err: unknown) => err instanceof CodeError && err.problem === name

interface Person {
  readonly did: string
  /** Base64. */
  readonly keys: readonly string[]
}

/** The codes of clients/vectors. */
interface Vectors {
  readonly safetyNumbers: readonly { own: Person; other: Person; version: number; digits: string; text: string }[]
  readonly groupCodes: readonly { epoch: number; authenticator: string; version: number; digits: string }[]
}

const toBase64 = (content: Uint8Array) => Buffer.from(content).toString("base64")
const fromBase64 = (text: string) => new Uint8Array(Buffer.from(text, "base64"))

const numberOf = (own: Person, other: Person) =>
  safetyNumber(asDid(own.did), own.keys.map(fromBase64), asDid(other.did), other.keys.map(fromBase64))

test("one format: the codes of clients/vectors, for both persons and in every order of keys", async () => {
  const file = new URL("../../../vectors/codes.json", import.meta.url)
  if (process.env.CODES_VECTORS === "write") await writeFile(file, JSON.stringify(await newVectors(), undefined, 1) + "\n")
  const { safetyNumbers, groupCodes } = JSON.parse(await readFile(file, "utf8")) as Vectors
  assert.ok(safetyNumbers.length >= 12 && groupCodes.length >= 4)
  for (const { own, other, version, digits, text } of safetyNumbers) {
    const number = await numberOf(own, other)
    assert.deepEqual(number, { version, digits })
    assert.equal(safetyNumberText(number), text)
    assert.deepEqual(parseSafetyNumber(text), number)
    const turned = ({ did, keys }: Person) => ({ did, keys: [...keys].reverse() })
    assert.deepEqual(await numberOf(turned(other), turned(own)), number)
  }
  for (const { epoch, authenticator, version, digits } of groupCodes) {
    assert.deepEqual(await groupCode({ epoch, authenticator: fromBase64(authenticator) }), { version, epoch, digits })
  }
})

async function newVectors(): Promise<Vectors> {
  const [ed25519, p256] = [(n: number) => bytes(32, n), (n: number) => bytes(65, n)]
  const five = [1, 2, 3, 4, 5].map(ed25519)
  const prefix = bytes(57, 9) // and a shorter key that it begins with
  const pairs: readonly (readonly [string, readonly Uint8Array[], string, readonly Uint8Array[]])[] = [
    [alice, [ed25519(1)], bob, [ed25519(2)]],
    [bob, [ed25519(2)], alice, [ed25519(1)]],
    [alice, [ed25519(2)], bob, [ed25519(1)]],
    [alice, [ed25519(1), ed25519(3)], bob, [ed25519(2)]],
    [alice, [ed25519(3), ed25519(1)], bob, [ed25519(2)]],
    [alice, five, bob, [ed25519(6), ed25519(7), ed25519(8)]],
    [alice, [3, 1, 5, 2, 4].map((n) => five[n - 1]!), bob, [ed25519(8), ed25519(6), ed25519(7)]],
    [alice, [ed25519(1), ed25519(1)], bob, [ed25519(2)]],
    [alice, [ed25519(1)], alice.replace("ewvi", "zzzz"), [ed25519(1)]],
    ["did:web:localhost%3A2583", [p256(1)], bob, [p256(2), ed25519(2)]],
    ["did:web:a.example", [bytes(97, 1), bytes(133, 2)], "did:web:ab.example", [bytes(133, 3), bytes(97, 4)]],
    ["did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", [prefix, prefix.slice(0, 32)], bob, [Uint8Array.from({ length: 32 }, () => 255), new Uint8Array(32)]],
    [alice, [bytes(1312, 1), bytes(1952, 2), bytes(2592, 3)], bob, [bytes(2592, 4)]],
    [alice, [ed25519(10), ed25519(11), ed25519(12), ed25519(13)], bob, five],
  ]
  const safetyNumbers = pairs.map(async ([ownDid, ownKeys, otherDid, otherKeys]) => {
    const own: Person = { did: ownDid, keys: ownKeys.map(toBase64) }
    const other: Person = { did: otherDid, keys: otherKeys.map(toBase64) }
    const number = await numberOf(own, other)
    return { own, other, ...number, text: safetyNumberText(number) }
  })
  const groupCodes = ([[0, 32, 1], [1, 32, 2], [7, 32, 3], [7, 48, 3], [4294967296, 64, 4]] as const).map(async ([epoch, length, n]) => {
    const authenticator = bytes(length, n)
    return { authenticator: toBase64(authenticator), ...(await groupCode({ epoch, authenticator })) }
  })
  return { safetyNumbers: await Promise.all(safetyNumbers), groupCodes: await Promise.all(groupCodes) }
}

test("another key, one key more or another DID: another safety number", async () => {
  const [one, two, three] = [bytes(32, 1), bytes(32, 2), bytes(32, 3)]
  const carol = asDid("did:web:carol.example.com")
  const numbers = await Promise.all([
    safetyNumber(alice, [one], bob, [two]), safetyNumber(alice, [one], bob, [three]), safetyNumber(alice, [one, three], bob, [two]),
    safetyNumber(alice, [one], carol, [two]), safetyNumber(alice, [two], bob, [one]),
  ])
  assert.equal(new Set(numbers.map(({ digits }) => digits)).size, numbers.length)
  for (const { digits } of numbers) assert.match(digits, /^[0-9]{60}$/)
})

test("what has no safety number says why", async () => {
  const key = bytes(32, 1)
  await assert.rejects(safetyNumber(alice, [], bob, [key]), problem("NoKeys"))
  await assert.rejects(safetyNumber(alice, [key], bob, []), problem("NoKeys"))
  await assert.rejects(safetyNumber(alice, [key], alice, [key]), problem("SameDid"))
  for (const length of [0, 31, 33, 64]) {
    await assert.rejects(safetyNumber(alice, [key], bob, [key, bytes(length, 1)]), problem("KeyLength"))
  }
  await assert.rejects(groupCode({ epoch: 1, authenticator: new Uint8Array() }), problem("AuthenticatorLength"))
})

test("a scanned text is the same, differs, or is of another version", async () => {
  const own = await safetyNumber(alice, [bytes(32, 1)], bob, [bytes(32, 2)])
  const compared = (text: string) => compareSafetyNumbers(own, parseSafetyNumber(text))
  assert.equal(compared(`mlsd-safety:1:${own.digits}`), "same")
  for (let at = 0; at < own.digits.length; at++) {
    const digit = (Number(own.digits[at]) + 1) % 10
    assert.equal(compared(`mlsd-safety:1:${own.digits.slice(0, at)}${digit}${own.digits.slice(at + 1)}`), "differs")
  }
  assert.equal(compared(`mlsd-safety:2:${own.digits}`), "otherVersion")
  assert.equal(compared("mlsd-safety:255:123"), "otherVersion")
  const { digits } = own
  for (const text of [
    "", digits, `mlsd-safety:${digits}`, `mlsd-safety:0:${digits}`, `mlsd-safety:01:${digits}`, `mlsd-safety:256:${digits}`,
    `mlsd-safety:1:${digits.slice(1)}`, `mlsd-safety:1:${digits}0`, `mlsd-safety:1:${formatDigits(digits)}`, `mlsd-safety:1:${digits}\n`,
    `MLSD-safety:1:${digits}`, `mlsd-safety:1:${"٣".repeat(60)}`, `mlsd-safety:2:`,
  ]) {
    assert.throws(() => parseSafetyNumber(text), problem("NotASafetyNumber"), text)
  }
})

test("digits are shown in groups of five", () => {
  assert.equal(formatDigits("012345678901234"), "01234 56789 01234")
  assert.equal(formatDigits(""), "")
})

test("members of a convo have the same group code, and each commit makes another one", needsServer, async () => {
  const dids = await newAccounts(2)
  const phones = await Promise.all(dids.map((did) => openPhone(did, new MemoryStore())))
  const [a, b] = phones as [Client, Client]
  await b.replenish()
  const convo = await a.createConvo([dids[1]!])
  await b.join(convo)
  const first = await a.groupCode(convo)
  assert.equal(first.epoch, (await a.group(convo)).epoch)
  assert.deepEqual(await b.groupCode(convo), first)
  await b.update(convo)
  await Promise.all([a.sync(convo), b.sync(convo)])
  const second = await a.groupCode(convo)
  assert.equal(second.epoch, first.epoch + 1)
  assert.notEqual(second.digits, first.digits)
  assert.deepEqual(await b.groupCode(convo), second)
  await a.remove(convo, dids[1]!)
  await assert.rejects(b.sync(convo), /NotMember/)
  await assert.rejects(b.groupCode(convo), UnknownConvoError)
  await assert.rejects(a.groupCode("0192f3a4-aaaa-7bbb-8ccc-000000000001" as ConvoId), UnknownConvoError)
  await Promise.all(phones.map((phone) => phone.close()))
})
