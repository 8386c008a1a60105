import Foundation

extension Messenger {
    /// Follows the stream of a service until the messenger stops. All streams are one for the app.
    func listen(to service: DID?) {
        guard listening, heard.insert(service).inserted else { return }
        later { messenger in
            do { try await messenger.follow(service) } catch {
                await messenger.stopped(service)
                throw error
            }
        }
    }

    /// A refusal has ended the stream: `resume` opens it again.
    private func stopped(_ service: DID?) { heard.remove(service) }

    /// What happened before, or was missed, is caught up with.
    private func follow(_ service: DID?) async throws {
        let source = EventSource(service: services.at(service), surroundings: surroundings, waits: waits)
        let cursor = await records.data(Name.cursor(service)).map { String(decoding: $0, as: UTF8.self) }
        let first = Once(cursor == nil)
        try await source.read(from: cursor) {
            // Without a cursor the stream begins now: what was before must be looked for.
            await self.hearSign()
            if await first.take() { try await self.catchUp(at: service) }
        } take: {
            await self.hearSign()
            try await self.take($0, from: service)
        }
    }

    /// Reads all convos of the account, and joins those that the device is not in yet. It waits for the home
    /// only.
    public func catchUp() async throws {
        for service in try await services.all() where service != services.home { later { try await $0.catchUp(at: service) } }
        try await catchUp(at: services.home)
    }

    private func catchUp(at service: DID?) async throws {
        guard try await services.isHome(service) else {
            for convo in try await convos() where try await services.of(convo) == service { syncLater(convo) }
            return
        }
        let before = try await records.list(SavedRequest.self, SavedRequest.prefix)
        var (waiting, listed): (Set<String>, Set<String>) = ([], [])
        var cursor: String?
        repeat {
            let page = try await ask(GetConvos.self, .init(cursor: cursor), at: service)
            for convo in page.conversations where try await services.speaks(service, for: convo.id) {
                listed.insert(convo.id)
                let thread = try await records.read(Thread.self, Thread.prefix + convo.id)
                if convo.request == true { waiting.insert(convo.id) }
                if convo.request == true, thread == nil || thread?.left == true {
                    try await note(ConvoRequest(convo, for: account))
                } else if thread?.left == true, admitsOwn, convo.closedAt == nil {
                    enterLater(convo.id, again: true)
                } else if thread != nil {
                    syncLater(convo.id)
                } else if try await request(of: convo.id)?.answer != nil {
                    // It goes on by itself.
                } else if let old = convo.predecessorConvoId, try await records.read(Thread.self, Thread.prefix + old) != nil {
                    goOnLater(old, convo.id)
                } else {
                    try await forgetRequest(of: convo.id) // another device of the person has accepted it
                    if try await services.of(convo.id) != nil || !admitsOwn {
                        joinLater(convo.id)
                    } else if convo.closedAt == nil {
                        enterLater(convo.id)
                    }
                }
            }
            cursor = page.cursor
        } while cursor != nil
        if services.home != nil {
            let all = try await patiently(at: service) { try await self.invitations($0) }
            for open in all where open.state == .open {
                waiting.insert(open.convoId)
                try await note(ConvoRequest(open))
            }
        }
        try await forgetRequests(before, but: waiting, at: service)
        for convo in try await convos() where !listed.contains(convo) {
            if try await services.isAt(service, convo) { readLastLater(convo) }
        }
        if service == services.home { later { try await $0.restock() } }
    }

    private func syncLater(_ convo: String) {
        later { try await $0.catchUp(with: convo) }
    }

    /// Reads what was sent before this person was removed, if the service still has it.
    private func readLastLater(_ convo: String) {
        later { messenger in
            guard try await messenger.thread(convo).left != true else { return }
            do { try await messenger.catchUp(with: convo) } catch let error as ServiceError where error.name == .notMember {
                try await messenger.change(convo) { $0.left = true }
            } catch let error as ServiceError where [.refuse, .recover].contains(RetryRule.verdict(on: error)) {}
        }
    }

    /// Reads the log. After a fork the device enters the group again, which takes its time.
    func catchUp(with convo: String) async throws {
        do { try await readToItsEnd(convo) } catch MessengerError.forked { try await makeGood(convo) }
    }

    /// An account can be in a convo with another device only: then there is no Welcome for this one.
    private func joinLater(_ convo: String) { later { try await $0.joinIfInvited(convo, $0.admitsOwn ? .asked : .withWelcome) } }

    func joinIfInvited(_ convo: String, _ way: JoinWay = .asked) async throws {
        do { try await join(convo, way) } catch MessengerError.needsInvitation {
            // The app has been told.
        } catch is ContraryGroup {
            // The app has got a finding.
        } catch let error as ServiceError where error.name == .convoClosed {
            // The device was never in it, and cannot enter it any more.
        }
    }

