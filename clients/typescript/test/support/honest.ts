// An honest person's device, and all that its app hears: for tests of servers that lie.

import { logChecks } from "../../src/log-checks.js"
import type { Client, ClientEvents, ClientOptions } from "../../src/client.js"
import { AwayError } from "../../src/errors.js"
import type { ConvoId, Did } from "../../src/ids.js"
import { MemoryStore } from "../../src/store.js"
import { newAccounts, serverURL } from "./dev.js"
import { KillingStore } from "./killing.js"
import type { Liar } from "./liar.js"
import { PassingClock } from "./passing.js"
import { bytesOf, openPhone, textsOf } from "./phone.js"

/** One thing that an app heard. */
export interface Heard {
  readonly name: string
  readonly args: readonly unknown[]
}

/** The questions that a client can ask its app. They are no events: their answer counts. */
type Question = "decide"

/**
 * Whether an app that hears this hears that something is wrong, asks its person, or is refused
 * something. Each function says it of its own arguments.
 */
const warns: Record<keyof ClientEvents | "onDevice" | Question, (...args: never[]) => boolean> = {
  onFinding: () => true,
  onDispute: () => true,
  onFailure: () => true,
  onLost: () => true,
  onStop: () => true,
  onWelcomeLost: () => true,
  onDevice: (_: ConvoId, { change }: { change: string }) => !["entered", "left", "listed", "joined"].includes(change),
  decide: () => true,
  onArrived: () => false,
  onChange: () => false,
  onConnect: () => false,
  onCursors: () => false,
  onEvent: () => false,
  onHeld: () => false,
  onHistoryBundle: () => false,
  onHistoryRequest: () => false,
  onImported: () => false,
  onMissing: () => false,
  onRequest: () => false,
  onItems: () => false,
  onJoined: () => false,
  onMoved: () => false,
  onQuota: () => false,
  onReconnect: () => false,
  onRetry: () => false,
  onService: () => false,
  onSignal: () => false,
  onClock: () => false, onSignedOut: () => true, onWithoutDevice: () => true, onWelcome: () => false,
}

/**
 * So many KeyPackages that those who are added in a test leave enough: then the service asks for no
 * more.
 */
const fullStock = 24

/** How a device is opened. */
export interface Settings extends Partial<ClientOptions> {
  /** An earlier life of the device, which goes on. */
  readonly before?: Honest
}

/** A device of an honest person, which reaches its service by way of a liar. */
export class Honest {
  /** All that the app has heard, the oldest first, and the refusals that it got. */
  readonly heard: Heard[] = []
  readonly clock = new PassingClock()
  client!: Client
  private readonly waiting = new Set<() => void>()
  private readonly mortal: KillingStore
  private crashAt: (heard: Heard) => boolean = () => false

  private constructor(
    readonly did: Did,
    private readonly store: MemoryStore,
  ) {
    this.mortal = new KillingStore(store, Number.POSITIVE_INFINITY, false)
  }

  /**
   * Opens a device of a new person, or the next life of a device, and follows its events. It is the
   * one place where these tests open a client. Its account lists the device; a liar's devices are
   * listed nowhere.
   */
  static async open(liar: Liar, { before, ...options }: Settings = {}): Promise<Honest> {
    const [did] = before === undefined ? await newAccounts(1) : [before.did]
    const device = new Honest(did as Did, before?.store ?? new MemoryStore())
    const checks = logChecks(await serviceOf(serverURL()))
    device.client = await openPhone(device.did, device.mortal, {
      transport: liar.way(device.did), logChecks: checks, clock: device.clock, events: device.events(), fullStock,
      ...device.questions(), ...options,
    })
    if (before === undefined) await device.client.replenish()
    device.client.listen()
    await device.until(() => device.heard.some(({ name }) => name === "onConnect"))
    return device
  }

  /** What warned the app, in short. */
  get warnings(): string[] {
    return this.heard.filter(isWarning).map(({ name, args }) => `${name}(${args.map(textOfOne).join(", ")})`)
  }

  /** Waits until something is so. It looks whenever the app hears something. */
  async until(look: () => boolean): Promise<void> {
    while (!look()) await new Promise<void>((resolve) => this.waiting.add(resolve))
  }

