// What a service answered, and what a client does then. See docs/CLIENTS.md.

import type { ConvoId } from "./ids.js"

/** An answer that is not 2xx. */
export class XrpcError extends Error {
  override readonly name = "XrpcError"
  readonly code = "Xrpc"

  constructor(
    readonly status: number,
    /** The error's name, such as `EpochMismatch`. */
    readonly error: string,
    /** The text of the answer. What a client needs to go on stands there in a fixed form. */
    readonly text: string,
    /** Of the header `Retry-After`, in milliseconds. */
    readonly retryAfter?: number,
  ) {
    super(`${status} ${error}: ${text}`)
  }
}

/** There was no answer, or none of this service. What was asked for may have been done. */
export class NoAnswerError extends Error {
  override readonly name: string = "NoAnswerError"
  readonly code: string = "NoAnswer"
}

/** The client was closed first. A write that is stored waits for the next life. */
export class ClosedError extends NoAnswerError {
  override readonly name = "ClosedError"
  override readonly code = "Closed"
}

/** What another service must say first did not come: that of a person whom a write adds. */
export class AwayError extends NoAnswerError {
  override readonly name: string = "AwayError"
  override readonly code: string = "Away"

  constructor(
    message: string,
    /** How long that service asks to wait, in milliseconds. */
    readonly retryAfter: number | undefined,
    options: ErrorOptions,
  ) {
    super(message, options)
  }
}

/** The log goes another way than this device's group: docs/RECOVERY.md. */
export class OutOfStepError extends Error {
  override readonly name: string = "OutOfStepError"
  readonly code: string = "OutOfStep"
}

/** A commit could not be processed, or the group is split: docs/clients/DISPUTES.md. */
export class StuckError extends OutOfStepError {
  override readonly name = "StuckError"
  override readonly code = "Stuck"
}

/** This device is in no convo of this id. */
export class UnknownConvoError extends Error {
  override readonly name = "UnknownConvoError"
  readonly code = "UnknownConvo"
}

/** The request of a write cannot be made: the lexicon or the MLS library refuses what it is made of. */
export class SealError extends Error {
  override readonly name: string = "SealError"
  readonly code: string = "Seal"
}

/** A call that is not for devices of this person, or not for this device: the text says which one is. */
export class OwnDeviceError extends Error {
  override readonly name = "OwnDeviceError"
  readonly code = "OwnDevice"
}

/** This device has signed out, or another device of the person has taken it out of the account. */
export class SignedOutError extends Error {
  override readonly name = "SignedOutError"
  readonly code = "SignedOut"
}

/** The app has discarded a write that was not accepted yet. */
export class DiscardedError extends Error {
  override readonly name = "DiscardedError"
  readonly code = "Discarded"
}

/** The store failed. Open it and the client again. */
export class StoreError extends Error {
  override readonly name = "StoreError"
  readonly code = "Store"
}

/** The store is open: another client of this process has it, another process or another tab. Nothing was changed. */
export class StoreOpenError extends Error {
  override readonly name = "StoreOpenError"
  readonly code = "StoreOpen"
}

/** The convo that goes on in the place of one that was reset, if an answer or the last entry of a log names it. */
export function successorIn(text: string): ConvoId | undefined {
  return /successorConvoId[= ]([0-9a-f-]{36})/.exec(text)?.[1] as ConvoId | undefined
}

/** The name of the error that a service answered, or `""`. */
export function errorName(err: unknown): string {
  return err instanceof XrpcError ? err.error : ""
}

/**
 * What a client does with a write after an answer:
 *
 * | verdict | |
 * |---|---|
 * | `again` | it sends the same bytes again under the same key, after a while |
 * | `later` | the same, not before the time that the answer names |
 * | `stale` | the epoch is over: it reads the log, and makes the write anew under a new key |
 * | `lost` | the server is behind this device, and has lost writes: docs/RECOVERY.md. Or the device is stuck |
 * | `disputed` | the commit is not accepted while another one is in dispute: it is made anew after that |
 * | `moved` | the convo was reset: messages go into its successor, in fresh bytes, and other writes are refused |
 * | `stop` | the account may not use the service now: it stops everything, and keeps everything |
 * | `refused` | to repeat it does not help |
 */
export type Verdict = "again" | "later" | "stale" | "lost" | "disputed" | "moved" | "stop" | "refused"

/** One line of the retry table. What is left out fits every answer. */
export interface Rule {
  readonly status?: number
  readonly error?: string
  readonly text?: RegExp
  readonly then: Verdict
}

/** The retry table. The first line that fits an answer counts. No answer at all is `again`. */
export const retryTable: readonly Rule[] = [
  { status: 429, error: "QuotaExceeded", then: "later" },
  { status: 429, then: "again" },
  { status: 501, then: "refused" },
  { status: 401, error: "InvalidToken", text: /token was used before|token has expired/, then: "again" },
  { status: 401, then: "stop" },
  { status: 400, error: "ExpiredToken", then: "stop" },
  { status: 403, error: "Blocked", text: /is blocked by the caller/, then: "refused" },
  { status: 403, error: "Blocked", then: "stop" },
  { status: 403, error: "AccountInactive", then: "stop" },
  { status: 404, error: "ConvoNotFound", then: "lost" },
  { status: 409, error: "RequestInProgress", then: "again" },
  { status: 409, error: "EpochMismatch", text: /is ahead/, then: "lost" },
  { status: 409, error: "EpochMismatch", then: "stale" },
  { status: 409, error: "ConvoDisputed", then: "disputed" },
  { status: 409, error: "ConvoClosed", text: /successorConvoId=/, then: "moved" },
  { status: 408, then: "again" },
]

/** Says what to do after a failed step of a write. An error of another kind is thrown again. */
export function verdictOf(err: unknown): Verdict {
  if (err instanceof NoAnswerError) return "again"
  if (err instanceof OutOfStepError) return "lost"
  if (err instanceof SealError) return "refused"
  if (!(err instanceof XrpcError)) throw err
  if (err.status >= 500 && err.status !== 501) return "again"
  const rule = retryTable.find((line) => fits(line, err))
  return rule?.then ?? "refused"
}

/** Reports whether a service has refused, and another attempt gets the same. */
export function isRefusal(err: unknown): boolean {
  return err instanceof XrpcError && ["refused", "lost"].includes(verdictOf(err))
}

function fits(rule: Rule, err: XrpcError): boolean {
  return (
    (rule.status === undefined || rule.status === err.status) &&
    (rule.error === undefined || rule.error === err.error) &&
    (rule.text === undefined || rule.text.test(err.text))
  )
}

/** The time that a `QuotaExceeded` names, in milliseconds of Unix time, if it names one. */
export function resetsAt(err: XrpcError): number | undefined {
  const named = /resets at (\S+)/.exec(err.text)?.[1]
  const time = named === undefined ? Number.NaN : Date.parse(named)
  return Number.isNaN(time) ? undefined : time
}
