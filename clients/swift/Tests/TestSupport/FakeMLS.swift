import Foundation
import MLSDelivery

/// An MLS library without cryptography: true headers (RFC 9420 §6.3), so that a server accepts its
/// messages and commits, and plaintexts in the place of ciphertexts. Its state is stored like a real one's.
public actor FakeMLS: MLSDevice {
    private struct Group: Codable {
        var epoch = 0
        var staged: Data?
        var made: Set<Data>? // commits of the device, which it can only confirm
        var external: Data?
        var members: [Leaf]?
        var wasRemoved: Bool? // a device that was removed reads nothing more
        var generation = 0 // of the ratchet: a message that is read twice is an error
        var seen: Set<Data> = []
    }

    public let deviceID: String
    public let signatureKey: Data
    public let cipherSuite = "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"
    private var groups: [Data: Group] = [:]
    private var changed: Set<Data> = []
    private static let packages = "mls/key packages"
    private var keyPackages: Set<String> = []
    private var keyPackagesChanged = false
    private var random: Random
    private var confirms = true

    /// From now on it cannot confirm a staged commit.
    public func failToConfirm() { confirms = false }

    private let own: Leaf

    public init(_ values: [String: Data], account: String = ModelServer.caller, device: String, seed: UInt64) throws {
        (deviceID, signatureKey) = (Self.id(of: device), Data(device.utf8))
        own = Leaf(identity: account, signatureKey: Data(device.utf8))
        random = Random(seed: seed)
        for (name, value) in values {
            if name == Self.packages {
                keyPackages = try JSONDecoder().decode(Set<String>.self, from: value)
                continue
            }
            let id = Data(base64Encoded: String(name.dropFirst(4)).replacingOccurrences(of: "_", with: "/"))
            groups[id ?? Data()] = try JSONDecoder().decode(Group.self, from: value)
        }
    }

    /// A message that begins so cannot be encrypted after epoch 0.
    public static let once = "once: "

    public enum Failure: Error { case unknownGroup, notAMessage, readTwice, wrongEpoch(Int, Int), cannotEncrypt, notStaged }

    // MARK: Members

    /// The id of a device, as long as a true one.
    public static func id(of device: String) -> String { device + String(repeating: "0", count: max(0, 64 - device.utf8.count)) }

    /// The leaf of somebody's device.
    public static func leaf(of account: String, _ device: String? = nil) -> Leaf {
        Leaf(identity: account, signatureKey: Data((device ?? "device of " + account).utf8))
    }

    /// What a commit does, as its body.
    public struct Commit: Codable, Sendable {
        public var add: [Leaf] = []
        public var remove: [Leaf] = []
        /// Of an external commit.
        public var enters: Leaf?
        var salt = Data()
        public init(add: [Leaf] = [], remove: [Leaf] = [], enters: Leaf? = nil) { (self.add, self.remove, self.enters) = (add, remove, enters) }
    }

    /// A KeyPackage of a device.
    public static func keyPackage(of leaf: Leaf, _ random: Data = Data(count: 64)) -> Data { random + (try! JSONEncoder().encode(leaf)) }
    public func leaf(ofKeyPackage keyPackage: Data) throws -> Leaf { try JSONDecoder().decode(Leaf.self, from: keyPackage.dropFirst(64)) }

    public func members(of groupID: Data) -> [Leaf]? { groups[groupID].map(membersOf) }
    private func membersOf(_ group: Group) -> [Leaf] { group.members ?? [own] }

    private func after(_ message: Data, _ group: Group) throws -> Group {
        var members = membersOf(group)
        if let commit = try? JSONDecoder().decode(Commit.self, from: Self.parse(message).body) { // others are of random bytes
            members.removeAll { commit.remove.contains($0) || $0 == commit.enters }
            members += commit.add + (commit.enters.map { [$0] } ?? [])
        }
        var next = Group(epoch: group.epoch + 1, members: members)
        if membersOf(group).contains(own), !members.contains(own) { next.wasRemoved = true }
        return next
    }

    public func group(of groupInfo: Data) throws -> GroupState {
        let parsed = try Self.parse(groupInfo)
        let members = try? JSONDecoder().decode([Leaf].self, from: parsed.body)
        return GroupState(groupID: parsed.groupID, epoch: parsed.epoch, members: members ?? groups[parsed.groupID].map(membersOf) ?? [own])
    }

    private func group(_ id: Data) throws -> Group {
        guard let group = groups[id] else { throw Failure.unknownGroup }
        return group
    }
    private func set(_ id: Data, _ group: Group) {
        groups[id] = group
        changed.insert(id)
    }

    public func takeChanges() throws -> Changes {
        var changes: Changes = [:]
        for id in changed {
            changes["mls/" + id.base64EncodedString().replacingOccurrences(of: "/", with: "_")] = try JSONEncoder().encode(groups[id])
        }
        changed = []
        if keyPackagesChanged { changes[Self.packages] = try JSONEncoder().encode(keyPackages) }
        keyPackagesChanged = false
        return changes
    }

    public func makeKeyPackages(_ count: Int, lastResort: Bool) -> [Data] {
        let made = (0..<count).map { _ in Self.keyPackage(of: own, random.bytes(64)) }
        keyPackages.formUnion(made.map(Self.ref))
        keyPackagesChanged = true
        return made
    }
    /// The time for which KeyPackages were made last.
    public private(set) var madeAt: Date?
    public func makeKeyPackages(_ count: Int, lastResort: Bool, at now: Date) -> [Data] {
        madeAt = now
        return makeKeyPackages(count, lastResort: lastResort)
    }
    public func keyPackageRefs() -> Set<String> { keyPackages }
    /// The KeyPackageRef of a KeyPackage.
    public static func ref(_ keyPackage: Data) -> String { keyPackage.prefix(32).map { String(format: "%02x", $0) }.joined() }
    /// Loses the private halves of some KeyPackages.
    public func lose(_ lost: Set<String>) {
        keyPackages.subtract(lost)
        keyPackagesChanged = true
    }
    public func create(groupID: Data) { create(groupID: groupID, with: []) }
    public func create(groupID: Data, with others: [Leaf]) { set(groupID, Group(members: [own] + others)) }
    public func epoch(of groupID: Data) -> Int? { groups[groupID]?.epoch }
    public func epochAuthenticator(of groupID: Data) throws -> Data {
        var authenticator = groupID.prefix(32) + Data(count: 32 - min(groupID.count, 32))
        authenticator[31] = UInt8(try group(groupID).epoch & 255)
        return authenticator
    }
    public func groupInfo(of groupID: Data) throws -> Data { try Self.state(groupID, group(groupID).epoch, membersOf(group(groupID))) }

    /// A fake Welcome or GroupInfo. Without members it says nothing of them.
    public static func state(_ groupID: Data, _ epoch: Int, _ members: [Leaf]? = nil) throws -> Data {
        message(3, groupID, epoch, try members.map { try JSONEncoder().encode($0) } ?? Data())
    }

    public func join(welcome: Data, if fits: @Sendable (GroupState) async throws -> Void) async throws -> GroupState {
        let state = try group(of: welcome)
        try await fits(state)
        set(state.groupID, Group(epoch: state.epoch, members: state.members))
        return state
    }

    public func encrypt(_ plaintext: Data, in groupID: Data) throws -> Data {
        var group = try group(groupID)
        if group.epoch > 0 && plaintext.starts(with: Data(Self.once.utf8)) { throw Failure.cannotEncrypt }
        group.generation += 1
        set(groupID, group)
        return Self.message(1, groupID, group.epoch, plaintext + random.bytes(8), by: own)
    }

    public func process(_ message: Data, in groupID: Data) throws -> Received {
        var group = try group(groupID)
        let parsed = try Self.parse(message)
        guard parsed.groupID == groupID, group.wasRemoved != true else { throw Failure.unknownGroup }
        guard parsed.epoch == group.epoch else { throw Failure.wrongEpoch(parsed.epoch, group.epoch) }
        if parsed.content == 3 {
            if group.made?.contains(message) == true, group.staged != message { throw Failure.notStaged }
            set(groupID, try after(message, group))
            let enters = try? JSONDecoder().decode(Commit.self, from: parsed.body).enters
            return .commit(from: enters ?? parsed.sender, isExternal: enters != nil)
        }
        guard group.seen.insert(message).inserted else { throw Failure.readTwice }
        set(groupID, group)
        if parsed.content == 2 {
            return .proposal(from: parsed.sender, removes: try? JSONDecoder().decode(Commit.self, from: parsed.body).remove.first)
        }
        return .application(parsed.body.dropLast(8), from: parsed.sender)
    }

    public func stage(_ change: GroupChange, in groupID: Data) throws -> StagedCommit? {
        var group = try group(groupID)
        let members = membersOf(group)
        var made = Commit(
            add: change.add.compactMap { try? leaf(ofKeyPackage: $0) },
            remove: members.filter { change.remove.contains($0.account) || change.removeDevices.contains($0) }
        )
        if !change.removeDevices.isEmpty, made.remove.isEmpty { return nil }
        made.salt = random.bytes(16)
        let commit = Self.message(3, groupID, group.epoch, try JSONEncoder().encode(made), by: own)
        group.staged = commit
        group.made = (group.made ?? []).union([commit])
        set(groupID, group)
        let next = try Self.state(groupID, group.epoch + 1, membersOf(after(commit, group)))
        return StagedCommit(
            groupID: groupID, epoch: group.epoch + 1, commit: commit, welcome: change.add.isEmpty ? nil : next, groupInfo: next
        )
    }

    public func proposeRemoval(of leaf: Leaf, in groupID: Data) throws -> Data {
        var commit = Commit(remove: [leaf])
        commit.salt = random.bytes(16)
        return try Self.message(2, groupID, group(groupID).epoch, JSONEncoder().encode(commit), by: own)
    }

    public func confirm(groupID: Data) throws {
        if !confirms { throw Failure.notStaged }
        let group = try group(groupID)
        if let staged = group.staged { set(groupID, try after(staged, group)) }
    }

    public func discard(groupID: Data) throws {
        var group = try group(groupID)
        group.staged = nil
        set(groupID, group)
    }

    public func stageExternal(groupInfo: Data) throws -> StagedCommit {
        let parsed = try Self.parse(groupInfo)
        var group = groups[parsed.groupID] ?? Group()
        group.external = groupInfo
        set(parsed.groupID, group)
        var enters = Commit(enters: own)
        enters.salt = random.bytes(16)
        let members = try self.group(of: groupInfo).members.filter { $0 != own } + [own]
        return StagedCommit(
            groupID: parsed.groupID, epoch: parsed.epoch + 1,
            commit: Self.message(3, parsed.groupID, parsed.epoch, try JSONEncoder().encode(enters), by: own),
            groupInfo: try Self.state(parsed.groupID, parsed.epoch + 1, members)
        )
    }

    public func confirmExternal(groupID: Data) throws {
        guard let info = try group(groupID).external else { return }
        let state = try self.group(of: info)
        set(groupID, Group(epoch: state.epoch + 1, members: state.members.filter { $0 != own } + [own]))
    }

    // MARK: Wire

    /// An MLSMessage with a PrivateMessage: 1 is an application message, 2 a proposal, 3 a commit. Its authenticated
    /// data names the sender.
    public static func message(
        _ content: UInt8, _ groupID: Data, _ epoch: Int, _ body: Data, by sender: Leaf = leaf(of: ModelServer.caller)
    ) -> Data {
        var out = Data([0, 1, 0, 2]) + vector(groupID)
        out += (0..<8).map { UInt8(truncatingIfNeeded: epoch >> (56 - 8 * $0)) }
        return out + [content] + vector(try! JSONEncoder().encode(sender)) + vector(Data(count: 28)) + vector(body)
    }

    /// The plaintext of an application message.
    public static func text(_ message: Data) throws -> String { String(decoding: try parse(message).body.dropLast(8), as: UTF8.self) }

    static func parse(_ message: Data) throws -> (content: UInt8, groupID: Data, epoch: Int, body: Data, sender: Leaf) {
        var rest = message
        func take(_ count: Int) throws -> Data {
            guard rest.count >= count else { throw Failure.notAMessage }
            defer { rest = rest.dropFirst(count) }
            return Data(rest.prefix(count))
        }
        func takeVector() throws -> Data {
            let first = try take(1)[0]
            switch first >> 6 {
            case 0: return try take(Int(first))
            case 1: return try take(Int(first & 63) << 8 | Int(take(1)[0]))
            default: return try take(try take(3).reduce(Int(first & 63)) { $0 << 8 | Int($1) })
            }
        }
        guard try take(4) == Data([0, 1, 0, 2]) else { throw Failure.notAMessage }
        let group = try takeVector()
        let epoch = try take(8).reduce(0) { $0 << 8 | Int($1) }
        let content = try take(1)[0]
        let sender = try JSONDecoder().decode(Leaf.self, from: takeVector())
        _ = try takeVector()
        return (content, group, epoch, try takeVector(), sender)
    }

    private static func vector(_ content: Data) -> Data {
        let n = content.count
        switch n {
        case ..<64: return [UInt8(n)] + content
        case ..<16384: return [UInt8(n >> 8) | 64, UInt8(n & 255)] + content
        default: return [UInt8(n >> 24) | 128, UInt8(n >> 16 & 255), UInt8(n >> 8 & 255), UInt8(n & 255)] + content
        }
    }
}

/// A generator of numbers that a seed determines (SplitMix64).
public struct Random: RandomNumberGenerator, Sendable {
    private var state: UInt64
    public init(seed: UInt64) { state = seed }
    public mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var z = state
        z = (z ^ (z >> 30)) &* 0xbf58_476d_1ce4_e5b9
        z = (z ^ (z >> 27)) &* 0x94d0_49bb_1331_11eb
        return z ^ (z >> 31)
    }
    public mutating func bytes(_ count: Int) -> Data { Data((0..<count).map { _ in UInt8.random(in: 0...255, using: &self) }) }
    /// True once in so many times.
    public mutating func once(in times: Int) -> Bool { Int.random(in: 0..<times, using: &self) == 0 }
}
