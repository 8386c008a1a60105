// A person's device: a store, keys, and a client. This is all that an app needs to begin.

import {
  type Client, type ClientEvents, type Did, type Doubt, IndexedDBStore, type OtherServices, type PdsAgent, type Store, StoreOpenError,
  type Transport,
} from "mlsd-client"
import { AtprotoAccounts } from "mlsd-client/accounts"
import { openDevice } from "mlsd-client/device"

/** A way to the service, or what makes it for the device's id. */
export type Way = Transport | ((deviceId: string) => Transport)

export interface Phone {
  readonly did: Did
  readonly client: Client
  /** The client's store. The app's own records have names that begin with `app/`. */
  readonly store: Store
}

/** Who has signed in, and the ways that this opens. */
export interface Account {
  readonly did: Did
  /** The person's session at the PDS. */
  readonly agent: PdsAgent
  /** The directory that names the PDSes of others. */
  readonly directory: string
  /** The way to the person's own service. */
  readonly way: Way
  /** The ways to other services, if there are any. */
  readonly services?: OtherServices
}

/** Opens the store of a person in this browser. If another tab has it, says so, and waits until that one closes. */
export async function openStore(did: Did, onElsewhere: () => void): Promise<Store> {
  const name = `web-chat/${did}`
  try {
    return await IndexedDBStore.open(name)
  } catch (err) {
    if (!(err instanceof StoreOpenError)) throw err
    onElsewhere()
    return IndexedDBStore.open(name, { wait: true })
  }
}

/** Opens the device that a store has, or makes it. */
export async function openPhone(
  store: Store, account: Account, events: ClientEvents, decide: (doubt: Doubt) => boolean,
): Promise<Phone> {
  const { did, agent, directory, way: transport, services } = account
  const accounts = new AtprotoAccounts({ did, agent, plcDirectory: directory })
  const client = await openDevice({
    did, store, accounts, events, decide, transport, deviceName: deviceName(), ...(services && { services }),
    fullStock: 9, // these people are invited seldom: a real app leaves this out
  })
  return { did, client, store }
}

// deviceName is what the person's list of devices says. Everybody can read it.
function deviceName(): string {
  const systems = ["Windows", "Android", "iPhone", "iPad", "Mac", "Linux"]
  const system = systems.find((name) => navigator.userAgent.includes(name)) ?? "this computer"
  return `Browser on ${system}`
}
