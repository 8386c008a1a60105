// A person's device: a store, keys, and a client. This is all that an app needs to begin.

import { type Client, type ClientEvents, type Did, IndexedDBStore, type PdsAgent, PdsTransport, type Store } from "mlsd-client"
import { openDevice } from "mlsd-client/device"

export interface Phone {
  readonly did: Did
  readonly client: Client
  /** The client's store. The app's own records have names that begin with `app/`. */
  readonly store: Store
}

/**
 * Opens the device of a person in this browser, or makes it.
 *
 * @param service the service's DID and its id, such as `did:web:mls.example.com#atproto_mls`
 * @throws Error if another tab has the device open
 */
export async function openPhone(did: Did, service: string, events: ClientEvents): Promise<Phone> {
  const store = await IndexedDBStore.open(`web-chat/${did}`)
  const client = await openDevice({
    did, store, events, transport: new PdsTransport(agentOf(did), service),
    fullStock: 9, // these people are invited once: a real app leaves this out
  })
  return { did, client, store }
}

/** In a real app: an OAuth session, or an `Agent` of @atproto/api. Here the page's server is the PDS. */
function agentOf(did: Did): PdsAgent {
  return { fetchHandler: (path, init) => fetch(`/pds/${encodeURIComponent(did)}${path}`, init) }
}
