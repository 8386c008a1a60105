import Foundation

/// A convo that waits for its person's answer. What it says is what services say: nothing of it was fetched yet.
public struct ConvoRequest: Codable, Hashable, Sendable {
    public var convoId: String
    public var invitedBy: DID
    /// Who is in it; of a convo of another service only who has invited this person.
    public var people: [DID]
    public var name: String?
    /// When this person was invited.
    public var since: Timestamp
    /// The convo's service, if it has sent an invitation to the person's home.
    public var service: DID?
}

/// Who may invite a person: everyone, of whom those who share no convo with the person send requests; who shares a
/// convo with the person; or nobody.
public struct InvitationPolicy: OpenEnum {
    public let rawValue: String
    public init(rawValue: String) { self.rawValue = rawValue }
    public static let everyone = Self(rawValue: "everyone")
    public static let shared = Self(rawValue: "shared")
    public static let nobody = Self(rawValue: "nobody")
}

/// A request, and its person's answer until that is done.
struct SavedRequest: Codable, Hashable {
    enum Answer: String, Codable { case accepted, declined }

    var request: ConvoRequest
    var answer: Answer?

    static let prefix = "request/"
    var name: String { Self.prefix + request.convoId }
}

/// Requests of people who share no convo with this person, and invitations of other services: docs/CONSENT.md. Until
/// the person accepts, nothing of them is fetched, joined or confirmed.
extension Messenger {
    /// What waits for the person's answer, the newest first. ``start(listening:)`` with events, and ``catchUp()``, look
    /// for it.
    public func requests() async throws -> [ConvoRequest] {
        var waiting: [ConvoRequest] = []
        for saved in try await records.list(SavedRequest.self, SavedRequest.prefix) where saved.answer == nil {
            let placed = try await records.read(Elsewhere.self, Elsewhere.prefix + saved.request.convoId)
            if placed?.answer == nil { waiting.append(saved.request) }
        }
        return waiting.sorted { $0.since.rawValue > $1.since.rawValue }
    }

    /// Accepts a request. When it returns, that is stored. Then the device joins, also after a kill, and also if its
    /// Welcome is too old: the app gets ``MessengerEvent/joined(convoId:)``. What another device of the person accepts,
    /// this one joins, too. Errors: `unknownConvo` for what is no id of a convo, and of an invitation `notAt`, `noWay`,
    /// and those of the home.
    public func accept(_ convo: String) async throws {
        try await checkID(convo)
        let saved = try await request(of: convo)
        if let service = saved?.request.service { return try await acceptInvitation(to: convo, at: service) }
        if saved?.answer == .accepted { return }
        try await answer(saved, .accepted, Draft(AcceptConvo.self, .init(convoId: convo), lane: convo))
    }

    /// Declines a request, and can block who has invited this person. When it returns, that is stored. Errors: as
    /// ``accept(_:)``, and `unknownConvo` if the convo waits for no answer.
    public func decline(_ convo: String, block: Bool = false) async throws {
        guard let saved = try await request(of: convo), saved.answer == nil else { throw MessengerError.unknownConvo(convo) }
        if let service = saved.request.service {
            try await declineInvitation(to: convo, at: service)
            if block { try await self.block(saved.request.invitedBy) }
            return
        }
        try await answer(saved, .declined, Draft(LeaveConvo.self, .init(convoId: convo, block: block ? true : nil), lane: convo))
    }

    /// Stores an answer in one step with the write that sends it.
    private func answer(_ saved: SavedRequest?, _ answer: SavedRequest.Answer, _ draft: Draft) async throws {
        try await outbox.add(draft, with: answered(saved, answer))
    }

    private func answered(_ saved: SavedRequest?, _ answer: SavedRequest.Answer?) async throws -> Changes {
        guard var saved else { return [:] }
        saved.answer = answer
        var changes: Changes = [saved.name: try encoded(saved)]
        if answer != nil { changes.merge(try await silenced(saved.request.convoId)) { $1 } }
        return changes
    }

    // MARK: Who may invite

    /// Who may invite this person.
    public func invitationPolicy() async throws -> InvitationPolicy {
        try await InvitationPolicy(rawValue: ask(GetInvitationPolicy.self, .init(), at: services.home).policy.rawValue)
    }

    /// When it returns, the person's home knows it. Other services hear it as soon as they can.
    public func setInvitationPolicy(_ policy: InvitationPolicy) async throws {
        try await everywhere(SetInvitationPolicy.self, .init(policy: .init(rawValue: policy.rawValue)))
    }

    /// The people whom this person has blocked.
    public func blocks() async throws -> [DID] {
        var all: [DID] = []
        var cursor: String?
        repeat {
            let page = try await ask(GetBlocks.self, .init(cursor: cursor), at: services.home)
            all += page.blocks.map(\.did)
            cursor = page.cursor
        } while cursor != nil
        return all
    }

    /// Blocks somebody: they cannot invite this person, and do not learn of it. Their requests end. Convos that both are
    /// in stay. When it returns, the person's home knows it.
    public func block(_ did: DID) async throws {
        try await everywhere(BlockActor.self, .init(did: did))
        for waiting in try await requests() where waiting.invitedBy == did { try await forgetRequest(of: waiting.convoId) }
    }

