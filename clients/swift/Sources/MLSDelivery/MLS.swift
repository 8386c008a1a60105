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
    /// The KeyPackageRefs (RFC 9420 §5.2) of all KeyPackages whose private halves the device has, in
    /// lower-case hexadecimal.
    func keyPackageRefs() async throws -> Set<String>

    /// Starts a group of one, at epoch 0.
    func create(groupID: Data) async throws
    /// Enters the group of a Welcome. It replaces an older state of the group.
    func join(welcome: Data) async throws -> GroupState
    /// The group's epoch, or nil if the device does not have the group.
    func epoch(of groupID: Data) async throws -> Int?
    func encrypt(_ plaintext: Data, in groupID: Data) async throws -> Data
    /// Reads the next entry of the log. Another member's commit discards a staged one. The bytes of
    /// the staged commit confirm it.
    func process(_ message: Data, in groupID: Data) async throws -> Received

    /// Stages a commit; a staged one before it is discarded. It returns nil if the group is as the
    /// change wants it already. Until `confirm` the group stays in its epoch.
    func stage(_ change: GroupChange, in groupID: Data) async throws -> StagedCommit?
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

/// A group as a device knows it.
public struct GroupState: Hashable, Sendable {
    public var groupID: Data
    public var epoch: Int
    public init(groupID: Data, epoch: Int) { (self.groupID, self.epoch) = (groupID, epoch) }
}

/// What a commit does. Without additions and removals it changes the device's keys.
public struct GroupChange: Codable, Hashable, Sendable {
    /// KeyPackages of the devices that are added.
    public var add: [Data]
    /// Accounts whose devices are all removed.
    public var remove: [DID]
    public init(add: [Data] = [], remove: [DID] = []) { (self.add, self.remove) = (add, remove) }
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

/// What an entry of the log was.
public enum Received: Hashable, Sendable {
    case application(Data)
    case proposal
    case commit
    /// An entry of an epoch that the device was not in, or has no keys of any more.
    case past
}
