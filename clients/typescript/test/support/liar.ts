// A delivery service that lies: a real one, behind somebody who changes its answers and events,
// makes up others, and has devices of his own. lies.test.ts says which lies there are.

import assert from "node:assert/strict"
import { randomBytes, randomUUID } from "node:crypto"
import { Api } from "../../src/api.js"
import { base64url, fromBase64url, hex } from "../../src/bytes.js"
import { systemClock } from "../../src/clock.js"
import { usualEnvelope } from "../../src/envelope.js"
import { XrpcError } from "../../src/errors.js"
import type { ConvoId, Did } from "../../src/ids.js"
import { lexParse, lexStringify, type LexValue } from "../../src/json.js"
import type { Staged } from "../../src/mls.js"
import { TsMls } from "../../src/mls-ts.js"
import { names } from "../../src/records.js"
import type { Call, Transport } from "../../src/transport.js"
import { transportOf } from "./dev.js"
import type { Honest } from "./honest.js"
import { suite } from "./phone.js"
import * as mls from "#lexicons"

/**
 * What the liar says to a call of a person, or `undefined` to say nothing. `pass` asks for the
 * truth.
 */
export type Lie = (call: Said, did: Did, pass: () => Promise<string>) => Promise<string> | undefined

/** A call, as the liar reads it. */
export interface Said {
  /** The method's name, without `blue.catbird.mls.`. */
  readonly method: string
  readonly convo: ConvoId | undefined
  readonly params: URLSearchParams
  readonly body: Body
}

/** What the liar reads of the inputs of procedures. */
export interface Body {
  readonly convoId?: ConvoId
  readonly ciphertext?: Uint8Array
  /** Bytes, or base64url. */
  readonly commit?: Uint8Array | string
  readonly groupInfo?: Uint8Array
  readonly groupId?: string
  readonly welcomeMessage?: string
  readonly epoch?: number
  readonly success?: boolean
}

/** An entry of a log, as getMessages shows it. */
export type Entry = mls.getMessages.$OutputBody["messages"][number]

const encoder = new TextEncoder()
const decoder = new TextDecoder()

/** A group, as a device of the liar has it. */
interface Spy {
  readonly device: TsMls
  readonly state: Uint8Array
}

/** An operator who lies. It is honest until a {@link Lie} is told. */
export class Liar {
  /** The messages that the liar has decrypted. */
  readonly read: string[] = []
  private readonly lies: Lie[] = []
  private readonly voices = new Map<Did, Voice>()
  private spies: Spy[] = []
  private listening: Promise<unknown> = Promise.resolve()
  private said = 0

  /** The way of a person's device to its service. */
  way(did: Did): Transport {
    const real = transportOf(did)
    return {
      receive: (call) => real.receive(call),
      call: (call) => this.answer(call, did, real),
      stream: async (call) => {
        if (call.params?.get("cursor")?.startsWith(madeUp)) call.params.delete("cursor")
        return this.voice(did).join(await real.stream(call))
      },
    }
  }

  /** Tells a lie from now on. The newest one speaks first. */
  tell(lie: Lie): void {
    this.lies.unshift(lie)
  }

  /** Makes up an event for a person's devices. If none is connected, the next one hears it. */
  say(did: Did, type: string, body: object): void {
    const cursor = `${madeUp}${++this.said}`
    const data = lexStringify({ createdAt: new Date().toISOString(), cursor, ...body } as LexValue)
    this.voice(did).say(`event: ${type}\nid: ${cursor}\ndata: ${data}\n\n`)
  }

  /** Withholds all further events of the service from a person's devices. */
  silence(did: Did): void {
    this.voice(did).silent = true
  }

  /** The service, called in the name of a person. The liar makes tokens for anybody. */
  as(did: Did): Api {
    return new Api(transportOf(did), systemClock, new AbortController().signal)
  }

  /** A KeyPackage of each device of a person. */
  async keyPackagesOf(did: Did, caller: Did): Promise<Uint8Array[]> {
    const { keyPackages } = await this.as(caller).query(mls.getKeyPackages.main, { dids: [did], cipherSuite: suite })
    assert.ok(keyPackages.length > 0)
    return keyPackages.map(({ keyPackage }) => fromBase64url(keyPackage))
  }

  /**
   * Lets a device of the liar listen with the group that it has: it reads what people send to that.
   */
  spy(device: TsMls, state: Uint8Array): void {
    this.spies.unshift({ device, state })
  }

  /** Lets a person who helps the liar hand over its device and its group. */
  async turn(person: Honest, convo: ConvoId): Promise<Spy> {
    const [device, state] = [await person.record("test/device"), await person.record(names.group(convo))]
    assert.ok(device && state)
    const spy: Spy = { device: await TsMls.import(device), state }
    this.spy(spy.device, spy.state)
    return spy
  }

