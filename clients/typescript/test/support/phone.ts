// A client with a device of ts-mls, for tests.

import { Client, type ClientEvents, type ClientOptions } from "../../src/client.js"
import type { Clock } from "../../src/clock.js"
import { systemClock } from "../../src/clock.js"
import type { ConvoId, Did } from "../../src/ids.js"
import { TsMls } from "../../src/mls-ts.js"
import type { Store } from "../../src/store.js"
import { transportOf } from "./dev.js"
import { accountsOf } from "./everyone.js"

export const suite = "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

const begun = Date.now()

/** A clock on which time passes so many times as fast. */
export function hastyClock(haste: number): Clock {
  return {
    ...systemClock,
    now: () => begun + (Date.now() - begun) * haste,
    sleep: (ms, signal) => systemClock.sleep(ms / haste, signal),
  }
}

const accepting = new WeakSet<ClientEvents>()

/**
 * Opens the client of a device. The store has the device, or gets a new one. Its person accepts all requests,
 * unless the test hears of them.
 */
export async function openPhone(did: Did, store: Store, options: Partial<ClientOptions> = {}): Promise<Client> {
  const saved = await store.read("test/device")
  const mls = saved === undefined ? await TsMls.create(did, suite) : await TsMls.import(saved)
  if (saved === undefined) await store.write(new Map([["test/device", mls.export()]]))
  const { events = {} } = options
  let phone: Client | undefined
  if (events.onRequest === undefined || accepting.has(events)) {
    accepting.add(events)
    events.onRequest = ({ convoId }) => void phone?.accept(convoId).then(({ joined }) => joined).catch(() => {}) // the app hears of a failure
  }
  phone = await Client.open({
    did, store, mls, accounts: accountsOf(did), transport: transportOf(did), clock: hastyClock(50), fullStock: 5, ...options, events,
  })
  return phone
}

/** Accepts all that waits, and returns when the device is in it. */
export async function acceptAll(phone: Client): Promise<void> {
  await phone.syncAll()
  for (const { convoId } of await phone.requests()) await (await phone.accept(convoId)).joined
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()

export const bytesOf = (text: string) => encoder.encode(text)

/** The texts of a convo's messages, as a device has read them. */
export async function textsOf(phone: Client, convo: ConvoId): Promise<string[]> {
  const items = await phone.items(convo)
  return items.filter(({ content }) => content !== undefined).map(({ content }) => decoder.decode(content))
}

/** Waits until a phone has read so many messages. */
export function readsAll(phone: { client?: Client; onItems?: () => void }, convo: ConvoId, count: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const look = () => {
      if (phone.client === undefined) return
      textsOf(phone.client, convo).then((texts) => texts.length >= count && resolve(), reject)
    }
    phone.onItems = look
    look()
  })
}
