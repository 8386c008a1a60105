import Foundation

/// What the service offers is not the convo's group, or is an older state of it. The device stays where it is, and
/// the app gets a ``Finding``.
public struct ContraryGroup: Error, Hashable, Sendable, CustomStringConvertible {
    public var what: Finding.What
    public var description: String
}

/// Makes the group id of the successor of a group: a random part of 16 bytes, and a hash of that and the old id. MLS
/// signs it with everything else of the new group, so its members say with their own keys that it goes on in the old
/// one's place. That works also where nobody can write in the old group any more.
public func successorID(of groupID: Data, random: Data) -> Data {
    random + sha256(Data("mlsd successor 1".utf8) + random + groupID).prefix(16)
}

/// Whether a group's id says that it goes on in the place of another one.
func isSuccessorID(_ id: Data, of groupID: Data) -> Bool { id.count == 32 && successorID(of: groupID, random: Data(id.prefix(16))) == id }

/// A convo is bound to one MLS group, and that goes forward.
extension Messenger {
    /// Checks a group that the service offers for a convo, before this device enters it. `replaces` is set for a Welcome
    /// that takes the place of one that was joined and not confirmed. Errors: ``ContraryGroup``, ``UnknownDevices``.
    func mustFit(_ what: Finding.What, _ convo: String, _ offered: GroupState, replaces: Bool = false) async throws {
        do {
            if let thread = try await records.read(Thread.self, Thread.prefix + convo) {
                let held = try await mls.members(of: thread.groupId) ?? []
                try await mustContinue(what, thread, held, offered, replaces)
                try await mustList(what, "convo \(convo)", offered.members.filter { !held.contains($0) })
                return
            }
            let before = try await records.list(Thread.self, Thread.prefix).first { $0.resetTo == convo }
            if let before { try await mustSucceed(before, offered) }
        } catch let error as ContraryGroup {
            try await find(error.what, convo, error.description)
            throw error
        }
    }

    /// Who may enter a convo's group by external commit, beside those who are in it: the people of the one that it
    /// succeeds.
    func expected(in convo: String) async throws -> [DID]? {
        if let known = try await records.read(Thread.self, Thread.prefix + convo) { return known.expected }
        guard let old = try await records.list(Thread.self, Thread.prefix).first(where: { $0.resetTo == convo }) else { return nil }
        return try await people(in: old)
    }

    func people(in thread: Thread) async throws -> [DID] {
        let members = try await mls.members(of: thread.groupId) ?? []
        return Set(members.map(\.account) + [account]).sorted { $0.rawValue < $1.rawValue }
    }

    /// Tells the app what was not believed.
    func find(_ what: Finding.What, _ convo: String, _ sentence: String) async throws {
        try await write([:], telling: [.finding(Finding(convoId: convo, what: what, sentence: sentence))])
    }

    /// A group that a device would enter in the place of the one that it has must have the same id, and must not be
    /// older. After the server has lost commits it may be, if everybody in it was in the group of before.
    private func mustContinue(_ what: Finding.What, _ thread: Thread, _ held: [Leaf], _ offered: GroupState, _ replaces: Bool) async throws {
        let (convo, own) = (thread.convoId, try await mls.signatureKey)
        let isActive = held.contains { $0.signatureKey == own }
        if what == .welcome, isActive, !thread.rewound, thread.left != true, !replaces {
            throw ContraryGroup(what: what, description: "convo \(convo) goes on, and the service has a Welcome for it")
        }
        if offered.groupID != thread.groupId {
            let (held, other) = (hexadecimal(thread.groupId), hexadecimal(offered.groupID))
            throw ContraryGroup(what: what, description: "convo \(convo) is group \(held), and the service offers group \(other)")
        }
        guard let epoch = try await mls.epoch(of: thread.groupId), offered.epoch < epoch else { return }
        if !thread.rewound {
            throw ContraryGroup(what: what, description: "convo \(convo) was at epoch \(epoch), and the service offers epoch \(offered.epoch)")
        }
        let people = Set(held.map(\.account))
        if let stranger = offered.members.first(where: { !people.contains($0.account) }) {
            let sentence = "convo \(convo) went back to epoch \(offered.epoch), in which \(stranger.account) is, who was not at epoch \(epoch)"
            throw ContraryGroup(what: what, description: sentence)
        }
    }

    /// Checks that members of a group have made its successor: MLS signs its id, which names the old group, with their
    /// keys, and nobody else is in it. What the person has decided is not checked.
    func mustSucceed(_ before: Thread, _ offered: GroupState) async throws {
        let people = try await people(in: before)
        if let chosen = before.moveTo, chosen == before.resetTo { return }
        let convo = before.convoId
        let no = { (why: String) in ContraryGroup(what: .successor, description: "convo \(convo) was reset, says the service; \(why)") }
        let ids = [before.groupId] + (before.resetVia ?? []) + [offered.groupID]
        if zip(ids, ids.dropFirst()).contains(where: { !isSuccessorID($1, of: $0) }) {
            throw no("the new group does not say that it goes on in its place")
        }
        if let stranger = offered.members.first(where: { !people.contains($0.account) }) {
            throw no("\(stranger.account) is in the new group, and was not in the old one")
        }
        try await mustList(.successor, "the successor of convo \(convo)", offered.members)
    }

    /// Checks that the accounts of devices list them.
    private func mustList(_ what: Finding.What, _ place: String, _ leaves: [Leaf]) async throws {
        let unknown = try await judge(leaves).filter { !$0.isKnown }
        if let unlisted = unknown.first(where: { $0.state == .unlisted }) {
            throw ContraryGroup(what: what, description: "in \(place) is a device of \(unlisted.account) that it does not list")
        }
        if !unknown.isEmpty { throw UnknownDevices(devices: unknown) }
    }
}
