// What an app hears, for tests that wait for it.

import type { Client, ClientEvents, ClientOptions } from "../../src/client.js"
import type { ConvoId, Did } from "../../src/ids.js"
import { MemoryStore, type Store } from "../../src/store.js"
import { openPhone } from "./phone.js"

const events = ["onItems", "onJoined", "onDevice", "onEvent", "onConnect", "onFailure", "onFinding", "onSignedOut", "onWithoutDevice"] as const

/** Keeps the events of a device. */
export class Heard {
  /** Each event's name, and its arguments. */
  readonly all: [name: string, ...args: unknown[]][] = []
  private wake = () => {}

  readonly handlers: ClientEvents = Object.fromEntries(events.map((name) => [name, (...args: unknown[]) => this.hear(name, ...args)]))

  hear(name: string, ...args: unknown[]): void {
    this.all.push([name, ...args])
    this.wake()
  }

  /** Waits for an event, also one of before, and returns its arguments. */
  async until(name: (typeof events)[number], fits: (...args: unknown[]) => boolean = () => true): Promise<unknown[]> {
    for (;;) {
      const found = this.all.find(([one, ...args]) => one === name && fits(...args))
      if (found !== undefined) return found.slice(1)
      await new Promise<void>((resolve) => (this.wake = resolve))
    }
  }
}

/** A device whose events are kept. */
export interface Open {
  readonly client: Client
  readonly heard: Heard
  readonly store: Store
}

export async function open(did: Did, options: Partial<ClientOptions> = {}, store: Store = new MemoryStore()): Promise<Open> {
  const heard = new Heard()
  const client = await openPhone(did, store, { events: heard.handlers, ...options })
  return { client, heard, store }
}

/** The arguments of `onJoined` for a convo. */
export const joined = (convo: ConvoId) => (one: unknown) => one === convo
