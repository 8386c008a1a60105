// A report of abuse: only the operator's key opens it, for its convo and its reporter.

import assert from "node:assert/strict"
import { test } from "node:test"
import { Aes256Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core"
import { Api } from "../src/api.js"
import { fromBase64url } from "../src/bytes.js"
import { systemClock } from "../src/clock.js"
import { reportAlgorithm, sealReport } from "../src/report.js"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { openPhone } from "./support/phone.js"
import * as mls from "#lexicons"

/** The operator's key of `mlsd-dev`: docs/clients/DEV.md. */
const operator = fromBase64url("9D8FEpvYtR3kGVpzOQ_YABcriJOKNJt8RWg6DXR1mu8")

async function open(sealed: Uint8Array, convoId: string, reporter: string): Promise<unknown> {
  const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes256Gcm() })
  const recipient = await suite.createRecipientContext({
    recipientKey: await suite.kem.deserializePrivateKey(operator), enc: sealed.slice(0, 32),
    info: new TextEncoder().encode("mlsd abuse report 1"),
  })
  const aad = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${convoId}\n${reporter}`))
  const plaintext = new Uint8Array(await recipient.open(sealed.slice(32), aad))
  assert.equal(plaintext.length % 1024, 0, "the content is padded")
  return JSON.parse(new TextDecoder().decode(plaintext))
}

test("a report reaches the operator, and is one report", needsServer, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const phones = await Promise.all([openPhone(alice, new MemoryStore()), openPhone(bob, new MemoryStore())])
  await phones[1].replenish()
  const convoId = await phones[0].createConvo([bob])
  const api = new Api(transportOf(bob), systemClock, new AbortController().signal)
  const key = await api.query(mls.getReportKey.main, {})
  assert.equal(key.algorithm, reportAlgorithm)
  const content = { text: "He has threatened me.", messages: [{ seq: 1, sender: alice, plaintext: "I know where you live" }] }
  const sealedReport = await sealReport(key, convoId, bob, content)
  assert.deepEqual(await open(sealedReport, convoId, bob), content)
  await assert.rejects(open(sealedReport, convoId, alice))
  const input = { convoId, reason: "threats", sealedReport, keyId: key.keyId }
  const first = await api.procedure(mls.reportConvo.main, input)
  assert.deepEqual(await api.procedure(mls.reportConvo.main, input), first)
  await assert.rejects(sealReport({ ...key, algorithm: "another" }, convoId, bob, content), /does not know/)
  await Promise.all(phones.map((phone) => phone.close()))
})
