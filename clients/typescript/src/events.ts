// The event stream: docs/EVENTS.md.

import type { Core } from "./core.js"
import { askedWait, backoff, pause } from "./clock.js"
import { errorName, NoAnswerError, OutOfStepError, verdictOf, XrpcError } from "./errors.js"
import type { ConvoId } from "./ids.js"
import { deviceIdOf } from "./keypackages.js"
import { names } from "./records.js"
import { type Changes, get, put } from "./store.js"
import { serverSentEvents } from "./events-sse.js"
import { type OpenSocket, socketEvents } from "./events-socket.js"
import type { MemberCursor } from "./signals.js"
import * as mls from "#lexicons"

type Stream = typeof mls.subscribeConvoEvents

/** An event, by its name in the lexicon. */
export type StreamEvent =
  | { readonly type: "messageEvent"; readonly body: Placeless<mls.subscribeConvoEvents.MessageEvent> }
  | { readonly type: "commitEvent"; readonly body: Placeless<mls.subscribeConvoEvents.CommitEvent> }
  | { readonly type: "welcomeEvent"; readonly body: Placeless<mls.subscribeConvoEvents.WelcomeEvent> }
  | { readonly type: "membershipEvent"; readonly body: Placeless<mls.subscribeConvoEvents.MembershipEvent> }
  | { readonly type: "keyPackagesEvent"; readonly body: Placeless<mls.subscribeConvoEvents.KeyPackagesEvent> }
  | { readonly type: "disputeEvent"; readonly body: Placeless<mls.subscribeConvoEvents.DisputeEvent> }
  | { readonly type: "arrivalEvent"; readonly body: Placeless<mls.subscribeConvoEvents.ArrivalEvent> }
  | { readonly type: "roleEvent"; readonly body: Placeless<mls.subscribeConvoEvents.RoleEvent> }
  | { readonly type: "metadataEvent"; readonly body: Placeless<mls.subscribeConvoEvents.MetadataEvent> }
  | { readonly type: "resetEvent"; readonly body: Placeless<mls.subscribeConvoEvents.ResetEvent> }
  | { readonly type: "invitationEvent"; readonly body: Placeless<mls.subscribeConvoEvents.InvitationEvent> }

/** An event that is not kept: it has no place, and comes only while this device is connected. */
export type SignalEvent =
  | { readonly type: "typingEvent"; readonly convoId: ConvoId; readonly payload: Uint8Array }
  | { readonly type: "cursorEvent"; readonly convoId: ConvoId; readonly cursors: readonly MemberCursor[] }

type Placeless<E> = Omit<E, "cursor" | "position" | "$type">

/** A place in the stream. Both texts are opaque. */
export interface Place {
  readonly cursor: string
  readonly position?: string
}

/** What a connection brings: an event and its place, a signal, or that events are missing before it. */
export type Incoming = { readonly event: StreamEvent; readonly place: Place } | { readonly signal: SignalEvent } | "outdated"

/** What a stream calls. It waits for each before it goes on, and stores the place after that. */
export interface StreamHandler {
  /** The app has stored what it makes of the event when this returns. */
  onEvent(event: StreamEvent): Promise<void>
  /**
   * Reads all convos: after the first connection, and when events are missing. It runs while the
   * connection is open, so nothing falls between the two.
   */
  onMissing(): Promise<void>
  /** A signal has come. Nothing is stored for it. */
  onSignal?(signal: SignalEvent): Promise<void>
  /** A connection is open: no event after this is missed. */
  onConnect?(): void
  /** A connection has ended, and the stream connects again. */
  onReconnect?(err: unknown): void
  /** The account may not use the service now. The stream waits for {@link EventStream.reconnect}. */
  onStop?(err: unknown): void
}

/** Follows the event stream until it is closed. */
export class EventStream {
  private readonly closing = new AbortController()
  private wake = new AbortController()
  private ended: Promise<void> = Promise.resolve()
  /** Set while the stream waits for {@link EventStream.reconnect}, because the account may not use the service. */
  stopped = false

  /** @param openSocket makes a WebSocket; by default that of the platform, if it has one */
  constructor(
    private readonly core: Core,
    private readonly handler: StreamHandler,
    private readonly openSocket?: OpenSocket,
    /** The record of the place in the stream. */
    private readonly cursor: string = names.cursor,
  ) {}

  /** Begins to follow the stream. */
  start(): void {
    this.ended = this.run()
  }

  /** Connects again at once, for example when the network is back or the app is shown again. */
  reconnect(): void {
    this.wake.abort()
  }

  async close(): Promise<void> {
    this.closing.abort()
    this.wake.abort()
    await this.ended
  }

