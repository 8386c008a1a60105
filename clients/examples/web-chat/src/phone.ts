// A person's device: a store, keys, and a client. This is all that an app needs to begin.

import {
  type Client, type ClientEvents, type Did, IndexedDBStore, type OtherServices, type PdsAgent, type Store, type Transport,
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

/** A person's session at their PDS, and the directory that names the PDSes of others. */
export interface Account {
  readonly agent: PdsAgent
  readonly directory: string
}

/**
 * Opens the device of a person in this browser, or makes it.
 *
 * @param account where the device is listed, and the devices of others
 * @param transport a way to the service, or what makes it for the device's id
 * @param services ways to other services, if there are any
 * @throws Error if another tab has the device open
 */
export async function openPhone(
  did: Did, { agent, directory }: Account, transport: Way, events: ClientEvents, services?: OtherServices,
): Promise<Phone> {
  const accounts = new AtprotoAccounts({ did, agent, plcDirectory: directory })
  const store = await IndexedDBStore.open(`web-chat/${did}`)
  const client = await openDevice({
    did, store, accounts, events, transport, ...(services && { services }),
    fullStock: 9, // these people are invited once: a real app leaves this out
  })
  return { did, client, store }
}
