// A network of three services: `mlsd-dev --services 3`, whose first one is at the URL in TEST_NETWORK.

import assert from "node:assert/strict"
import type { Client, ClientEvents, ClientOptions } from "../../src/client.js"
import type { StreamEvent } from "../../src/events.js"
import type { ConvoId, Did } from "../../src/ids.js"
import type { ConvoRequest, Item } from "../../src/records.js"
import { endpointOf, type OtherServices } from "../../src/services.js"
import { MemoryStore } from "../../src/store.js"
import { DirectTransport, type PdsAgent, type Transport } from "../../src/transport.js"
import type { Fault } from "./dev.js"
import { openPhone } from "./phone.js"

const base = process.env.TEST_NETWORK

export const needsNetwork = base === undefined ? { skip: "TEST_NETWORK is not set: run check.sh" } : { timeout: 180_000 }

/** A service of the network. */
export interface ServiceAt {
  readonly did: Did
  readonly url: string
}

interface Account {
  readonly did: Did
  readonly deliveryService: Did
}

/** Calls a method of a service's `mlsd-dev`, by default the first one's. */
export async function ask<T>(method: string, path: string, body?: object, at = base): Promise<T> {
  const response = await fetch(new URL(path, at), { method, ...(body && { body: JSON.stringify(body) }) })
  const text = await response.text()
  if (!response.ok) throw new Error(`${path}: ${response.status} ${text}`)
  return JSON.parse(text) as T
}

export async function services(): Promise<ServiceAt[]> {
  return (await ask<{ services: ServiceAt[] }>("GET", "/dev")).services
}

/** Makes an account at the service of that number, from 0. */
export async function newAccountAt(n: number): Promise<Account> {
  const all = await services()
  for (;;) {
    const { accounts: [account] } = await ask<{ accounts: [Account] }>("POST", "/dev/accounts", {})
    if (account.deliveryService === all[n]?.did) return account
  }
}

/** Plans a fault at a service. */
export async function planAt({ url }: ServiceAt, fault: Fault): Promise<void> {
  await ask("POST", "/dev/faults", fault, url)
}

/** Removes all faults of a service. */
export async function clearAt({ url }: ServiceAt): Promise<void> {
  await ask("DELETE", "/dev/faults", undefined, url)
}

async function token(did: Did, lxm: string, aud: Did): Promise<string> {
  return (await ask<{ token: string }>("POST", "/dev/token", { did, lxm, aud })).token
}

/** A session of an account at the network's PDS. */
export function pdsOf({ did, deliveryService }: Account): PdsAgent {
  return {
    fetchHandler: async (path, init) => fetch(new URL(path, base), {
      ...init, headers: { ...init.headers, authorization: `Bearer ${await token(did, "com.atproto.repo.putRecord", deliveryService)}` },
    }),
  }
}

export function othersOf({ did, deliveryService: home }: Account): OtherServices {
  return { home, way: (aud) => new DirectTransport(() => endpointOf(aud), (lxm) => token(did, lxm, aud)) }
}

/** Changes a way to a service. */
export type Wrap = (inner: Transport, service: Did) => Transport

/** The same way. */
export const wrapped = (inner: Transport): Transport => ({
  call: (call) => inner.call(call),
  stream: (call) => {
    assert.ok(inner.stream)
    return inner.stream(call)
  },
})

/** A device of an account, and what its app hears. */
export class Device {
  client!: Client
  readonly joined: ConvoId[] = []
  readonly requests: ConvoRequest[] = []
  readonly stops: (Did | undefined)[] = []
  readonly heard: StreamEvent[] = []
  readonly moved: ConvoId[] = []
  private wake = () => {}

  private constructor(
    readonly account: Account,
    readonly store: MemoryStore,
  ) {}

  /** Opens a device of a new account at a service, or goes on with a device. */
  static async open(at: number | Device, options: Partial<ClientOptions> = {}, wrap: Wrap = wrapped): Promise<Device> {
    const account = typeof at === "number" ? await newAccountAt(at) : at.account
    const device = new Device(account, typeof at === "number" ? new MemoryStore() : at.store)
    const { did, deliveryService } = account
    const others = othersOf(account)
    device.client = await openPhone(did, device.store, {
      transport: wrap(new DirectTransport(() => endpointOf(deliveryService), (lxm) => token(did, lxm, deliveryService)), deliveryService),
      services: { ...others, way: (service, id) => wrap(others.way(service, id), service) }, events: device.events(), ...options,
    })
    if (typeof at === "number") await device.client.replenish()
    return device
  }

  /** Looks again, as if the app had heard of something. */
  look(): void {
    this.wake()
  }

  /** Makes {@link until} look again as soon as it can. */
  soon(): undefined {
    setImmediate(() => this.wake())
    return undefined
  }

  get did(): Did {
    return this.account.did
  }

  /** Waits until something is so. It looks whenever the app hears of something. */
  async until<T>(look: () => Promise<T | undefined> | T | undefined): Promise<T> {
    for (;;) {
      const heard = new Promise<void>((resolve) => (this.wake = resolve))
      const found = await look()
      if (found !== undefined) return found
      await heard
    }
  }

  /** Waits for a request. */
  request(): Promise<ConvoRequest> {
    return this.until(() => this.requests[0])
  }

  private events(): ClientEvents {
    const hear = <A extends unknown[]>(take: (...args: A) => unknown) => (...args: A) => {
      take(...args)
      this.wake()
    }
    return {
      onJoined: hear((convo: ConvoId) => this.joined.push(convo)),
      onRequest: hear((one: ConvoRequest) => this.requests.push(one)),
      onItems: hear((_convo: ConvoId, _items: Item[]) => {}),
      onStop: hear((_err: unknown, service?: Did) => this.stops.push(service)),
      onEvent: hear((event: StreamEvent) => this.heard.push(event)),
      onMoved: hear((_convo: ConvoId, successor: ConvoId) => this.moved.push(successor)),
      onRetry: hear(() => {}),
      onFailure: (err) => assert.fail(String(err)),
    }
  }
}
