import Foundation

/// A write before the outbox has it.
public struct Draft: Sendable {
    public let nsid: String
    /// The convo that it writes to, or "": writes of one lane are sent in their order.
    public let lane: String
    public let key: String
    /// The input as it is sent, with its key.
    public let body: Data
    /// The epoch in which a message was made, or that a commit ends.
    public let epoch: Int?
    /// SHA-256 of the message or the commit, by which the log shows it.
    public let digest: Data?
    /// The app's own, such as the plaintext: what it needs to make the write anew.
    public let note: Data
    /// Whether the body is as it is sent. If not, the author makes it when it is the lane's turn.
    public let isSealed: Bool
    /// Whether it passes what waits in its lane.
    public let isAhead: Bool
    /// Of a proposal: the leaf that it removes.
    public let retires: Leaf?

    /// `object` is the message or the commit. An input without a key gets a new one. Error:
    /// ``InvalidInput``.
    public init<P: Procedure>(
        _ procedure: P.Type, _ input: P.Input, lane: String, epoch: Int? = nil, object: Data? = nil, note: Data = Data(),
        isSealed: Bool = true, isAhead: Bool = false,
        retires: Leaf? = nil
    ) throws {
        try input.check()
        var input = input
        var key = ""
        if let given = input as? any Keyed {
            let keyed = withIdempotencyKey(given)
            key = keyed.idempotencyKey ?? ""
            input = keyed as? P.Input ?? input
        }
        self.nsid = P.nsid
        self.lane = lane
        self.key = key
        self.body = try encoded(input)
        self.epoch = epoch
        self.digest = object.map(sha256)
        self.note = note
        (self.isSealed, self.isAhead, self.retires) = (isSealed, isAhead, retires)
    }
}

/// A write in the outbox.
public struct Write: Codable, Hashable, Sendable, Identifiable {
    public enum State: Codable, Hashable, Sendable {
        case pending
        /// The body of the 2xx, and when it came.
        case accepted(Data, at: Date)
        /// No attempt took effect, and none will.
        case refused(ServiceError)
    }

    /// Ascending. A write that is made anew keeps it, and with it its place in the lane.
    public let id: Int
    public internal(set) var nsid: String
    public internal(set) var lane: String
    public internal(set) var key: String
    public internal(set) var body: Data
    public internal(set) var epoch: Int?
    public internal(set) var digest: Data?
    public internal(set) var note: Data
    public internal(set) var state: State = .pending
    /// Set if the device has left the branch of the group that the bytes belong to: they must not be
    /// sent again, although an epoch of the same number can come.
    public internal(set) var forked = false
    /// Set if the author has not made the body yet.
    public internal(set) var unsealed: Bool?
    /// Set if it passes what waits in its lane.
    public internal(set) var ahead: Bool?
    /// Of a proposal: the leaf that it removes.
    public internal(set) var retires: Leaf?

    init(id: Int, _ draft: Draft) {
        self.id = id
        (nsid, lane, key, body) = (draft.nsid, draft.lane, draft.key, draft.body)
        (epoch, digest, note) = (draft.epoch, draft.digest, draft.note)
        (unsealed, ahead, retires) = (draft.isSealed ? nil : true, draft.isAhead ? true : nil, draft.retires)
    }

    /// Whether the write moves the epoch.
    public var isCommit: Bool {
        [AddMembers.nsid, SubmitCommit.nsid, ProcessExternalCommit.nsid].contains(nsid) || nsid == LeaveConvo.nsid && digest != nil
    }

    /// The answer of the accepted write.
    public func answer<P: Procedure>(of procedure: P.Type) throws -> P.Output? {
        guard case .accepted(let body, _) = state, nsid == P.nsid else { return nil }
        return try Service.read(P.Output.self, body)
    }

    static let prefix = "outbox/"
    var name: String { Self.name(id) }
    static func name(_ id: Int) -> String { prefix + String(id) }
}
