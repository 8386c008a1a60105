import Foundation

/// Who leaves says so by MLS, and nobody is removed because the service says so.
extension Messenger {
    /// Proposes to remove the leaves of this person. If that fails, the others must ask its account.
    func retire(_ convo: String) async throws {
        try await turn.take {
            guard let thread = try await self.records.read(Thread.self, Thread.prefix + convo), thread.left != true else { return }
            for leaf in try await self.mls.members(of: thread.groupId) ?? [] where leaf.account == self.account {
                do {
                    guard let draft = try await self.draftRetirement(leaf, convo) else { continue }
                    try await self.outbox.add(draft, with: self.changes(for: draft))
                } catch {
                    if await self.isInterruption(error) { throw error }
                    await self.tell(.failed("nothing is proposed: \(error)"))
                }
            }
        }
    }

    /// nil if the leaf is gone. The caller has the turn.
    func draftRetirement(_ leaf: Leaf, _ convo: String) async throws -> Draft? {
        let thread = try await thread(convo)
        guard let epoch = try await mls.epoch(of: thread.groupId), try await mls.members(of: thread.groupId)?.contains(leaf) == true else { return nil }
        let message = try await mls.proposeRemoval(of: leaf, in: thread.groupId)
        let input = SendMessage.Input(ciphertext: Bytes(message), convoId: convo, epoch: epoch, senderDid: account)
        return try Draft(SendMessage.self, input, lane: convo, epoch: epoch, object: message, retires: leaf)
    }

    /// Commits the proposals by which members have removed their own leaves. If this device is one of those, its person
    /// leaves, and the others commit that.
    func removeLeavers(_ members: [Leaf], _ thread: Thread) async throws {
        let key = try await mls.signatureKey
        if thread.leaving?.contains(key) == true { return }
        for leaf in members where thread.leaving?.contains(leaf.signatureKey) == true {
            removeLater(leaf, from: thread.convoId)
        }
    }

    /// Removes a person who has left, as the service says, if the person or its account says so too: by proposals to
    /// remove its own leaves, or because it has ended. Otherwise it asks the app: who has declined an invitation has no
    /// leaf to say it with. All members try it. One commit wins, and the others find nothing left to do.
    func removeIfGone(_ member: DID, from convo: String) async throws {
        guard try await records.read(Thread.self, Thread.prefix + convo) != nil else { return }
        do { try await readToItsEnd(convo) } catch let error as ServiceError where RetryRule.verdict(on: error) != .again { return }
        let thread = try await thread(convo)
        let leaves = try await (mls.members(of: thread.groupId) ?? []).filter { $0.account == member }
        if leaves.allSatisfy({ thread.leaving?.contains($0.signatureKey) == true }) { return } // their removal is under way, or done
        var isGone = false
        do { isGone = try await accounts.hasEnded(member) } catch is AccountAway {} // then it has not said so
        if !isGone { isGone = await decide(Doubt(convoId: convo, account: member, why: .left)) }
        if isGone { return _ = try await commit(Plan(remove: member).unasked, convo) }
        try await find(.removal, convo, "convo \(convo): the service says that \(member) has left, and \(member) has not said so")
    }
}
