// What the parts of a client share.

import type { Api } from "./api.js"
import type { Clock } from "./clock.js"
import type { Devices } from "./devices.js"
import type { Did } from "./ids.js"
import type { Locks } from "./locks.js"
import type { Mls } from "./mls.js"
import type { NewsQueue } from "./news.js"
import type { Services } from "./services.js"
import type { Store } from "./store.js"

/** What the parts of a client share. */
export interface Core {
  readonly did: Did
  readonly store: Store
  /** The methods of the services. A call with a convo goes to the convo's service, any other one home. */
  readonly api: Api
  readonly services: Services
  readonly mls: Mls
  /** The devices that this one knows. */
  readonly devices: Devices
  /** What the app must hear. */
  readonly news: NewsQueue
  readonly clock: Clock
  readonly locks: Locks
  readonly envelope: Envelope
  /** Whether what is read and acknowledged is kept for the checks of logs. */
  readonly checksLogs: boolean
}

/** A plaintext: the message's own id, and what the app wants to say. */
export interface Message {
  /** Hexadecimal. It is the same when the message has to be encrypted again. */
  readonly id: string
  readonly content: Uint8Array
}

/**
 * How a plaintext holds the message's id and its content. All clients of a convo must have the same
 * form. A message without an id of this form gets the digest of its ciphertext as its id.
 */
export interface Envelope {
  wrap(message: Message): Uint8Array
  unwrap(plaintext: Uint8Array): Partial<Message> & Pick<Message, "content">
}