  private async run(): Promise<void> {
    for (let attempt = 1; !this.closing.signal.aborted; attempt++) {
      this.wake = new AbortController()
      let [wait, sign]: [number?, AbortSignal?] = []
      try {
        await this.follow(() => (attempt = 0))
      } catch (err) {
        if (this.closing.signal.aborted) return
        if (isFinal(err)) {
          this.stopped = true
          this.handler.onStop?.(err)
          await ended(this.wake.signal)
          this.stopped = false
          attempt = 0
          continue
        }
        if (errorName(err) === "FutureCursor") await this.store(undefined)
        this.handler.onReconnect?.(err)
        wait = waitOf(err)
        sign = this.core.api.reach.after(err)
      }
      const ms = wait === undefined ? backoff(this.core.clock, Math.max(attempt, 1)) : wait * (1 + this.core.clock.random())
      await pause(this.core.clock, ms, this.wake.signal, wait === undefined ? sign : undefined)
    }
  }

  // follow is one connection. It ends with an error.
  private async follow(works: () => void): Promise<void> {
    const connection = new AbortController()
    try {
      const place = await get<Place>(this.core.store, this.cursor)
      const events = await this.open(place, AbortSignal.any([this.closing.signal, this.wake.signal, connection.signal]))
      this.handler.onConnect?.()
      if (place === undefined) await this.handler.onMissing()
      for await (const incoming of events) {
        works()
        await this.take(incoming)
      }
      throw new NoAnswerError("the stream has ended")
    } finally {
      connection.abort()
    }
  }

  private async take(incoming: Incoming): Promise<void> {
    this.core.api.reach.give()
    if (incoming === "outdated") return this.handler.onMissing()
    if ("signal" in incoming) return this.handler.onSignal?.(incoming.signal)
    await this.handler.onEvent(incoming.event)
    await this.store(incoming.place)
  }

  private async open(place: Place | undefined, signal: AbortSignal): Promise<AsyncIterable<Incoming>> {
    const { api } = this.core
    if (api.transport.stream !== undefined) {
      const params = new URLSearchParams(place && { cursor: place.position ?? place.cursor })
      const method = mls.streamConvoEvents.main.nsid
      return serverSentEvents(await api.transport.stream({ method, params, signal }), signal)
    }
    const { url } = await api.procedure(mls.getSubscriptionTicket.main, undefined)
    const address = new URL(url)
    address.searchParams.set("deviceId", await deviceIdOf(this.core))
    if (place !== undefined) {
      // With the cursor itself the stream begins with the event that the device has; the position
      // says to begin after it.
      address.searchParams.set("cursor", place.cursor)
      if (place.position !== undefined) address.searchParams.set("position", place.position)
    }
    return socketEvents(this.openSocket, address.href, signal)
  }

  private store(place: Place | undefined): Promise<void> {
    const changes: Changes = new Map()
    if (place === undefined) changes.set(this.cursor, undefined)
    else put(changes, this.cursor, place)
    return this.core.store.write(changes)
  }
}

function ended(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    signal.addEventListener("abort", () => resolve())
  })
}

/** A connection that the server has ended. */
export class StreamEndedError extends NoAnswerError {
  constructor(
    message: string,
    /** How long the server asks to wait, in milliseconds. */
    readonly after?: number,
  ) {
    super(message)
  }
}

/** Reads why the server ends a connection: a wait, or the name of an error and a text. */
export function endOf(reason: string): Error {
  const after = /reconnect after (\d+) ms/.exec(reason)?.[1]
  if (after !== undefined) return new StreamEndedError(reason, Number(after))
  const name = /^[A-Z][A-Za-z]+/.exec(reason)?.[0]
  if (name === undefined) return new StreamEndedError(reason)
  return new XrpcError(name === "Blocked" || name === "AccountInactive" ? 403 : 400, name, reason)
}

function waitOf(err: unknown): number | undefined {
  return err instanceof StreamEndedError ? askedWait(err.after) : undefined
}

// isFinal reports whether connecting again is of no use. What fails in the handler is not: the event
// comes again.
function isFinal(err: unknown): boolean {
  if (err instanceof OutOfStepError) return false
  try {
    return verdictOf(err) === "stop"
  } catch {
    return false
  }
}

const eventNames = [
  "messageEvent", "commitEvent", "welcomeEvent", "membershipEvent", "keyPackagesEvent", "disputeEvent", "arrivalEvent",
  "resetEvent",
  "roleEvent",
  "metadataEvent",
  "invitationEvent",
] as const

/**
 * Reads an event by its name. An event that this package does not know is `undefined`: newer servers
 * can have more.
 */
export function readEvent(name: string, body: object): StreamEvent | undefined {
  const type = eventNames.find((known) => known === name)
  if (type === undefined) return undefined
  const schema: Stream[typeof type] = mls.subscribeConvoEvents[type]
  return { type, body: schema.parse(body) } as StreamEvent
}

/** Reads an event that is not kept, by its name. */
export function readSignal(name: string, body: Record<string, unknown>): SignalEvent | undefined {
  if (name === "typingEvent") {
    const { convoId, payload } = mls.subscribeConvoEvents.typingEvent.parse(body)
    return { type: name, convoId: convoId as ConvoId, payload }
  }
  if (name === "cursorEvent") {
    const { convoId, cursors } = mls.subscribeConvoEvents.cursorEvent.parse(body)
    return { type: name, convoId: convoId as ConvoId, cursors }
  }
  return undefined
}
