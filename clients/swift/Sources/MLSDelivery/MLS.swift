import Foundation

/// One device of an MLS library (RFC 9420): its signature key, the private halves of its KeyPackages,
/// its groups. A wrapper of OpenMLS or of another library implements it.
///
/// Calls come one at a time. State that a call changes is not durable until the client has written
/// what `takeChanges` returns: together with the ciphertext, the plaintexts or the place in the log that
/// depend on it. So after a kill the device is in the state of the last write, and reads or joins
/// the same bytes again. All objects are MLSMessages.
public protocol MLSDevice: Sendable {
    /// The public signature key, as in the device's leaves.
    var signatureKey: Data { get async throws }
    /// SHA-256 of the public signature key, in lower-case hexadecimal.
    var deviceID: String { get async throws }
    /// The registered name of the suite of its KeyPackages and of the groups that it creates.
    var cipherSuite: String { get async throws }

    /// Makes KeyPackages; with `lastResort`, such as may be used again and again (extension 0x000A).
    func makeKeyPackages(_ count: Int, lastResort: Bool) async throws -> [Data]
    /// The same, with lifetimes that are valid at `now`, the service's time: the device's own clock can be wrong. Without
    /// it the library's time is used.
    func makeKeyPackages(_ count: Int, lastResort: Bool, at now: Date) async throws -> [Data]
    /// The KeyPackageRefs (RFC 9420 §5.2) of all KeyPackages whose private halves the device has, in
    /// lower-case hexadecimal.
    func keyPackageRefs() async throws -> Set<String>

    /// Starts a group of one, at epoch 0.
    func create(groupID: Data) async throws
    /// Enters the group of a Welcome. It replaces an older state of the group, but only after `fits` has returned:
    /// if that throws, the device stays as it is.
    func join(welcome: Data, if fits: @Sendable (GroupState) async throws -> Void) async throws -> GroupState
    /// The group's epoch, or nil if the device does not have the group.
    func epoch(of groupID: Data) async throws -> Int?
    /// The epoch_authenticator (§8.7) of the group's epoch, which is the same for all who are in the same group.
    func epochAuthenticator(of groupID: Data) async throws -> Data
    /// The group's members, in the order of their leaves; nil if the device does not have the group. If the device
    /// itself is not among them, it was removed.
    func members(of groupID: Data) async throws -> [Leaf]?
    /// The leaf of a KeyPackage.
    func leaf(ofKeyPackage keyPackage: Data) async throws -> Leaf
    /// What a GroupInfo says of its group. Its signature is checked when the device enters.
    func group(of groupInfo: Data) async throws -> GroupState
    func encrypt(_ plaintext: Data, in groupID: Data) async throws -> Data
    /// Reads the next entry of the log. Another member's commit discards a staged one. The bytes of
    /// the staged commit confirm it.
    func process(_ message: Data, in groupID: Data) async throws -> Received

    /// Stages a commit; a staged one before it is discarded. It returns nil if the group is as the
    /// change wants it already. Until `confirm` the group stays in its epoch. Of the pending proposals it
    /// commits those by which members remove leaves of their own account, and leaves out all others (RFC 9420
    /// §12.2): a member must not be able to stop a group.
    func stage(_ change: GroupChange, in groupID: Data) async throws -> StagedCommit?
    /// Proposes to remove a leaf, in a PublicMessage. The device counts the proposal among the pending ones at once.
    func proposeRemoval(of leaf: Leaf, in groupID: Data) async throws -> Data
    /// Applies the staged commit, which the service has accepted. Without one it does nothing.
    func confirm(groupID: Data) async throws
    /// Forgets the staged commit. Without one it does nothing.
    func discard(groupID: Data) async throws
    /// The present epoch's GroupInfo, with ratchet tree and external_pub.
    func groupInfo(of groupID: Data) async throws -> Data

    /// Stages an external commit (§12.4.3.2) that removes the device's older leaf. An older state of
    /// the group stays in use until `confirmExternal`, which does nothing the second time.
    func stageExternal(groupInfo: Data) async throws -> StagedCommit
    func confirmExternal(groupID: Data) async throws

    /// The changes of the device's stored state since the last call. Names must begin with `mls/`.
    func takeChanges() async throws -> Changes
}

extension MLSDevice {
    public func makeKeyPackages(_ count: Int, lastResort: Bool, at now: Date) async throws -> [Data] {
        try await makeKeyPackages(count, lastResort: lastResort)
    }
}

/// A leaf of a group: a device, by what MLS shows of it.
public struct Leaf: Codable, Hashable, Sendable {
    /// The identity in its basic credential: a DID, perhaps with `#` and a name behind it. "" for another credential.
    public var identity: String
    /// The public signature key.
    public var signatureKey: Data
    public init(identity: String, signatureKey: Data) { (self.identity, self.signatureKey) = (identity, signatureKey) }
    /// Whose device it says that it is.
    public var account: DID { DID(String(identity.prefix { $0 != "#" })) }
}

/// A group as a device knows it, or as somebody shows it.
public struct GroupState: Hashable, Sendable {
    public var groupID: Data
    public var epoch: Int
    public var members: [Leaf]
    public init(groupID: Data, epoch: Int, members: [Leaf]) { (self.groupID, self.epoch, self.members) = (groupID, epoch, members) }
}

/// What a commit does. Without additions and removals it changes the device's keys.
public struct GroupChange: Codable, Hashable, Sendable {
    /// KeyPackages of the devices that are added.
    public var add: [Data]
    /// Accounts whose devices are all removed.
    public var remove: [DID]
    /// Single devices that are removed.
    public var removeDevices: [Leaf]
    public init(add: [Data] = [], remove: [DID] = [], removeDevices: [Leaf] = []) {
        (self.add, self.remove, self.removeDevices) = (add, remove, removeDevices)
    }
}

/// A commit that is not accepted yet.
public struct StagedCommit: Hashable, Sendable {
    public var groupID: Data
    /// The epoch that it creates.
    public var epoch: Int
    public var commit: Data
    public var welcome: Data?
    public var groupInfo: Data
    public init(groupID: Data, epoch: Int, commit: Data, welcome: Data? = nil, groupInfo: Data) {
        (self.groupID, self.epoch, self.commit, self.welcome, self.groupInfo) = (groupID, epoch, commit, welcome, groupInfo)
    }
}

/// What an entry of the log was. The sender is the leaf that has signed it.
public enum Received: Hashable, Sendable {
    case application(Data, from: Leaf)
    /// `removes` is the leaf that it proposes to remove. Who is not a member has no leaf.
    case proposal(from: Leaf?, removes: Leaf?)
    /// Of an external commit the sender is the leaf that enters by it.
    case commit(from: Leaf, isExternal: Bool)
    /// An entry of an epoch that the device was not in, or has no keys of any more.
    case past
}
