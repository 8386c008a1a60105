// What a client needs of an MLS library (RFC 9420).

/**
 * One device of an MLS library. It keeps nothing: states go in and come out as opaque bytes, and the
 * client stores them in one step with what was made of them. All messages are MLSMessages (§6).
 */
export interface Mls {
  /** The credential's identity: the person's DID. */
  readonly identity: string
  /** The cipher suite's name, such as `MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519`. */
  readonly cipherSuite: string
  /** The device's signature key, as it stands in its leaves. */
  readonly signatureKey: Uint8Array

  /**
   * Sets where it takes the time from, in milliseconds of Unix time: the service's, by which lifetimes are made
   * and judged. Without it the device's clock counts.
   */
  setTime?(now: () => number): void
  /** Makes a KeyPackage that is valid for at most 84 days and an hour. */
  keyPackage(lastResort: boolean): Promise<NewKeyPackage>
  /** Starts a group whose only member is this device. */
  create(groupId: Uint8Array): Promise<Uint8Array>
  /**
   * Joins with a Welcome.
   *
   * @param secretOf returns the private part of a KeyPackage of this device
   */
  join(welcome: Uint8Array, secretOf: (ref: string) => Promise<Uint8Array | undefined>): Promise<Joined>
  /** Makes an external commit, which removes the leaf that this device has already, if it has one. */
  joinExternal(groupInfo: Uint8Array): Promise<Staged>
  /**
   * Makes a commit. The given state stays the group's until the commit is accepted. Of the pending proposals
   * it contains those by which members remove leaves of their own person, and leaves out all others
   * (§12.2): a member must not be able to stop a group.
   */
  stage(state: Uint8Array, change: Change): Promise<Staged>
  /** Proposes to remove a leaf, in a PublicMessage. The state that is returned has the proposal. */
  proposeRemoval(state: Uint8Array, leaf: number): Promise<{ state: Uint8Array; message: Uint8Array }>
  /** Encrypts a message. Its key is used up in the state that is returned. */
  encrypt(state: Uint8Array, plaintext: Uint8Array): Promise<{ state: Uint8Array; message: Uint8Array }>
  /** Processes a message, a proposal or a commit of another device. */
  process(state: Uint8Array, message: Uint8Array): Promise<Processed>
  /** Makes the GroupInfo of the state's epoch, with ratchet tree and external_pub (§12.4.3). */
  groupInfo(state: Uint8Array): Promise<Uint8Array>
  /** Reads a GroupInfo, of which nothing is verified. */
  infoOf(groupInfo: Uint8Array): Info
  /** Reads a state. */
  describe(state: Uint8Array): Group
  /** Reads what is not encrypted of a PublicMessage or PrivateMessage. */
  header(message: Uint8Array): Header
  /** The leaf of a KeyPackage. */
  leafOf(keyPackage: Uint8Array): Omit<Member, "index">
}

/** A KeyPackage and its private part. */
export interface NewKeyPackage {
  readonly keyPackage: Uint8Array
  /** The KeyPackageRef (§5.2), in hexadecimal. */
  readonly ref: string
  readonly secret: Uint8Array
}

/** A group that was joined, and the KeyPackage that was used. */
export interface Joined {
  readonly state: Uint8Array
  readonly ref: string
}

/** A commit that has not been accepted yet. */
export interface Staged {
  readonly commit: Uint8Array
  /** For those whom the commit adds. */
  readonly welcome?: Uint8Array
  /** Of the epoch that the commit creates. */
  readonly groupInfo: Uint8Array
  /** The group after the commit. */
  readonly state: Uint8Array
}

/** What a commit does. Nothing at all renews the device's keys. */
export interface Change {
  /** KeyPackages of devices to add. */
  readonly add?: readonly Uint8Array[]
  /** Leaf indexes to remove. */
  readonly remove?: readonly number[]
}

/** What a message of the log was. */
export interface Processed {
  readonly state: Uint8Array
  readonly kind: Header["kind"]
  /** The sender's leaf: before the message, and of an external commit the one that it makes. */
  readonly sender?: Member
  /** Set for an external commit, by which the sender has entered. */
  readonly external?: true
  /** Of a proposal to remove a leaf: the leaf. */
  readonly removes?: Member
  /** Of an application message. */
  readonly plaintext?: Uint8Array
}

/** What can be read of a message without keys. */
export interface Header {
  readonly kind: "application" | "proposal" | "commit"
  readonly epoch: number
}

/** A group at one epoch. */
export interface Group {
  readonly groupId: Uint8Array
  readonly epoch: number
  readonly members: readonly Member[]
  /** False after a commit that removes this device. */
  readonly active: boolean
  /** The epoch_authenticator (§8.7), which is the same for all who are in the same group. */
  readonly authenticator: Uint8Array
}

/** What a GroupInfo says. */
export interface Info {
  readonly groupId: Uint8Array
  readonly epoch: number
  readonly members: readonly Member[]
  /** The identity in the signer's credential. `""` if the tree does not have the signer. */
  readonly signer: string
}

/** A leaf of a group: a device. */
export interface Member {
  /** The leaf index. */
  readonly index: number
  readonly identity: string
  readonly signatureKey: Uint8Array
}

/** The DID of an identity: a DID, or a DID, `#` and a name. */
export function didOf(identity: string): string {
  return identity.split("#", 1)[0] ?? ""
}