    private func take(_ streamed: StreamedEvent, from service: DID?) async throws {
        if try await mayTell(streamed.event, service) {
            if service == services.home { try await enterOwn(streamed.event) }
            try await take(streamed.event, from: service)
        }
        if let id = streamed.id { try await records.write([Name.cursor(service): Data(id.utf8)]) }
    }

    /// Whether a service tells of what is its own: of its convos, and a home of invitations and KeyPackages, too.
    private func mayTell(_ event: StreamConvoEvents.Event, _ service: DID?) async throws -> Bool {
        let convo: String
        switch event {
        case .infoEvent: return true
        case .invitationEvent: return try await services.isHome(service)
        case .keyPackagesEvent, .unknown: return service == services.home
        case .messageEvent(let event): convo = event.message.convoId
        case .commitEvent(let event): convo = event.convoId
        case .welcomeEvent(let event): convo = event.convoId
        case .membershipEvent(let event): convo = event.convoId
        case .roleEvent(let event): convo = event.convoId
        case .metadataEvent(let event): convo = event.convoId
        case .arrivalEvent(let event): convo = event.convoId
        case .resetEvent(let event): convo = event.convoId
        case .reactionEvent(let event): convo = event.convoId
        case .typingEvent(let event): convo = event.convoId
        case .cursorEvent(let event): convo = event.convoId
        case .disputeEvent(let event): convo = event.convoId
        }
        return try await services.speaks(service, for: convo)
    }

    private func take(_ event: StreamConvoEvents.Event, from service: DID?) async throws {
        switch event {
        case .messageEvent(let event): try await known(event.message.convoId, request: event.request)
        case .commitEvent(let event): try await known(event.convoId, request: event.request)
        case .welcomeEvent(let event):
            if event.request == true {
                try await ask(about: event.convoId)
            } else {
                let (isAccepted, device) = try await (isAcceptedByAnother(event.convoId, request: event.request), mls.deviceID)
                if isAccepted || event.deviceId == device { joinLater(event.convoId) }
            }
        case .membershipEvent(let event):
            try await take(membership: event)
            tell(.membership(event))
            if event.commitNeeded == true, event.did != account { later { try await $0.removeIfGone(event.did, from: event.convoId) } }
        case .roleEvent(let event): tell(.role(event))
        case .metadataEvent(let event): tell(.renamed(convoId: event.convoId))
        case .arrivalEvent(let event): tell(.arrived(event))
        case .resetEvent(let event):
            try await known(event.convoId, request: event.request)
            guard let successor = event.successorConvoId else { break }
            do { try await note(successor, of: event.convoId) } catch let error as MessengerError { // before the cursor moves
                return tell(.failed(String(describing: error)))
            }
            goOnLater(event.convoId, successor)
        case .keyPackagesEvent: later { try await $0.restock() }
        case .invitationEvent(let event): if try await event.deviceId == mls.deviceID { try await take(invitation: .init(event)) }
        case .infoEvent(let event):
            guard event.info.hasPrefix("OutdatedCursor") else { break }
            try await catchUp(at: service)
            for convo in try await convos() where try await services.isAt(service, convo) { later { try await $0.makeGood(convo) } }
        case .reactionEvent, .typingEvent, .cursorEvent, .disputeEvent, .unknown: tell(.other(event))
        }
    }

    private func known(_ convo: String, request: Bool?) async throws {
        if try await isAcceptedByAnother(convo, request: request) { joinLater(convo) }
        if try await records.read(Thread.self, Thread.prefix + convo) != nil { syncLater(convo) }
    }

    private func take(membership event: StreamConvoEvents.MembershipEvent) async throws {
        if event.did == account, event.change != .joined {
            if try await waits(event.convoId) { try await forgetRequest(of: event.convoId) } // it has ended
            if try await records.read(Thread.self, Thread.prefix + event.convoId) != nil { readLastLater(event.convoId) }
        } else if event.did == account, event.request == true {
            try await ask(about: event.convoId)
        } else if try await isAcceptedByAnother(event.convoId, request: event.request) {
            joinLater(event.convoId)
        }
    }

    private func take(invitation: GetInvitations.Invitation) async throws {
        if invitation.state == .open { return try await note(ConvoRequest(invitation)) }
        guard try await request(of: invitation.convoId)?.request.service == invitation.service else { return }
        try await forgetRequest(of: invitation.convoId)
    }
}

/// A flag that is taken once.
private actor Once {
    private var left: Bool
    init(_ left: Bool) { self.left = left }
    func take() -> Bool {
        defer { left = false }
        return left
    }
}
