// What the answers of a service show besides their content.

import { AwayError, NoAnswerError, XrpcError } from "./errors.js"
import type { ServerTime } from "./server-time.js"
import type { Call, Transport } from "./transport.js"

/** So long a wait that a service asks for is kept, whatever else it answers. */
const keptWait = 60_000

/** Whether a service can be reached: who waits because it could not be hears of the next sign. */
export class Reach {
  private next = new AbortController()

  /** Aborts at the next sign. */
  get sign(): AbortSignal {
    return this.next.signal
  }

  /** There is a sign: an answer, an event, or a network. */
  give(): void {
    const { next } = this
    this.next = new AbortController()
    next.abort()
  }

  /** The sign that ends a wait after an error. There is none if the service can be reached and asks for the wait. */
  after(err: unknown): AbortSignal | undefined {
    if (err instanceof AwayError) return undefined // of another service
    if (err instanceof NoAnswerError) return this.sign
    const isAway = err instanceof XrpcError && err.status >= 500 && !((err.retryAfter ?? Infinity) <= keptWait)
    return isAway ? this.sign : undefined
  }
}

/** A transport whose answers give signs, and tell the time. */
export function observed(transport: Transport, reach: Reach, time?: ServerTime): Transport {
  const timed = (call: Call): Call => {
    if (time === undefined) return call
    const sent = time.sending()
    return { ...call, onDate: (date) => {
      time.heard(date, sent)
      call.onDate?.(date)
    } }
  }
  const heard = async <T>(answer: Promise<T>): Promise<T> => {
    try {
      const value = await answer
      reach.give()
      return value
    } catch (err) {
      if (err instanceof XrpcError && err.status < 500) reach.give()
      throw err
    }
  }
  return {
    call: (call) => heard(transport.call(timed(call))),
    ...(transport.receive && { receive: (call: Call) => heard(transport.receive!(timed(call))) }),
    ...(transport.stream && { stream: (call: Call) => heard(transport.stream!(timed(call))) }),
  }
}
