import Foundation

/// A convo that was reset goes on under another id: docs/clients/DISPUTES.md.
extension Messenger {
    // MARK: Resetting

    /// Replaces a group that is beyond repair by a new one, and goes on in it. It is not for a device that
    /// lost its state. The new group has the devices of all other members who have KeyPackages; every other
    /// device enters it by external commit.
    ///
    /// It waits until the service has given the KeyPackages. The write overtakes what the convo's lane
    /// holds: those messages go to the successor, which the write's answer names. A call while a reset of
    /// the convo is pending returns that one's write. Errors: `moved` if the convo was reset before, and
    /// `unknownConvo`.
    @discardableResult
    public func reset(_ convo: String, because reason: ResetConvo.Input.Reason) async throws -> Write {
        try await checkID(convo)
        if let pending = await pendingReset(of: convo) { return pending }
        let view = try await ask(GetConvo.self, .init(convoId: convo)).convo
        if let successor = view.successorConvoId {
            goOnLater(convo, successor)
            throw MessengerError.moved(convoId: convo, successor: successor)
        }
        // Who is not in the group is not taken along because the service says so: others would not follow.
        let people = try await Set((mls.members(of: thread(convo).groupId) ?? []).map(\.account))
        let others = view.members.map(\.did).filter { $0 != account && people.contains($0) }
        return try await withClaim(others, convo: convo, all: false) { try await addReset(of: convo, reason, $0) }
    }

    private func addReset(of convo: String, _ reason: ResetConvo.Input.Reason, _ claimed: Claimed) async throws -> Write {
        try await turn.take {
            if let pending = await self.pendingReset(of: convo) { return pending }
            let group = try await self.startGroup(claimed.packages, inPlaceOf: self.thread(convo).groupId)
            let input = ResetConvo.Input(
                convoId: convo, groupInfo: Bytes(group.info), reason: reason, receipts: claimed.receipts,
                welcomeMessage: group.welcome.map(Base64Text.init)
            )
            // Its lane is its own: the convo's may be held.
            let draft = try Draft(ResetConvo.self, input, lane: Self.lane(ofReset: convo), note: group.id)
            let used = try await self.using(claimed.packages, by: hexadecimal(group.id))
            return try await self.outbox.add(draft, with: self.mls.takeChanges().merging(used) { $1 })
        }
    }

    private static func lane(ofReset convo: String) -> String { "reset/" + convo }

    private func pendingReset(of convo: String) async -> Write? {
        await outbox.pending.first { $0.lane == Self.lane(ofReset: convo) }
    }

    /// Leaves the old convo after the device's own reset, which has put it into the successor.
    func followOwn(_ write: Write, to successor: String) async throws {
        guard let convo = MLSDelivery.convo(of: write.body) else { return }
        try await note(successor, of: convo)
        goOnLater(convo, successor)
        later { try await $0.tellWithoutDevice(successor) }
    }

    /// The reset was refused: its group is not used.
    func discardGroup(of write: Write) async throws {
        try await turn.take {
            try await self.mls.discard(groupID: write.note)
            try await self.records.write(self.mls.takeChanges())
        }
    }

    // MARK: Following

    /// The convo that goes on, if a refusal or the last entry of a log names it.
    static func successor(in text: String) -> String? {
        guard let found = text.range(of: "successorConvoId") else { return nil }
        let id = text[found.upperBound...].dropFirst().prefix(36).lowercased()
        return UUID(uuidString: id) == nil ? nil : id
    }

    /// The convo that goes on, if the entry is the last one of a log that a reset has closed.
    static func successor(in last: Defs.MessageView) -> String? {
        last.messageType == .reset ? successor(in: String(decoding: last.ciphertext.data, as: UTF8.self)) : nil
    }

    /// The convo that goes on, if the write was refused because of a reset.
    private static func successor(of write: Write) -> String? {
        guard case .refused(let error) = write.state, error.name == .convoClosed else { return nil }
        return successor(in: error.message)
    }

    /// Follows a write that was refused because its convo was reset.
    func follow(refused write: Write) {
        guard let successor = Self.successor(of: write), let convo = MLSDelivery.convo(of: write.body) else { return }
        goOnLater(convo, successor)
    }

    /// Follows the resets that an earlier life knew of and has not followed to the end.
    func goOnAgain() async throws {
        for thread in try await records.list(Thread.self, Thread.prefix) where thread.successor == nil {
            if let successor = thread.resetTo { goOnLater(thread.convoId, successor) }
        }
        for write in await outbox.refused { follow(refused: write) }
    }

