import Foundation

/// What the messenger stores of a convo.
struct Thread: Codable, Hashable {
    var convoId: String
    var groupId: Data
    /// The epoch that the device entered the group in.
    var entered: Int
    /// The last entry of the log that was read.
    var seq = 0
    var messageId: String?
    /// The first entry that the device could read: it reads all that follow.
    var readFrom: Int?
    /// Set once the server has lost entries that this device had read.
    var rewound = false
    /// The convo was reset to this one, which the device must still enter or has entered.
    var resetTo: String?
    /// The convo that goes on in this one's place, once the app was told of it.
    var successor: String?
    /// The groups of successors that were reset too, before the device was in one of them.
    var resetVia: [Data]?
    /// What the service says is its successor, and MLS does not show.
    var doubted: String?
    /// A successor that the person goes on in, whatever MLS shows.
    var moveTo: String?
    /// Set once the person has left, or this device was removed.
    var left: Bool?
    /// Signature keys of leaves whose own persons have proposed to remove them.
    var leaving: [Data]?
    /// Who has entered by external commit and was in no group of this convo, or of the one that it succeeds.
    var uninvited: [DID]?
    /// Who was added while this device was in the group, and has written nothing since: they need not have joined.
    var silent: [DID]?
    /// Who has no device in the group any more, and has not left.
    var withoutDevice: [DID]?
    /// Of the successor of a reset: who was in the group before, and may enter this one.
    var expected: [DID]?

    /// Whether both are at the same entry of the same group.
    func hasSamePlace(as other: Thread) -> Bool {
        (groupId, entered, seq, messageId) == (other.groupId, other.entered, other.seq, other.messageId) && rewound == other.rewound
    }

    static let prefix = "thread/"
    var name: String { Self.prefix + convoId }
}

/// A Welcome that was fetched and not confirmed yet.
struct KeptWelcome: Codable {
    var convoId: String
    var welcome: Data
    var keyPackageRef: String?
    var joined = false
    /// Set if it takes the place of one that was joined and not confirmed.
    var replaces: Bool?
    var replacing: KeptWelcome {
        var kept = self
        kept.replaces = true
        return kept
    }

    static let prefix = "welcome/"
    var name: String { Self.prefix + convoId }
}

/// An entry of a convo's log, as the device read it.
public struct Entry: Codable, Hashable, Sendable {
    public enum Content: Codable, Hashable, Sendable {
        case message(Data)
        /// The device's own message: the note of its write.
        case own(Data)
        case proposal
        case commit
        /// The convo was reset: the first entry of a convo, or its last one.
        case reset
        /// A message of a device that is not known: its content comes, as the same entry, once it is.
        case withheld
        /// The device has no keys for it.
        case unreadable
        /// An entry that was read before, under this id, and has another place after a loss.
        case moved(from: String)
        /// A message between devices about history, which the messenger has read: docs/clients/HISTORY.md.
        case history
    }

    public var convoId: String
    public var seq: Int
    public var messageId: String
    /// Whose device has signed it, by MLS. Of a reset, and of what the device has no keys for: who the service says.
    public var sender: DID
    public var content: Content
    /// When the service stored it.
    public var createdAt: Timestamp
    /// The SHA-256 of the log's entry.
    public var digest: Data
    /// What its sender has told the service of what it embeds.
    public var embedUri: String?
    /// Of a commit: what it did. Of one from before this device was in the group nobody can say.
    public var change: CommitChange?

    static let prefix = "inbox/"
    var name: String { Self.prefix + convoId + "/" + ordered(seq) }
}

/// What was read at a place of the log, to notice if the server loses it.
struct ReadMark: Codable, Hashable {
    var seq: Int
    var messageId: String
    var digest: Data
    var sender: DID?

    /// How many marks are kept of a convo.
    static let most = 500
    static let prefix = "read/"
    static func folder(_ convo: String) -> String { prefix + convo + "/" }
    static func name(_ convo: String, _ seq: Int) -> String { folder(convo) + ordered(seq) }
}

/// Names of further records.
enum Name {
    static let cursor = "cursor"
    /// The place in the stream of a service. nil: of the only one.
    static func cursor(_ service: DID?) -> String { service.map { cursor + "/" + $0.rawValue } ?? cursor }
    static let pushTarget = "push target"
    /// Set once this device has begun to sign out.
    static let signingOut = "signing out"
    /// Set once the account has listed this device.
    static let listed = "listed"
    /// What an own commit did, until it is read.
    static func change(_ digest: Data) -> String { "change/" + hexadecimal(digest) }
    static func own(_ digest: Data) -> String { "own/" + hexadecimal(digest) }
    static func loose(_ convo: String, _ digest: Data) -> String { "loose/" + convo + "/" + hexadecimal(digest) }
}

/// A number in a name: names in their order are numbers in theirs.
func ordered(_ number: Int) -> String {
    let digits = String(number)
    return String(repeating: "0", count: max(0, 16 - digits.count)) + digits
}

func hexadecimal(_ data: Data) -> String { data.map { String(format: "%02x", $0) }.joined() }

func bytes(ofHexadecimal text: String) -> Data {
    var out = Data()
    var digits = Substring(text)
    while let byte = UInt8(digits.prefix(2), radix: 16), digits.count >= 2 {
        out.append(byte)
        digits = digits.dropFirst(2)
    }
    return out
}

/// A storage's values in memory, and the writes to it one after the other.
actor Records {
    private let storage: any Storage
    private var values: [String: Data]
    private let turn = Turn()
    /// Whether the last write failed.
    private(set) var failed = false

    init(_ storage: any Storage, _ values: [String: Data]) { (self.storage, self.values) = (storage, values) }

    func write(_ changes: Changes) async throws {
        do { try await turn.take { try await self.storage.write(changes) } } catch {
            failed = true
            throw error
        }
        failed = false
        for (name, value) in changes { values[name] = value }
    }

    func read<Value: Decodable>(_ type: Value.Type, _ name: String) throws -> Value? {
        try values[name].map { try JSONDecoder().decode(type, from: $0) }
    }

    func data(_ name: String) -> Data? { values[name] }

    /// The names that begin with a prefix, in order.
    func names(_ prefix: String) -> [String] { values.keys.filter { $0.hasPrefix(prefix) }.sorted() }

    func list<Value: Decodable>(_ type: Value.Type, _ prefix: String) throws -> [Value] {
        try names(prefix).compactMap { try read(type, $0) }
    }
}

/// Lets one operation run at a time, in the order of their calls.
actor Turn {
    private var busy = false
    private var waiting: [CheckedContinuation<Void, Never>] = []

    func take<Result: Sendable>(_ operation: @Sendable () async throws -> Result) async rethrows -> Result {
        await enter()
        defer { leave() }
        return try await operation()
    }

    private func enter() async {
        if busy {
            await withCheckedContinuation { waiting.append($0) }
        } else {
            busy = true
        }
    }

    private func leave() {
        if waiting.isEmpty { busy = false } else { waiting.removeFirst().resume() }
    }
}
