// Signals: what members say to those who are connected, and nobody keeps. docs/clients/SIGNALS.md.

import type { Core } from "./core.js"
import { isKnown } from "./devices.js"
import { UnknownConvoError, verdictOf, XrpcError } from "./errors.js"
import type { Did } from "./ids.js"
import { didOf } from "./mls.js"
import { lockOf, names, type Thread } from "./records.js"
import { type Changes, get, put } from "./store.js"
import * as mls from "#lexicons"

/**
 * How many signals a device sends between two of its messages. Each uses up a key of the sender, as a
 * message does. A device that was away must skip those keys when it reads the next message, and MLS
 * libraries skip only so many: ts-mls 200, OpenMLS 1,000.
 */
export const mostSignals = 50

/** How many signals were sent since the last message, in an epoch. */
interface SentSignals {
  readonly epoch: number
  readonly count: number
}

/** Who sees this person's cursors, and which other services know it. */
interface Sharing {
  readonly withWhom: "nobody" | "members"
  readonly told: readonly Did[]
}

/** How far a member is in a convo's log. */
export interface MemberCursor {
  readonly did: string
  readonly read: number
  readonly delivered: number
}

/** Sends and reads signals. */
export class Signals {
  constructor(private readonly core: Core) {}

  /**
   * Encrypts a signal and sends it once. Returns whether the server passes it on.
   *
   * @throws XrpcError if the person may not, as for a message
   * @throws UnknownConvoError if this device is in no such convo
   */
  async send(convo: string, content: Uint8Array): Promise<boolean> {
    const payload = await this.core.locks.run(lockOf(convo), () => this.encrypt(convo, content))
    if (payload === undefined) return false
    try {
      return (await this.core.api.procedure(mls.sendSignal.main, { convoId: convo, payload })).carried
    } catch (err) {
      if (err instanceof XrpcError && !["refused", "lost", "stop"].includes(verdictOf(err))) return false // it would be old
      throw err
    }
  }

  // encrypt uses up a key, and stores the state without it before anything is sent.
  private async encrypt(convo: string, content: Uint8Array): Promise<Uint8Array | undefined> {
    const state = await this.core.store.read(names.group(convo))
    if (state === undefined) throw new UnknownConvoError(`this device is not in convo ${convo}`)
    const group = this.core.mls.describe(state)
    const thread = await get<Thread>(this.core.store, names.thread(convo))
    if (thread === undefined || this.core.devices.unknownIn(group, thread).length > 0) return undefined
    const { epoch } = group
    const before = await get<SentSignals>(this.core.store, names.signals(convo))
    const count = before?.epoch === epoch ? before.count : 0
    if (count >= mostSignals) return undefined
    const encrypted = await this.core.mls.encrypt(state, content)
    const changes: Changes = new Map([[names.group(convo), encrypted.state]])
    put(changes, names.signals(convo), { epoch, count: count + 1 } satisfies SentSignals)
    await this.core.store.write(changes)
    return encrypted.message
  }

  /** Decrypts a signal. Returns nothing for one of this device, of a device that is not known, or that cannot be read now. */
  read(convo: string, payload: Uint8Array): Promise<{ did: string; content: Uint8Array } | undefined> {
    return this.core.locks.run(lockOf(convo), async () => {
      const state = await this.core.store.read(names.group(convo))
      if (state === undefined) return undefined
      try {
        const { kind, epoch } = this.core.mls.header(payload)
        if (kind !== "application" || epoch !== this.core.mls.describe(state).epoch) return undefined
        const got = await this.core.mls.process(state, payload)
        await this.core.store.write(new Map([[names.group(convo), got.state]]))
        const { sender, plaintext: content } = got
        if (sender === undefined || content === undefined || !isKnown(this.core.devices.of(sender).state)) return undefined
        return { did: didOf(sender.identity), content }
      } catch {
        return undefined // of this device itself, repeated, or damaged
      }
    })
  }

  /** Says who sees this person's cursors, to the person's own service. {@link shareAt} says it to others. */
  async share(withWhom: Sharing["withWhom"]): Promise<void> {
    await this.core.services.at(undefined).procedure(mls.setCursorPolicy.main, { shareCursors: withWhom })
    await this.core.locks.run(names.sharing, () => this.saveSharing({ withWhom, told: [] }))
  }

  /** Says to another service who sees this person's cursors, unless it knows. It waits for a service that is away. */
  shareAt(service: Did): Promise<void> {
    return this.core.locks.run(`${names.sharing}/${service}`, async () => {
      const asked = await get<Sharing>(this.core.store, names.sharing)
      if (asked === undefined || asked.told.includes(service)) return
      await this.core.services.at(service).procedure(mls.setCursorPolicy.main, { shareCursors: asked.withWhom })
      await this.core.locks.run(names.sharing, async () => {
        const now = await get<Sharing>(this.core.store, names.sharing)
        if (now?.withWhom === asked.withWhom) await this.saveSharing({ ...now, told: [...now.told, service] })
      })
    })
  }

  private saveSharing(sharing: Sharing): Promise<void> {
    const changes: Changes = new Map()
    put(changes, names.sharing, sharing)
    return this.core.store.write(changes)
  }

  /** The cursors of a convo that this person sees. */
  async cursors(convo: string): Promise<MemberCursor[]> {
    return [...(await this.core.api.query(mls.getCursors.main, { convoId: convo })).cursors]
  }
}

