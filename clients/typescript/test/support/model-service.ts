// A model of the service, behind a bad network: from a seed it loses requests and answers, moves
// epochs, and is busy. It checks what a real one cannot: that no input breaks the lexicon, that no key
// encrypts two messages, and that a key of a request names one request.

import assert from "node:assert/strict"
import { base64url } from "../../src/bytes.js"
import { NoAnswerError, XrpcError } from "../../src/errors.js"
import { lexParse, lexStringify, type LexValue } from "../../src/json.js"
import type { Call, Transport } from "../../src/transport.js"
import { brokenKeyPackage, bytesOf, keyPackageOf, type ModelMessage, valueOf } from "./model-mls.js"
import * as mls from "#lexicons"

/** Nobody has KeyPackages of `nobody`. Those of `broken` cannot be used. No convo takes `full`. */
export const people = { nobody: "did:plc:nobody", broken: "did:plc:broken", full: "did:plc:full" } as const

/** An attachment that is not there. */
export const missingAsset = "mlsd:attachment/missing"

const other = "did:plc:other" // commits now and then
const time = "2026-01-01T00:00:00.000Z"

interface Entry {
  readonly id: string
  readonly epoch: number
  readonly bytes: Uint8Array
  readonly kind: ModelMessage["kind"]
}

export class ModelConvo {
  epoch = 0
  members: readonly string[] = []
  readonly log: Entry[] = []
  constructor(
    readonly id: string,
    readonly groupId: string,
  ) {}

  /** The plaintexts of its messages. */
  plaintexts(): Uint8Array[] {
    return this.log.map(({ bytes }) => valueOf<ModelMessage>(bytes).plaintext).filter((one) => one !== undefined).map((one) => Uint8Array.from(one))
  }
}

const procedures = [mls.createConvo.main, mls.addMembers.main, mls.leaveConvo.main, mls.submitCommit.main, mls.sendMessage.main]

