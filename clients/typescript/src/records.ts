// The records of a client's store.

import type { CommitChange } from "./changes.js"
import type { ConvoId, Did } from "./ids.js"
import { getAll, type Store } from "./store.js"

/** What a device knows of one convo. */
export interface Thread {
  readonly convoId: ConvoId
  /** Hexadecimal. */
  readonly groupId: string
  /** The first and the last seq that were read, or 0. */
  readonly first: number
  readonly cursor: number
  /** The id of the entry at `cursor`. It is empty if that was not read. */
  readonly last: string
  /** The epoch in which this device joined. It has no key for older messages. */
  readonly entered: number
  /** Set if the server has lost entries that this device had read. */
  readonly rewound?: true
  /** Set until {@link Recovery} has made good what the server has lost. */
  readonly lost?: true
  /** The digest of the commit that added this device, if the server has lost it. */
  readonly addedBy?: string
  /** The seq of the first entry that this device could read: it reads all that follow. */
  readonly readFrom?: number
  /** The KeyPackageRef of the Welcome that was joined with. */
  readonly joinedWith?: string
  /** Set if the device cannot follow the log: only an external commit brings it back. */
  readonly stuck?: true
  /** The commit that a stuck device could not process. It is absent if the group is split. */
  readonly failed?: FailedCommit
  /** The convo that goes on in this one's place: this one was reset. The device is on its way there. */
  readonly resetTo?: ConvoId
  /** The groups of successors that were reset too, before the device was in one of them: hexadecimal. */
  readonly resetVia?: readonly string[]
  /** The same as `resetTo`, once the device is in it. */
  readonly successor?: ConvoId
  /** What the service says is its successor, and MLS does not show. */
  readonly doubted?: ConvoId
  /** A successor that the person goes on in, whatever MLS shows. */
  readonly moveTo?: ConvoId
  /** Set if the person left the convo or was removed. */
  readonly left?: true
  /** The signature keys, in hexadecimal, of leaves whose own persons have proposed to remove them. */
  readonly leaving?: readonly string[]
  /** Who has entered by external commit and was in no group of this convo, or of the one that it succeeds. */
  readonly uninvited?: readonly string[]
  /** Who was added while this device was in the group, and has written nothing since: MLS does not show yet whether they have joined. */
  readonly silent?: readonly string[]
  /** Whose last device was taken out because its account does not list it. They have not left. */
  readonly withoutDevice?: readonly Did[]
  /** Of the successor of a reset: who was in the group before, and may enter this one. */
  readonly expected?: readonly string[]
}

/** A commit that was accepted, and that the MLS library refused. */
export interface FailedCommit {
  /** The epoch that it creates. */
  readonly epoch: number
  /** The DID that the server says. */
  readonly committer: string
}

/** Reports whether {@link Disputes} has to bring a device back. */
export function isStuck(thread: Thread | undefined): boolean {
  return thread?.stuck === true && thread.lost === undefined
}

/** One entry of a convo's log, as this device has read it. */
export interface Item {
  readonly seq: number
  /** The messageId. It is empty for the device's own external commit. */
  readonly id: string
  readonly kind: "application" | "proposal" | "commit" | "reset"
  /** The DID in the sender's credential; the one that the server says, where there is no key. */
  readonly sender: string
  readonly createdAt: string
  /** The SHA-256 of the entry's bytes, in hexadecimal. */
  readonly digest: string
  /** True for what this device sent. */
  readonly own: boolean
  /**
   * What became of it: `read`; `past`, if it is older than this device's membership, or belongs to the
   * time in which the device was stuck: there is no key for it; `unreadable`, if MLS refused it; `withheld`,
   * of a message whose sender's device is not known: its content comes once it is.
   */
  readonly state: "read" | "past" | "unreadable" | "withheld"
  /** The message's own id and its content, of an application message that was read. */
  readonly messageId?: string
  readonly content?: Uint8Array
  /** What a commit did, unless this device could not process it. Stores of before have none. */
  readonly change?: CommitChange
  /** What its sender has told the server of what it embeds. */
  readonly embedUri?: string
}

/** A message that was read, and whose sender's device is not known. */
export interface Withheld {
  readonly item: Item
  /** The signature key of the sender's leaf. */
  readonly key: Uint8Array
}

/** A commit of this device that the log has not shown yet. */
export interface Pending {
  readonly digest: string
  /** The group after it. */
  readonly state: Uint8Array
}

/** What this device sent, by its digest. Nobody can decrypt their own messages. */
export interface Own {
  readonly messageId: string
  readonly content: Uint8Array
}

/** A fetched Welcome. It is stored before the device joins with it. */
export interface SavedWelcome {
  readonly convoId: ConvoId
  readonly welcome: Uint8Array
  readonly ref?: string
  readonly joined?: true
}

