import Foundation

extension Messenger {
    /// Follows the stream of events until the task is cancelled. What happened before, or was missed, is
    /// caught up with.
    func listen() async throws {
        let source = EventSource(service: service, surroundings: surroundings)
        let cursor = await records.data(Name.cursor).map { String(decoding: $0, as: UTF8.self) }
        let first = Once(cursor == nil)
        try await source.read(from: cursor) {
            // Without a cursor the stream begins now: what was before must be looked for.
            if await first.take() { try await self.catchUp() }
        } take: { try await self.take($0) }
    }

    /// Reads all convos of the account, and joins those that the device is not in yet.
    public func catchUp() async throws {
        var cursor: String?
        repeat {
            let page = try await ask(GetConvos.self, .init(cursor: cursor))
            for convo in page.conversations {
                if try await records.read(Thread.self, Thread.prefix + convo.id) != nil {
                    syncLater(convo.id)
                } else if convo.request == true {
                    tell(.request(convoId: convo.id))
                } else if let old = convo.predecessorConvoId, try await records.read(Thread.self, Thread.prefix + old) != nil {
                    goOnLater(old, convo.id)
                } else {
                    joinLater(convo.id)
                }
            }
            cursor = page.cursor
        } while cursor != nil
        later { try await $0.restock() }
    }

    private func syncLater(_ convo: String) {
        later { try await $0.catchUp(with: convo) }
    }

    /// Reads the log. After a fork the device enters the group again, which takes its time.
    func catchUp(with convo: String) async throws {
        do { try await sync(convo) } catch MessengerError.forked { try await makeGood(convo) }
    }

    /// An account can be in a convo with another device only: then there is no Welcome for this one.
    private func joinLater(_ convo: String) {
        later { messenger in
            do { try await messenger.join(convo) } catch MessengerError.needsInvitation {
                // The app has been told.
            } catch let error as ServiceError where error.name == .convoClosed {
                // The device was never in it, and cannot enter it any more.
            }
        }
    }

    private func take(_ streamed: StreamedEvent) async throws {
        switch streamed.event {
        case .messageEvent(let event): try await known(event.message.convoId)
        case .commitEvent(let event): try await known(event.convoId)
        case .welcomeEvent(let event):
            if event.request == true {
                tell(.request(convoId: event.convoId))
            } else if try await event.deviceId == mls.deviceID {
                joinLater(event.convoId)
            }
        case .membershipEvent(let event): tell(.membership(event))
        case .arrivalEvent(let event): tell(.arrived(event))
        case .resetEvent(let event):
            try await known(event.convoId)
            if let successor = event.successorConvoId {
                try await note(successor, of: event.convoId) // before the cursor moves
                goOnLater(event.convoId, successor)
            }
        case .keyPackagesEvent: later { try await $0.restock() }
        case .infoEvent(let event):
            guard event.info.hasPrefix("OutdatedCursor") else { break }
            try await catchUp()
            for convo in try await convos() { later { try await $0.makeGood(convo) } }
        case .reactionEvent, .typingEvent, .cursorEvent, .disputeEvent, .invitationEvent, .unknown: tell(.other(streamed.event))
        }
        if let id = streamed.id { try await records.write([Name.cursor: Data(id.utf8)]) }
    }

    private func known(_ convo: String) async throws {
        if try await records.read(Thread.self, Thread.prefix + convo) != nil { syncLater(convo) }
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
