import Foundation

/// A convo that was reset goes on under another id: docs/clients/DISPUTES.md.
extension Messenger {
    /// The convo that goes on, if a refusal or the last entry of a log names it.
    static func successor(in text: String) -> String? {
        guard let found = text.range(of: "successorConvoId") else { return nil }
        let id = text[found.upperBound...].dropFirst().prefix(36).lowercased()
        return UUID(uuidString: id) == nil ? nil : id
    }

    /// The successor of the convo whose reset is why a message was refused.
    private static func successor(of write: Write) -> String? {
        guard write.nsid == SendMessage.nsid, case .refused(let error) = write.state, error.name == .convoClosed else { return nil }
        return successor(in: error.message)
    }

    /// Follows a message that was refused because its convo was reset.
    func follow(refused write: Write) {
        guard let successor = Self.successor(of: write) else { return }
        goOnLater(write.lane, successor)
    }

    /// Messages that an earlier life has not moved.
    func moveRefused() async {
        for write in await outbox.refused { follow(refused: write) }
    }

    func goOnLater(_ convo: String, _ successor: String) {
        later { try await $0.goOn(convo, successor) }
    }

    /// Enters the convo that goes on in the place of one that was reset, with a Welcome or by external commit,
    /// and sends there what was refused here. The app is told once.
    private func goOn(_ convo: String, _ successor: String) async throws {
        guard try await records.read(Thread.self, Thread.prefix + convo) != nil else { return }
        if try await records.read(Thread.self, Thread.prefix + successor) == nil { try await join(successor) }
        try await turn.take {
            for write in await self.outbox.refused where write.lane == convo && Self.successor(of: write) == successor {
                let before = try JSONDecoder().decode(SendMessage.Input.self, from: write.body)
                let draft = try await self.draftMessage(write.note, successor, before.embedType, before.embedUri)
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
}
