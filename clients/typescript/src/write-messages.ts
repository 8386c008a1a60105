// Messages.

import { checkInput } from "./api.js"
import { answerOf, type Done, type Kind, mustBeIn, type Parts, sealed } from "./kind.js"
import type { LexValue } from "./json.js"
import type { Seen } from "./log-state.js"
import type { Plan, SealedWrite, Write } from "./outbox.js"
import { mustRead, names, type Own } from "./records.js"
import { type Changes, put } from "./store.js"
import * as mls from "#lexicons"

/** What a write of the kind `send` holds. */
export interface SendContent {
  /** The message's own id, in hexadecimal. */
  readonly id: string
  readonly content: Uint8Array
  readonly embedType?: string
  readonly embedUri?: `${string}:${string}`
}

/** Where the service has put a message. */
export interface SentMessage {
  readonly id: string
  readonly messageId: string
  readonly seq: number
}

export const kindOfMessages: Kind = {
  async check(parts, convoId, content) {
    const { id: _, content: ciphertext, ...embed } = content as unknown as SendContent // a ciphertext is longer
    checkInput(mls.sendMessage.main, { convoId, senderDid: parts.did, epoch: 0, ciphertext, ...embed })
    await mustBeIn(parts, convoId)
  },

  prepare(parts, write) {
    return parts.members.prepare(write.queue)
  },

  async seal(parts: Parts, write: Write): Promise<Plan> {
    const { id, content, ...embed } = write.content as unknown as SendContent
    await readPending(parts, write.queue)
    const state = await mustRead(parts.store, names.group(write.queue))
    const group = parts.mls.describe(state)
    const { epoch } = group
    const thread = await parts.log.thread(write.queue)
    if (thread !== undefined) parts.devices.mustKnow(group, thread)
    const encrypted = await parts.mls.encrypt(state, parts.envelope.wrap({ id, content }))
    const request = await sealed(parts, mls.sendMessage.main, {
      convoId: write.queue, senderDid: parts.did, epoch, ciphertext: encrypted.message, ...embed,
    }, { bytes: encrypted.message, epoch })
    const changes: Changes = new Map([[names.group(write.queue), encrypted.state], [names.signals(write.queue), undefined]])
    const own: Own = { messageId: id, content }
    put(changes, names.own(request.digest ?? ""), own)
    return { sealed: request, changes }
  },

  async done(parts: Parts, write: SealedWrite, answer: string): Promise<Done> {
    const { messageId, seq = 0, epoch = 0, receivedAt } = answerOf(mls.sendMessage.main, answer)
    const { id } = write.content as unknown as SendContent
    const changes: Changes = new Map()
    if (parts.checksLogs && seq > 0) {
      const seen: Seen = { seq, kind: 0, epoch, at: Date.parse(receivedAt), body: write.sealed.digest ?? "", sender: parts.did }
      put(changes, names.acknowledged(write.queue, seq), seen)
    }
    return { result: { id, messageId, seq } as LexValue, changes }
  },

  async undo(_parts: Parts, write: Write): Promise<Changes> {
    return new Map(write.sealed?.digest === undefined ? [] : [[names.own(write.sealed.digest), undefined]])
  },

  async catchUp(parts: Parts, write: Write): Promise<void> {
    await parts.log.read(write.queue)
  },
}

/** Reads the log if a commit of this device waits there. */
export async function readPending(parts: Parts, convo: string): Promise<void> {
  const thread = await parts.log.thread(convo)
  const waits = (await parts.store.read(names.pending(convo))) !== undefined
  if (waits || thread?.stuck || thread?.lost) await parts.log.read(convo)
}