/** Inputs are read as the lexicons have them: they were checked. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
type Input = any

export class ModelService implements Transport {
  readonly convos = new Map<string, ModelConvo>()
  /** Every call, and what became of it. */
  readonly trace: string[] = []
  faults = 0
  private readonly answers = new Map<string, { body: string; answer: string }>()
  private readonly used = new Map<string, string>()

  /** @param kill throws if the process was killed */
  constructor(
    private readonly chance: () => number,
    private readonly kill: () => void,
  ) {}

  async call(call: Call): Promise<string> {
    await new Promise((resolve) => setImmediate(resolve))
    this.kill()
    const roll = this.chance()
    const fault = this.faultBefore(roll)
    if (fault !== undefined) throw this.strike(call, fault)
    const answer = call.body === undefined ? this.query(call) : this.write(call.method, call.body)
    this.kill()
    if (roll > 0.85) throw this.strike(call, new NoAnswerError("the answer is lost"))
    this.trace.push(`${call.method} ${answer.length}`)
    return answer
  }

  private strike(call: Call, fault: Error): Error {
    this.faults++
    this.trace.push(`${call.method} ${fault.message}`)
    return fault
  }

  private faultBefore(roll: number): Error | undefined {
    if (roll < 0.06) return new NoAnswerError("the request is lost")
    if (roll < 0.09) return new XrpcError(429, "RateLimitExceeded", "", 1000)
    if (roll < 0.12) return new XrpcError(503, "ServiceUnavailable", "")
    if (roll < 0.14) return new XrpcError(409, "RequestInProgress", "", 1000)
    if (roll < 0.15) return new XrpcError(401, "InvalidToken", "token was used before")
    if (roll < 0.16) return new XrpcError(403, "AccountInactive", "")
    if (roll < 0.17) return new XrpcError(429, "QuotaExceeded", "quota x is used up: 1 of 1; resets at 2026-01-01T01:00:00Z")
    return undefined
  }

  private write(method: string, body: string): string {
    const procedure = procedures.find(({ nsid }) => nsid === method)
    assert.ok(procedure, method)
    const input: Input = procedure.input.schema.parse(lexParse(body))
    const replay = this.answers.get(input.idempotencyKey)
    if (replay !== undefined) {
      assert.equal(replay.body, body, "a key names one request")
      return replay.answer
    }
    const answer = lexStringify(this.take(method, input))
    this.answers.set(input.idempotencyKey, { body, answer })
    return answer
  }

  private take(method: string, input: Input): LexValue {
    if (method === mls.createConvo.main.nsid) return this.create(input)
    const convo = this.convos.get(input.convoId)
    if (convo === undefined) throw new XrpcError(404, "ConvoNotFound", "")
    if (this.chance() < 0.1) this.append(convo, bytesOf({ kind: "commit", epoch: convo.epoch, by: other, members: convo.members }))
    if (method === mls.sendMessage.main.nsid) return this.send(convo, input)
    if (input.didList?.includes(people.full)) throw new XrpcError(400, "TooManyMembers", "")
    const commit = typeof input.commit === "string" ? Buffer.from(input.commit, "base64url") : input.commit
    const seq = this.append(convo, commit)
    return { success: true, newEpoch: convo.epoch, seq }
  }

  private create({ groupId, cipherSuite, groupInfo }: Input): LexValue {
    const twin = [...this.convos.values()].find((convo) => convo.groupId === groupId)
    if (twin !== undefined) throw new XrpcError(409, "GroupAlreadyExists", "")
    const convo = new ModelConvo(this.uuid(this.convos.size), groupId)
    const { epoch, members } = valueOf<{ epoch: number; members: string[] }>(groupInfo)
    Object.assign(convo, { epoch, members })
    this.convos.set(convo.id, convo)
    return { id: convo.id, groupId, creator: other, members: [], epoch, cipherSuite, createdAt: time }
  }

  private send(convo: ModelConvo, { ciphertext, embedUri }: Input): LexValue {
    const { epoch, generation, plaintext } = valueOf<ModelMessage>(ciphertext)
    const key = `${convo.id}/${epoch}/${generation}`
    const text = String(plaintext)
    assert.equal(this.used.get(key) ?? text, text, "a key of a message encrypts one text")
    this.used.set(key, text)
    if (embedUri === missingAsset) throw new XrpcError(400, "InvalidAsset", "")
    const seq = this.append(convo, ciphertext)
    return { messageId: this.uuid(seq), receivedAt: time, seq, epoch }
  }

  private append(convo: ModelConvo, bytes: Uint8Array): number {
    const { epoch, kind, members } = valueOf<ModelMessage>(bytes)
    if (epoch < convo.epoch) throw this.strikeEpoch(epoch, convo.epoch)
    assert.equal(epoch, convo.epoch, "no epoch is ahead")
    const seq = convo.log.push({ id: this.uuid(convo.log.length + 1), epoch, bytes, kind })
    if (kind === "commit") Object.assign(convo, { epoch: epoch + 1, members })
    return seq
  }

  private strikeEpoch(epoch: number, current: number): Error {
    this.faults++
    return new XrpcError(409, "EpochMismatch", `epoch ${epoch} is stale; currentEpoch=${current}`)
  }

  private query({ method, params = new URLSearchParams() }: Call): string {
    if (method === mls.getKeyPackages.main.nsid) return lexStringify(this.keyPackages(params.getAll("dids")))
    assert.equal(method, mls.getMessages.main.nsid)
    const convo = this.convos.get(params.get("convoId") ?? "")
    assert.ok(convo, "only known convos are read")
    const since = params.get("sinceMessage")
    const after = since === null ? Number(params.get("sinceSeq")) : convo.log.findIndex(({ id }) => id === since) + 1
    const messages = convo.log.slice(after, after + 3).map(({ id, epoch, bytes, kind }, i) => ({
      id, convoId: convo.id, sender: valueOf<ModelMessage>(bytes).by, ciphertext: bytes, epoch, seq: after + i + 1, createdAt: time, messageType: kind,
    }))
    const more = after + messages.length < convo.log.length
    return lexStringify({ messages, lastSeq: convo.log.length, ...(more && { cursor: messages.at(-1)!.id }) } as LexValue)
  }

  private keyPackages(dids: string[]): LexValue {
    const has = dids.filter((did) => did !== people.nobody)
    const of = (did: string) => (did === people.broken ? brokenKeyPackage : keyPackageOf(did))
    const keyPackages = has.map((did) => ({ did, keyPackage: base64url(of(did)), cipherSuite: "x" }))
    return { keyPackages, missing: dids.filter((did) => did === people.nobody) }
  }

  private uuid(n: number): string {
    return `00000000-0000-7000-8000-${String(n).padStart(12, "0")}`
  }
}
