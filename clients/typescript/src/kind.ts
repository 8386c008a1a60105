// What all kinds of writes have.

import type { l } from "@atproto/lex-schema"
import { decodeAnswer, encodeInput, type Input, type Output, withIdempotencyKey } from "./api.js"
import { sha256 } from "./bytes.js"
import type { Core } from "./core.js"
import { UnknownConvoError } from "./errors.js"
import type { ExternalCommits } from "./external-commits.js"
import type { LexValue } from "./json.js"
import type { Log } from "./log.js"
import type { Members } from "./members.js"
import type { Plan, Sealed, SealedWrite, Write } from "./outbox.js"
import type { Changes } from "./store.js"

/** What a kind of write works with. */
export interface Parts extends Core {
  readonly log: Log
  readonly externalCommits: ExternalCommits
  readonly members: Members
}

/** What a write brings the app, and what it changes. */
export interface Done {
  readonly result: LexValue
  readonly changes: Changes
}

/** One kind of write. See {@link Writer}. */
export interface Kind {
  /** Set if `seal` waits for other members. It runs without the lock, and changes no records of others. */
  readonly waits?: true
  /** Throws if the lexicon or this device's store says that the write can never be made. */
  check?(parts: Parts, queue: string, content: LexValue): Promise<void>
  /** See {@link Writer.prepare}. */
  prepare?(parts: Parts, write: Write): Promise<void> | undefined
  seal(parts: Parts, write: Write): Promise<Plan>
  done(parts: Parts, write: SealedWrite, answer: string): Promise<Done>
  /** Takes back what `seal` changed: the server has not taken the request, and never will. */
  undo(parts: Parts, write: Write): Promise<Changes>
  /** After `undo`: reads what ended the epoch. A write without an epoch has none. */
  catchUp?(parts: Parts, write: Write): Promise<void>
}

/** Makes a request with a key of its own. */
export async function sealed<M extends l.Procedure>(
  parts: Core, method: M, input: Omit<Input<M>, "idempotencyKey">, object?: { bytes: Uint8Array; epoch: number },
): Promise<Sealed> {
  const body = encodeInput(method, withIdempotencyKey(input, parts.clock) as unknown as Input<M>)
  if (object === undefined) return { method: method.nsid, body }
  return { method: method.nsid, body, epoch: object.epoch, digest: await sha256(object.bytes) }
}

/** A write to a convo is for one that this device is or was in. */
export async function mustBeIn(parts: Parts, convo: string): Promise<void> {
  if ((await parts.log.thread(convo)) === undefined) throw new UnknownConvoError(`this device is not in convo ${convo}`)
}

/** Reads the answer to a write. */
export function answerOf<M extends l.Procedure>(method: M, answer: string): Output<M> {
  return decodeAnswer(method, answer)
}
