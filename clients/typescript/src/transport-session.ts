// Calls under a session: docs/clients/SESSIONS.md.

import type { Output } from "./api.js"
import { decodeAnswer, encodeInput } from "./api.js"
import type { Clock } from "./clock.js"
import { systemClock } from "./clock.js"
import { NoAnswerError, verdictOf, XrpcError } from "./errors.js"
import { observed, Reach } from "./reach.js"
import { ServerTime } from "./server-time.js"
import { type Call, DirectTransport, type Fetch, type Transport } from "./transport.js"
import * as mls from "#lexicons"

type Session = Output<typeof mls.createSession.main>

/** A session is replaced so long before it ends, in milliseconds. */
const margin = 5 * 60_000

/** How long service-auth tokens are used instead, after a session could not be had. */
const withoutSession = 60_000

/** Methods that take a service-auth token only, or end more sessions with it. */
const withToken: ReadonlySet<string> = new Set([mls.createSession.main.nsid, mls.deleteSession.main.nsid, mls.eraseMyAccount.main.nsid])

/**
 * Sends calls directly, under a session that it buys with a service-auth token and refreshes. The
 * session is kept in memory: the next life of the process buys another. While none can be had, calls
 * go with service-auth tokens.
 */
export class SessionTransport implements Transport {
  private readonly time: ServerTime
  private readonly direct: Required<Transport>
  private readonly bearing: Required<Transport>
  private session: Session | undefined
  private renewing: Promise<void> | undefined
  private noneBefore = 0

  /**
   * @param service the service's URL, or what finds it: see {@link endpointOf}
   * @param deviceId the device's id: {@link Client.deviceId}, or the SHA-256 of its signature key
   * @param token makes a service-auth token for a method, each time another one
   */
  constructor(
    service: string | (() => Promise<string>),
    private readonly deviceId: string,
    token: (method: string) => Promise<string>,
    fetch?: Fetch,
    clock: Clock = systemClock,
  ) {
    this.time = new ServerTime(clock)
    const timed = (direct: DirectTransport) => observed(direct, new Reach(), this.time) as Required<Transport>
    this.direct = timed(new DirectTransport(service, token, fetch))
    this.bearing = timed(new DirectTransport(service, async () => this.bearer(), fetch))
  }

  call(call: Call): Promise<string> {
    return this.send(call, (transport) => transport.call(call))
  }

  receive(call: Call): Promise<Uint8Array> {
    return this.send(call, (transport) => transport.receive(call))
  }

  stream(call: Call): Promise<ReadableStream<Uint8Array>> {
    return this.send(call, (transport) => transport.stream(call))
  }

  /** Ends the session, when the person logs out. */
  async end(): Promise<void> {
    if (this.session === undefined) return
    try {
      await this.bearing.call({ method: mls.deleteSession.main.nsid, body: encodeInput(mls.deleteSession.main, {}) })
    } catch (err) {
      if (!isInvalid(err)) throw err // it had ended before
    }
    this.session = undefined
  }

  private async send<T>(call: Call, send: (transport: Required<Transport>) => Promise<T>): Promise<T> {
    if (withToken.has(call.method) || !(await this.ready())) return send(this.direct)
    try {
      return await send(this.bearing)
    } catch (err) {
      if (isForAnotherDevice(err)) return send(this.direct)
      if (!isInvalid(err)) throw err
      this.session = undefined // it has ended: once more with another
    }
    return send((await this.ready()) ? this.bearing : this.direct)
  }

  private bearer(): string {
    if (this.session === undefined) throw new Error("no session")
    return this.session.session
  }

  // ready gets a session if there is none or it is about to end, and reports whether there is one.
  private async ready(): Promise<boolean> {
    if (!this.endsSoon()) return true
    if (this.time.now() >= this.noneBefore) {
      this.renewing ??= this.renew().finally(() => (this.renewing = undefined))
      await this.renewing
    }
    return this.session !== undefined
  }

  private endsSoon(): boolean {
    return this.session === undefined || Date.parse(this.session.expiresAt) - margin < this.time.now()
  }

  private async renew(): Promise<void> {
    try {
      this.session = (await this.refreshed()) ?? (await this.bought())
    } catch (err) {
      if (!(err instanceof NoAnswerError) && verdictOf(err) !== "again") throw err
      this.noneBefore = this.time.now() + withoutSession
      if (this.session !== undefined && Date.parse(this.session.expiresAt) <= this.time.now()) this.session = undefined
    }
  }

  private async refreshed(): Promise<Session | undefined> {
    if (this.session === undefined || Date.parse(this.session.expiresAt) <= this.time.now()) return undefined
    const { main } = mls.refreshSession
    const body = encodeInput(main, { refreshToken: this.session.refreshToken })
    try {
      return decodeAnswer(main, await this.bearing.call({ method: main.nsid, body }))
    } catch (err) {
      if (err instanceof XrpcError && (err.status === 400 || err.status === 401)) return undefined
      throw err
    }
  }

  private async bought(): Promise<Session> {
    const { main } = mls.createSession
    const body = encodeInput(main, { deviceId: this.deviceId })
    return decodeAnswer(main, await this.direct.call({ method: main.nsid, body }))
  }
}

// isForAnotherDevice reports whether a call was for another device of the person, which a session may not speak for.
function isForAnotherDevice(err: unknown): boolean {
  return err instanceof XrpcError && err.error === "NotPermitted" && err.text.includes("the session is of another device")
}

function isInvalid(err: unknown): boolean {
  return err instanceof XrpcError && err.status === 401
}
