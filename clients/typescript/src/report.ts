// Reports of abuse, sealed to the operator's key: docs/clients/REPORTS.md. It needs @hpke/core.

import { Aes256Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core"
import type { Did } from "./ids.js"

/** What a report reveals. The operator reads exactly this. */
export interface ReportContent {
  text: string
  messages: ReportedMessage[]
  /** A signed head of the convo's log, for the proofs. */
  head?: string
}

/** A message that the reporter reveals. */
export interface ReportedMessage {
  seq: number
  sender: Did
  plaintext: string
  /** Shows that the entry is in the log. */
  proof?: string
}

/** What getReportKey answers. */
export interface ReportKey {
  readonly publicKey: Uint8Array
  readonly algorithm: string
}

/** How reports are sealed. */
export const reportAlgorithm = "HPKE-Base-X25519-HKDF-SHA256-AES-256-GCM"

const info = "mlsd abuse report 1"

/** The length of a content is a multiple of this, so that it says little. */
const padding = 1024

/**
 * Seals what a person reports about a convo. Nobody but the operator can open it, and nobody can send
 * it as somebody else's. Each call returns other bytes: keep them for a retry.
 *
 * @throws Error if the service wants another algorithm
 */
export async function sealReport(key: ReportKey, convoId: string, reporter: Did, content: ReportContent): Promise<Uint8Array> {
  if (key.algorithm !== reportAlgorithm) throw new Error(`reports are sealed with ${key.algorithm} here, which this client does not know`)
  const encoder = new TextEncoder()
  const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes256Gcm() })
  const recipientPublicKey = await suite.kem.deserializePublicKey(key.publicKey)
  const sender = await suite.createSenderContext({ recipientPublicKey, info: encoder.encode(info) })
  const plaintext = encoder.encode(JSON.stringify(content))
  const padded = new Uint8Array(Math.ceil(plaintext.length / padding) * padding).fill(0x20)
  padded.set(plaintext)
  const ciphertext = await sender.seal(padded, await crypto.subtle.digest("SHA-256", encoder.encode(`${convoId}\n${reporter}`)))
  const sealed = new Uint8Array(sender.enc.byteLength + ciphertext.byteLength)
  sealed.set(new Uint8Array(sender.enc))
  sealed.set(new Uint8Array(ciphertext), sender.enc.byteLength)
  return sealed
}
