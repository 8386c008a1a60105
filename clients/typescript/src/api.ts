// Calls of the methods that lexicons/ describes. Inputs and answers are validated.

import type { l } from "@atproto/lex-schema"
import type { Clock } from "./clock.js"
import { hex } from "./bytes.js"
import { askedWait, backoff, pause, systemClock } from "./clock.js"
import { AwayError, NoAnswerError, verdictOf, XrpcError } from "./errors.js"
import { lexParse, lexStringify, type LexValue } from "./json.js"
import { observed, Reach } from "./reach.js"
import type { ServerTime } from "./server-time.js"
import type { Call, Transport } from "./transport.js"

/** A query or a procedure of the lexicons. */
export type Method = l.Query | l.Procedure

/** The parameters of a query. */
export type Params<M extends Method> = l.InferInput<M["parameters"]>

/** The input of a procedure. */
export type Input<M extends Method> = l.InferMethodInputBody<M>

/** The answer of a method. */
export type Output<M extends Method> = l.InferMethodOutputBody<M>

/** Gives the input of a write a fresh key, unless it has one. Store it before the first attempt: a retry needs the same. */
export function withIdempotencyKey<T extends object>(input: T, clock: Clock = systemClock): T & { readonly idempotencyKey: string } {
  const { idempotencyKey = hex(clock.randomBytes(16)) } = input as { readonly idempotencyKey?: string }
  return { ...input, idempotencyKey }
}

/** Throws if the input of a procedure breaks the lexicon. */
export function checkInput<M extends l.Procedure>(method: M, input: Input<M>): void {
  method.input.schema?.validate(input)
}

/** Encodes the input of a procedure, and refuses one that breaks the lexicon. */
export function encodeInput<M extends l.Procedure>(method: M, input: Input<M>): string {
  if (method.input.schema === undefined) return ""
  checkInput(method, input)
  return lexStringify(input as LexValue)
}

/**
 * Decodes an answer.
 *
 * @throws NoAnswerError if it breaks the lexicon, as the page of a proxy does: such a text says
 *   nothing about what the service did
 */
export function decodeAnswer<M extends Method>(method: M, text: string): Output<M> {
  try {
    const schema = method.output.schema
    return (schema === undefined ? undefined : schema.parse(lexParse(text))) as Output<M>
  } catch (err) {
    throw new NoAnswerError(`${method.nsid}: the answer breaks the lexicon`, { cause: err })
  }
}

/**
 * The methods of a service. It repeats what a query may repeat, by the retry table, until `signal`
 * aborts: then it throws what came last. Writes that must not be lost go through the outbox instead.
 */
export class Api {
  readonly transport: Transport
  /** Whether the service can be reached. */
  readonly reach = new Reach()

  /**
   * @param reachOf tells who answers a call, if the transport reaches several services
   * @param time hears the service's time
   */
  constructor(
    transport: Transport,
    private readonly clock: Clock,
    private readonly signal: AbortSignal,
    private readonly reachOf: (call: Call) => Reach = () => this.reach,
    time?: ServerTime,
  ) {
    this.transport = observed(transport, this.reach, time)
  }

  /** Makes a query. */
  query<M extends l.Query>(method: M, params: Params<M>): Promise<Output<M>> {
    method.parameters.validate(params)
    return this.call(method, { params: toSearch(params as Record<string, unknown>) })
  }

  /** Makes a query one time, whatever comes. */
  async queryOnce<M extends l.Query>(method: M, params: Params<M>): Promise<Output<M>> {
    method.parameters.validate(params)
    const call: Call = { method: method.nsid, params: toSearch(params as Record<string, unknown>), signal: this.signal }
    return decodeAnswer(method, await this.transport.call(call))
  }

  /** Makes a procedure that may be repeated without a key, such as confirmWelcome. */
  procedure<M extends l.Procedure>(method: M, input: Input<M>): Promise<Output<M>> {
    return this.call(method, { body: encodeInput(method, input) })
  }

  /** Sends a request again that the service has accepted before, byte for byte. */
  resend(method: string, body: string): Promise<string> {
    return this.repeat({ method, body }, (text) => text)
  }

  private call<M extends Method>(method: M, call: Omit<Call, "method">): Promise<Output<M>> {
    return this.repeat({ ...call, method: method.nsid }, (text) => decodeAnswer(method, text))
  }

  private async repeat<T>(call: Call, decode: (text: string) => T): Promise<T> {
    for (let attempt = 1; ; attempt++) {
      try {
        return decode(await this.transport.call({ ...call, signal: this.signal }))
      } catch (err) {
        if (verdictOf(err) !== "again" || this.signal.aborted) throw err
        await pause(this.clock, waitOf(err, this.clock, attempt), this.signal, this.reachOf(call).after(err))
        if (this.signal.aborted) throw err
      }
    }
  }
}

/** How long to wait after a failure that calls for the same again, in milliseconds. */
export function waitOf(err: unknown, clock: Clock, attempt: number): number {
  return askedWait(err instanceof XrpcError || err instanceof AwayError ? err.retryAfter : undefined) ?? backoff(clock, attempt)
}

function toSearch(params: Record<string, unknown>): URLSearchParams {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined) search.append(name, String(one))
    }
  }
  return search
}