/** A convo that waits for its person's answer. */
export interface ConvoRequest {
  readonly convoId: ConvoId
  /** Who has invited this person, as the service says. */
  readonly invitedBy: Did
  /** Who is in it, as its service says; of a convo of another service only who has invited this person. */
  readonly people: readonly Did[]
  readonly name?: string
  /** When this person was invited. */
  readonly since: string
  /** The convo's service, if it is another one than the person's own. */
  readonly service?: Did
  /** Set if that service has sent an invitation, which the person's own service has. */
  readonly byInvitation?: true
}

/** A request, and its person's answer until that is done. */
export interface SavedRequest {
  readonly request: ConvoRequest
  readonly answer?: "accepted" | "declined"
}

/** The private part of a published KeyPackage. */
export interface SavedKeyPackage {
  readonly secret: Uint8Array
  readonly lastResort: boolean
}

/** Names of records. */
export const names = {
  threads: "thread/",
  thread: (convo: string) => `thread/${convo}`,
  group: (convo: string) => `group/${convo}`,
  pending: (convo: string) => `pending/${convo}`,
  founded: (groupId: string) => `founded/${groupId}`,
  items: (convo: string) => `item/${convo}/`,
  item: (convo: string, seq: number) => `item/${convo}/${String(seq).padStart(16, "0")}`,
  readUpTo: (convo: string) => `read/${convo}`,
  loose: (convo: string) => `loose/${convo}/`,
  looseItem: (convo: string, digest: string) => `loose/${convo}/${digest}`,
  own: (digest: string) => `own/${digest}`,
  claims: "claim/",
  claim: (key: string) => `claim/${key}`,
  leftOut: (claim: string) => `leftout/${claim}`,
  missings: "missing/",
  missing: (convo: string) => `missing/${convo}`,
  requests: "request/",
  request: (convo: string) => `request/${convo}`,
  welcomes: "welcome/",
  welcome: (convo: string) => `welcome/${convo}`,
  keyPackage: (ref: string) => `keypackage/${ref}`,
  signals: (convo: string) => `signals/${convo}`,
  verifier: (convo: string) => `verifier/${convo}`,
  seenOf: (convo: string) => `seen/${convo}/`,
  seen: (convo: string, seq: number) => `seen/${convo}/${String(seq).padStart(16, "0")}`,
  acknowledgedOf: (convo: string) => `acknowledged/${convo}/`,
  acknowledged: (convo: string, seq: number) => `acknowledged/${convo}/${String(seq).padStart(16, "0")}`,
  imports: (convo: string) => `imported/${convo}/`,
  imported: (convo: string, seq: number) => `imported/${convo}/${String(seq).padStart(16, "0")}`,
  historyRequests: (convo: string) => `history/request/${convo}/`,
  historyRequest: (convo: string, id: string) => `history/request/${convo}/${id}`,
  bundles: (convo: string) => `history/bundle/${convo}/`,
  bundle: (convo: string, id: string) => `history/bundle/${convo}/${id}`,
  shares: "history/share/",
  share: (bundle: string) => `history/share/${bundle}`,
  sealedPart: (bundle: string) => `history/part/${bundle}`,
  home: "home",
  services: "service/",
  service: (convo: string) => `service/${convo}`,
  sharing: "sharing",
  cursor: "cursor",
  cursorAt: (service: string) => `cursor/${service}`,
  device: "device",
  listed: "listed",
  removals: "removal/",
  removal: (deviceId: string) => `removal/${deviceId}`,
  signingOut: "signing-out",
  devices: "devices/",
  knownDevice: (did: string, key: string) => `devices/${did}/${key}`,
  withheldOf: (convo: string) => `withheld/${convo}/`,
  withheld: (convo: string, seq: number) => `withheld/${convo}/${String(seq).padStart(16, "0")}`,
  news: "news/",
  oneNews: (id: string) => `news/${id}`,
} as const

/** The queue of the external commit that brings a device back into a convo. */
export const rejoinQueue = (convo: string) => `rejoin:${convo}`

/** The queue of the reset of a convo. */
export const resetQueue = (convo: string) => `reset:${convo}`

/** The queue of the answer to a request. */
export const requestQueue = (convo: string) => `request:${convo}`

/** The lock of a queue: a convo has one lock, however many queues. */
export const lockOf = (queue: string) => queue.replace(/^(rejoin|reset|request):/, "")

/** The convos that a device is in. */
export async function presentIn(store: Store): Promise<Thread[]> {
  return (await getAll<Thread>(store, names.threads)).filter(({ left, successor }) => !left && successor === undefined)
}

/** A record of the group's state must be there. */
export async function mustRead(store: Store, name: string): Promise<Uint8Array> {
  const content = await store.read(name)
  if (content === undefined) throw new Error(`the store has no ${name}`)
  return content
}