  /**
   * Does something that brings an event, and waits until the client has done what the event asks
   * for.
   */
  async after(act: () => unknown, type: string): Promise<void> {
    const from = this.heard.length
    await act()
    await this.until(() => this.heard.slice(from).some(({ name, args: [event] }) =>
      name === "onReconnect" || (name === "onEvent" && (event as { type: string }).type === type)))
  }

  /**
   * Sends a message. It returns when the service has it, or when the app knows that it waits or is
   * refused.
   */
  async says(convo: ConvoId, text: string): Promise<void> {
    await (await this.begins(convo, text)).done
  }

  /** Stores a message, and says when {@link says} would return. */
  async begins(convo: ConvoId, text: string): Promise<{ done: Promise<void> }> {
    const from = this.heard.length
    let settled = false
    const settle = (refusal?: unknown) => {
      settled = true
      if (refusal !== undefined) this.hear("onFailure", refusal)
      this.wake()
    }
    await this.client.send(convo, bytesOf(text)).then(({ sent }) => void sent.then(() => settle(), settle), settle)
    return { done: this.until(() => settled || this.heard.slice(from).some((one) => isWarning(one) || waits(one))) }
  }

  /** Lets the client do something. That it refuses is something that the app hears. */
  async tries(act: (client: Client) => Promise<unknown>): Promise<void> {
    await act(this.client).catch((err: unknown) => this.hear("onFailure", err))
  }

  /** Waits until this device has joined a convo: it hears of its Welcome. */
  joins(convo: ConvoId): Promise<void> {
    return this.until(() => this.heard.some(({ name, args: [joined] }) => name === "onJoined" && joined === convo))
  }

  /** The texts that this device has read. */
  texts(convo: ConvoId): Promise<string[]> {
    return textsOf(this.client, convo)
  }

  /** The people of a group, as this device's MLS has it. */
  async people(convo: ConvoId): Promise<string[]> {
    return (await this.client.group(convo)).members.map(({ identity }) => identity)
  }

  /**
   * Lets the device crash when its app hears of something: nothing is stored after that. It returns
   * after the crash.
   */
  async crashes(at: (heard: Heard) => boolean): Promise<void> {
    this.crashAt = at
    await this.until(() => this.mortal.killed)
    await this.client.close()
  }

  /** A record of this device's store. */
  record(name: string): Promise<Uint8Array | undefined> {
    return this.store.read(name)
  }

  private hear(name: string, ...args: unknown[]): void {
    const heard: Heard = { name, args }
    this.heard.push(heard)
    if (this.crashAt(heard)) this.mortal.killed = true
    this.wake()
  }

  private wake(): void {
    for (const look of this.waiting) look()
    this.waiting.clear()
  }

  private events(): ClientEvents {
    const names = Object.keys(warns).filter((name) => name.startsWith("on"))
    const events: ClientEvents = Object.fromEntries(names.map((name) => [name, (...args: unknown[]) => this.hear(name, ...args)]))
    events.onRequest = (request) => {
      this.hear("onRequest", request)
      void this.client.accept(request.convoId).then(({ joined }) => joined).catch(() => {}) // the app hears of a failure
    }
    return events
  }

  // questions answers as a person does who is away: nothing is decided.
  private questions(): Partial<ClientOptions> {
    const decide: (...args: unknown[]) => boolean = (...args) => {
      this.hear("decide", ...args)
      return false
    }
    return { decide } as Partial<ClientOptions>
  }
}

function isWarning({ name, args }: Heard): boolean {
  const warn = warns[name as keyof typeof warns] as (...args: readonly unknown[]) => boolean
  return warn(...args)
}

// waits reports whether a write waits because of somebody whom it would be encrypted for.
function waits({ name, args: [, , err] }: Heard): boolean {
  return name === "onRetry" && err instanceof AwayError
}

function textOfOne(arg: unknown): string {
  if (typeof arg !== "object" || arg === null || arg instanceof Error) return String(arg)
  const { kind, sentence, change, why } = arg as Record<string, unknown>
  return [kind, sentence, change, why].filter((one) => one !== undefined).join(": ")
}

async function serviceOf(url: string): Promise<string> {
  return ((await (await fetch(new URL("/.well-known/did.json", url))).json()) as { id: string }).id
}