  /** Waits until the liar has tried to read all that it has got. */
  async idle(): Promise<void> {
    await this.listening
  }

  /** Takes a message or a commit. Returns whether one of the liar's devices can read it. */
  hears(message: Uint8Array): Promise<boolean> {
    const heard = this.listening.then(() => this.hear(message))
    this.listening = heard
    return heard
  }

  private async hear(message: Uint8Array): Promise<boolean> {
    for (const { device, state } of this.spies) {
      try {
        const { state: next, plaintext } = await device.process(state, message)
        this.spies.unshift({ device, state: next }) // the one of before stays: it can be of use for another branch
        if (plaintext !== undefined) this.read.push(decoder.decode(usualEnvelope.unwrap(plaintext).content))
        return true
      } catch {
        // it is not for this group
      }
    }
    return false
  }

  private async answer(call: Call, did: Did, real: Transport): Promise<string> {
    const said = saidIn(call)
    if (said.body.ciphertext !== undefined) await this.hears(said.body.ciphertext)
    const ask = (i: number): Promise<string> => {
      const lie = this.lies[i]
      return lie === undefined ? real.call(call) : (lie(said, did, () => ask(i + 1)) ?? ask(i + 1))
    }
    const answer = await ask(0)
    if (said.body.commit !== undefined) await this.hears(bytesOf(said.body.commit))
    return answer
  }

  private voice(did: Did): Voice {
    const voice = this.voices.get(did) ?? new Voice()
    this.voices.set(did, voice)
    return voice
  }
}

/** How the places of made-up events begin. */
const madeUp = "liar-"

/** The event stream of a person, into which the liar speaks. */
class Voice {
  silent = false
  private readonly waiting: string[] = []
  private stream: ReadableStreamDefaultController<Uint8Array> | undefined

  say(block: string): void {
    if (this.stream === undefined) this.waiting.push(block)
    else this.stream.enqueue(encoder.encode(block))
  }

  // join passes whole events on, so that nothing made up falls into the middle of one.
  join(real: ReadableStream<Uint8Array>): ReadableStream<Uint8Array> {
    const reader = real.getReader()
    let rest = ""
    return new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.stream = controller
        for (const block of this.waiting.splice(0)) this.say(block)
      },
      pull: async (controller) => {
        const { done, value } = await reader.read().catch((err: unknown) => {
          this.leave(controller)
          throw err
        })
        if (done) {
          this.leave(controller)
          return controller.close()
        }
        const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n")
        rest = blocks.pop() ?? ""
        const shown = blocks.filter((block) => !this.silent || !block.includes("data:"))
        controller.enqueue(encoder.encode(shown.map((block) => `${block}\n\n`).join("")))
      },
      cancel: (reason) => {
        this.stream = undefined
        return reader.cancel(reason)
      },
    })
  }

  private leave(stream: ReadableStreamDefaultController<Uint8Array>): void {
    if (this.stream === stream) this.stream = undefined
  }
}

function saidIn({ method, params = new URLSearchParams(), body = "" }: Call): Said {
  const input = body === "" ? {} : (lexParse(body) as Body)
  const convo = (params.get("convoId") ?? input.convoId) as ConvoId | undefined
  return { method: method.replace(/^blue\.catbird\.mls\./, ""), convo, params, body: input }
}

function bytesOf(commit: Uint8Array | string): Uint8Array {
  return typeof commit === "string" ? fromBase64url(commit) : commit
}

/** An answer of the liar's own. */
export async function json(answer: object): Promise<string> {
  return lexStringify(answer as LexValue)
}

/** Changes what the truth is. */
export function changed<T>(pass: () => Promise<string>, change: (answer: T) => T): Promise<string> {
  return pass().then((text) => lexStringify(change(lexParse(text) as T) as LexValue))
}

/** What a {@link Stage} shows. */
export interface Scene {
  /** A convo of the real service, or another one. */
  readonly convo?: ConvoId
  readonly groupId: Uint8Array
  readonly epoch: number
  readonly people: readonly Did[]
  /** For those who enter with a Welcome. */
  readonly welcome?: Uint8Array
  /** For those who enter by external commit. */
  readonly groupInfo?: Uint8Array
  /** The seq before the entries that are shown. */
  readonly from?: number
}

/**
 * A convo that only the liar has, or another course of a real one. A person's device gets the truth
 * until it has gone astray: by a Welcome, an external commit, or {@link lead}. From then on the
 * liar is its service.
 */
export class Stage {
  readonly convo: ConvoId
  readonly entries: Entry[] = []
  private readonly astray = new Set<Did>()
  private epoch: number

  constructor(
    private readonly liar: Liar,
    private readonly scene: Scene,
  ) {
    this.convo = scene.convo ?? (randomUUID() as string as ConvoId)
    this.epoch = scene.epoch
  }