    public func unblock(_ did: DID) async throws { try await everywhere(UnblockActor.self, .init(did: did)) }

    private func everywhere<P: Procedure>(_ method: P.Type, _ input: P.Input) async throws {
        try input.check()
        _ = try await patiently(at: services.home) { try await $0.call(method, input) }
        for service in try await services.all() where service != services.home {
            later { _ = try await $0.patiently(at: service) { try await $0.call(method, input) } }
        }
    }

    // MARK: What services say

    func request(of convo: String) async throws -> SavedRequest? { try await records.read(SavedRequest.self, SavedRequest.prefix + convo) }

    /// Whether the device must not enter a convo: its person has not accepted it, or has declined it.
    func waits(_ convo: String) async throws -> Bool {
        guard let saved = try await request(of: convo), saved.answer != .accepted else { return false }
        return try await records.read(Elsewhere.self, Elsewhere.prefix + convo)?.answer != .accepted
    }

    /// Keeps a request. The app hears of it as of other news.
    func note(_ request: ConvoRequest) async throws {
        let convo = request.convoId
        let saved = try await self.request(of: convo)
        if let thread = try await records.read(Thread.self, Thread.prefix + convo), thread.left != true { return }
        if let saved, saved.answer != nil || saved.request.service != request.service || saved.request == request { return }
        if saved == nil, try await records.read(Elsewhere.self, Elsewhere.prefix + convo)?.answer != nil { return }
        let new = SavedRequest(request: request)
        try await write([new.name: encoded(new)], telling: saved == nil ? [.request(request)] : [])
    }

    /// Notes the request of an event, which can be an old one: the service says what it is now.
    func ask(about convo: String) async throws {
        do {
            let view = try await ask(GetConvo.self, .init(convoId: convo)).convo
            if view.request == true { try await note(ConvoRequest(view, for: account)) }
        } catch let error as ServiceError where [.refuse, .recover].contains(RetryRule.verdict(on: error)) {} // it has ended
    }

    /// Forgets a request that was answered or has ended, and what the app has not heard of it.
    func forgetRequest(of convo: String) async throws {
        guard let saved = try await request(of: convo) else { return }
        var changes = try await silenced(convo)
        changes[saved.name] = .some(nil)
        try await records.write(changes)
    }

    private func silenced(_ convo: String) async throws -> Changes {
        var changes: Changes = [:]
        for news in try await news() { if case .request(let request) = news.content, request.convoId == convo { changes[news.name] = .some(nil) } }
        return changes
    }

    /// Forgets those of the requests of before that a home does not have any more.
    func forgetRequests(_ before: [SavedRequest], but waiting: Set<String>, at home: DID?) async throws {
        let mayBeElsewhere = try await !services.former().isEmpty
        for saved in before where saved.answer == nil && !waiting.contains(saved.request.convoId) {
            let isHere = saved.request.service == nil ? try await services.isAt(home, saved.request.convoId) : !mayBeElsewhere
            if isHere { try await forgetRequest(of: saved.request.convoId) }
        }
    }

    /// An event of a convo says that it is no request, and it was one: another device of the person has accepted it.
    func isAcceptedByAnother(_ convo: String, request: Bool?) async throws -> Bool {
        guard request != true, let saved = try await self.request(of: convo), saved.answer == nil, saved.request.service == nil else { return false }
        try await forgetRequest(of: convo)
        return true
    }

    // MARK: What becomes of answers

    /// The service knows the answer to a request.
    func answered(_ write: Write) async throws {
        guard let saved = try await request(of: write.lane) else { // accepted before this device has heard of it
            if write.nsid == AcceptConvo.nsid { later { try await $0.joinIfInvited(write.lane) } }
            return
        }
        switch saved.answer {
        case .accepted where write.nsid == AcceptConvo.nsid: later { try await $0.enterAccepted(write.lane) }
        case .declined, nil: try await forgetRequest(of: write.lane)
        default: break
        }
    }

    /// The answer to a request was refused: it waits again, or it has ended, which the next list says.
    func waitAgain(_ write: Write) async throws {
        if let saved = try await request(of: write.lane), saved.answer != nil { try await records.write(answered(saved, nil)) }
    }

    private func enterAccepted(_ convo: String) async throws {
        try await joinIfInvited(convo)
        try await forgetRequest(of: convo)
    }

    /// Goes on with what an earlier life has accepted.
    func enterAgain() async throws {
        let pending = await outbox.pending
        for saved in try await records.list(SavedRequest.self, SavedRequest.prefix) where saved.answer == .accepted {
            let convo = saved.request.convoId
            if !pending.contains(where: { $0.lane == convo && $0.nsid == AcceptConvo.nsid }) { later { try await $0.enterAccepted(convo) } }
        }
    }
}

extension ConvoRequest {
    init(_ view: Defs.ConvoView, for own: DID) {
        convoId = view.id
        invitedBy = view.invitedBy ?? view.creator
        people = view.members.map(\.did)
        name = view.metadata?.name
        since = view.members.first { $0.did == own }?.joinedAt ?? view.createdAt
    }

    init(_ invitation: GetInvitations.Invitation) {
        convoId = invitation.convoId
        invitedBy = invitation.inviter
        people = [invitation.inviter]
        since = invitation.createdAt
        service = invitation.service
    }
}