    /// Stores that the convo goes on elsewhere. The caller does not have the turn.
    func note(_ successor: String, of convo: String) async throws {
        try await turn.take {
            guard var thread = try await self.records.read(Thread.self, Thread.prefix + convo), thread.resetTo != successor else { return }
            if thread.doubted == successor { return }
            thread.resetTo = successor
            var changes = try await self.services.succession(of: convo, to: successor)
            changes[thread.name] = try encoded(thread)
            try await self.records.write(changes)
        }
    }

    func goOnLater(_ convo: String, _ successor: String) {
        later { try await $0.goOnOnce(convo, successor) }
    }

    /// Goes on, or once more if that is under way.
    private func goOnOnce(_ convo: String, _ successor: String) async throws {
        if following.keys.contains(convo) { return following[convo] = .some(successor) }
        defer { following[convo] = nil }
        var next: String? = successor
        while let one = next {
            following[convo] = .some(nil)
            try await goOn(convo, one)
            next = following[convo] ?? nil
        }
    }

    /// Enters the convo that goes on in the place of one that was reset, with a Welcome or by external commit,
    /// and sends there what was refused here. The app is told once.
    private func goOn(_ convo: String, _ named: String) async throws {
        guard let before = try await records.read(Thread.self, Thread.prefix + convo), before.doubted != named else { return }
        let successor = before.successor ?? named
        if before.successor == nil { try await note(successor, of: convo) }
        if try await records.read(Thread.self, Thread.prefix + successor) == nil { try await waitIfOwn(successor, of: convo) }
        if before.successor == nil { await readOldLog(convo) } // it says who may be in the successor
        do {
            if try await records.read(Thread.self, Thread.prefix + successor) == nil {
                try await join(successor)
            } else if before.successor == nil {
                try await check(convo, successor)
            }
        } catch is ContraryGroup {
            // It stays in the old convo. The app has got a finding, and can ask the person.
            return try await change(convo) { ($0.resetTo, $0.doubted) = (nil, successor) }
        } catch let error as ServiceError where error.name == .convoClosed {
            guard let next = Self.successor(in: error.message) else { throw error }
            try await pass(convo, successor)
            return try await goOn(convo, next) // it was reset, too
        }
        try await turn.take {
            for write in await self.outbox.refused where write.lane == convo && write.nsid == SendMessage.nsid && Self.successor(of: write) != nil {
                let before = try JSONDecoder().decode(SendMessage.Input.self, from: write.body)
                let draft = try await self.draftOrWait(write.note, successor, before.embedType, before.embedUri)
                try await self.outbox.move(write, draft, with: self.changes(for: draft))
            }
        }
        let first = try await turn.take {
            var thread = try await self.thread(convo)
            if thread.successor != nil { return false }
            thread.successor = successor
            try await self.records.write([thread.name: try encoded(thread)])
            return true
        }
        if first { tell(.moved(convoId: convo, successor: successor)) }
    }

    /// Goes on in what the service says is the successor of a convo, though its members have not made it, as far as
    /// MLS shows: ``Finding`` with `successor`. Ask the person first. Errors: `unknownConvo`.
    public func moveTo(_ successor: String, from convo: String) async throws {
        _ = try await thread(convo)
        try await change(convo) { ($0.doubted, $0.moveTo) = (nil, successor) }
        try await goOnOnce(convo, successor)
    }

    /// A device that is stuck, or that the service refuses, goes on with what it has read.
    private func readOldLog(_ convo: String) async {
        do { try await readToItsEnd(convo) } catch {}
    }

    /// Notes the group of a successor that this device does not enter: the next one is bound to it.
    private func pass(_ convo: String, _ successor: String) async throws {
        let id = try await bytes(ofHexadecimal: ask(GetConvo.self, .init(convoId: successor)).convo.groupId)
        try await change(convo) { if $0.resetVia?.contains(id) != true { $0.resetVia = ($0.resetVia ?? []) + [id] } }
    }

    /// Checks a successor in which this device is already: its Welcome has come before the news of the reset.
    private func check(_ convo: String, _ successor: String) async throws {
        let (before, thread) = try await (thread(convo), thread(successor))
        let members = try await mls.members(of: thread.groupId) ?? []
        do {
            try await mustSucceed(before, GroupState(groupID: thread.groupId, epoch: thread.entered, members: members))
        } catch let error as ContraryGroup {
            try await find(error.what, convo, error.description)
            throw error
        }
        let people = try await people(in: before)
        try await change(successor) { now in
            now.expected = people
            now.uninvited?.removeAll { people.contains($0) }
        }
    }

    /// If the successor is that of this device's own reset, waits for the answer, which puts the device into
    /// it.
    private func waitIfOwn(_ successor: String, of convo: String) async throws {
        guard let own = await pendingReset(of: convo) else { return }
        let group = try await ask(GetConvo.self, .init(convoId: successor)).convo.groupId
        if group == hexadecimal(own.note) { _ = try await outbox.finished(own.id) }
    }
}