  /** What the liar says to those whom the stage is for. */
  readonly lie: Lie = ({ method, convo, params, body }, did, pass) => {
    if (convo !== this.convo || !this.scene.people.includes(did)) return undefined
    switch (method) {
      case "getWelcome":
        return this.scene.welcome && json({ convoId: convo, welcome: base64url(this.scene.welcome), state: "in_flight" })
      case "confirmWelcome":
        if (this.scene.welcome !== undefined && body.success) this.lead(did)
        return this.scene.welcome && json({ confirmed: true, state: body.success ? "consumed" : "available" })
      case "getGroupInfo":
        return this.scene.groupInfo && json({ groupInfo: this.scene.groupInfo, epoch: this.epoch })
      case "processExternalCommit":
        return this.scene.groupInfo && this.enter(did, body, pass)
    }
    if (!this.astray.has(did)) return this.scene.convo === undefined && method === "getConvo" ? json({ convo: this.view() }) : undefined
    switch (method) {
      case "getMessages":
        return this.log(params)
      case "getConvo":
        return json({ convo: this.view() })
      case "getLogHead":
        return Promise.reject(new XrpcError(503, "ServiceUnavailable", "there is no head now"))
      case "sendMessage":
        return this.take(did, "application", body.ciphertext ?? new Uint8Array(), pass)
      case "submitCommit":
      case "addMembers":
      case "leaveConvo":
        return body.commit === undefined ? undefined : this.take(did, "commit", bytesOf(body.commit), pass)
    }
    return undefined
  }

  /** Leads a person's device astray. */
  lead(did: Did): void {
    this.astray.add(did)
  }

  /** Appends an entry to the log that is shown. A commit ends the epoch. */
  append(sender: Did, messageType: "application" | "commit", ciphertext: Uint8Array): Entry {
    const seq = (this.scene.from ?? 0) + this.entries.length + 1
    const entry = {
      id: randomUUID(), convoId: this.convo, sender, ciphertext, epoch: this.epoch, seq,
      createdAt: new Date().toISOString() as Entry["createdAt"], messageType,
    } satisfies Entry
    if (messageType === "commit") this.epoch++
    this.entries.push(entry)
    return entry
  }

  /** The convo, as getConvo shows it. */
  view(): object {
    const { groupId, people } = this.scene
    const at = new Date().toISOString()
    return {
      id: this.convo, groupId: hex(groupId), creator: people[0], epoch: this.epoch, cipherSuite: suite, createdAt: at,
      members: people.map((did) => ({ did, joinedAt: at })),
    }
  }

  // enter lets a device in by its external commit, if the liar is in that group.
  private async enter(did: Did, body: Body, pass: () => Promise<string>): Promise<string> {
    const commit = bytesOf(body.commit ?? "")
    if (!(await this.liar.hears(commit))) return pass()
    this.lead(did)
    const { seq } = this.append(did, "commit", commit)
    return json({ newEpoch: this.epoch, seq })
  }

  // take takes what belongs to the group on the stage. What a device writes to another one is the
  // truth's.
  private async take(did: Did, type: "application" | "commit", bytes: Uint8Array, pass: () => Promise<string>): Promise<string> {
    const { epoch } = await headerOf(bytes)
    if (epoch !== this.epoch) return pass()
    const { seq, id, createdAt } = this.append(did, type, bytes)
    return json({ messageId: id, receivedAt: createdAt, seq, epoch: this.epoch, success: true, newEpoch: this.epoch })
  }

  private log(params: URLSearchParams): Promise<string> {
    const last = params.get("sinceMessage")
    const from = this.scene.from ?? 0
    const since = last === null ? Number(params.get("sinceSeq") ?? 0) : (this.entries.find(({ id }) => id === last)?.seq ?? from)
    return json({ messages: this.entries.filter(({ seq }) => seq > since), lastSeq: from + this.entries.length })
  }

}

let reader: Promise<TsMls> | undefined

/** Reads what is not encrypted of a message. */
async function headerOf(message: Uint8Array) {
  reader ??= TsMls.create("did:web:nobody.example", suite)
  return (await reader).header(message)
}

/** A group that the liar's device makes with the KeyPackages of others. The liar listens in it. */
export async function madeGroup(liar: Liar, device: TsMls, add: readonly Uint8Array[]): Promise<Staged & { groupId: Uint8Array; epoch: number }> {
  const groupId = randomBytes(16)
  const staged = await device.stage(await device.create(groupId), { add })
  liar.spy(device, staged.state)
  return { ...staged, groupId, epoch: device.describe(staged.state).epoch }
}

/** A device of the liar's that says that it is somebody's. No account lists it. */
export function deviceOf(identity: string): Promise<TsMls> {
  return TsMls.create(identity, suite)
}

