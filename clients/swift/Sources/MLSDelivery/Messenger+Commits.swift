import Foundation

extension Messenger {
    /// Makes a commit for the plan and puts it into the outbox. It is applied when it is accepted.
    /// It returns nil if the group is so already. MLS stages one commit, so a pending one is waited
    /// for; a recovery does not wait, because the pending one waits for it, and is made anew after
    /// it.
    func commit(_ plan: Plan, _ convo: String, recovering: Bool = false, missing: [Missing] = []) async throws -> Write? {
        while true {
            try await readToItsEnd(convo)
            let (write, before): (Write?, Write?) = try await turn.take {
                let pending = await self.outbox.pending
                if !recovering, let before = pending.first(where: { $0.lane == convo && $0.isCommit }) { return (nil, before) }
                guard let draft = try await self.draftCommit(plan, convo) else { return (nil, nil) }
                var changes = try await self.changes(for: draft)
                if let id = plan.id { changes.merge(try await self.using(plan.packages, by: id)) { $1 } }
                changes.merge(try await self.stored(missing, in: convo)) { $1 }
                return (try await self.outbox.add(draft, with: changes), nil)
            }
            guard let before else { return write }
            do { _ = try await outbox.finished(before.id) } catch is CancellationError where !Task.isCancelled {} // it was dismissed
        }
    }

    /// What is stored together with a draft: the MLS state that made it, and the mark by which the device knows
    /// its own object in the log.
    func changes(for draft: Draft) async throws -> Changes {
        var changes = try await mls.takeChanges()
        if let digest = draft.digest { changes[Name.own(digest)] = draft.note }
        return changes
    }

    /// The caller has the turn.
    private func draftCommit(_ plan: Plan, _ convo: String) async throws -> Draft? {
        let thread = try await thread(convo)
        guard let staged = try await mls.stage(plan.change, in: thread.groupId) else { return nil }
        let note = try encoded(plan)
        let epoch = staged.epoch - 1
        let info = Bytes(staged.groupInfo)
        if let member = plan.remove {
            let input = LeaveConvo.Input(convoId: convo, commit: Base64Text(staged.commit), groupInfo: info, targetDid: member)
            return try Draft(LeaveConvo.self, input, lane: convo, epoch: epoch, object: staged.commit, note: note, isAhead: true)
        }
        let welcome = staged.welcome.map(Base64Text.init)
        if plan.add.isEmpty {
            let input = SubmitCommit.Input(commit: Bytes(staged.commit), convoId: convo, groupInfo: info, welcomeMessage: welcome)
            return try Draft(SubmitCommit.self, input, lane: convo, epoch: epoch, object: staged.commit, note: note, isAhead: plan.isRemoval)
        }
        let input = AddMembers.Input(
            convoId: convo, didList: plan.add, commit: Base64Text(staged.commit), groupInfo: info, receipts: plan.receipts,
            welcomeMessage: welcome
        )
        return try Draft(AddMembers.self, input, lane: convo, epoch: epoch, object: staged.commit, note: note)
    }

    /// Enters a convo of the account by external commit, and reads on from there.
    /// Errors: ``ContraryGroup`` if the GroupInfo is not of the convo's group, and ``UnknownDevices``.
    /// `byItself`: nobody has asked for it, and another listed device of the person must be in the group.
    func rejoin(_ convo: String, byItself: Bool = false) async throws {
        try await listDevice()
        if byItself, let before = await outbox.pending.first(where: { $0.lane == Self.lane(ofEntry: convo) }) {
            return try await entered(with: before, byItself) // an earlier life has begun it
        }
        let info = try await ask(GetGroupInfo.self, .init(convoId: convo)).groupInfo.data
        let write = try await turn.take {
            let offered = try await self.mls.group(of: info)
            try await self.mustFit(.groupInfo, convo, offered)
            if byItself { try await self.mustHaveOwn(convo, offered) }
            let draft = try await self.draftExternal(convo, info, byItself)
            return try await self.outbox.add(draft, with: self.changes(for: draft))
        }
        try await entered(with: write, byItself)
    }

    private static func lane(ofEntry convo: String) -> String { "external/" + convo }

    private func entered(with write: Write, _ byItself: Bool) async throws {
        guard case .refused(let error) = try await outbox.finished(write.id).state else { return }
        if byItself { try await outbox.dismiss([write.id]) }
        throw error
    }

    /// Whether a write is an entry that nobody has asked for.
    func isEntry(_ write: Write) -> Bool {
        write.nsid == ProcessExternalCommit.nsid && (try? JSONDecoder().decode(External.self, from: write.note))?.byItself == true
    }

    /// Its lane is its own: the convo's may be held. The caller has the turn.
    private func draftExternal(_ convo: String, _ info: Data, _ byItself: Bool) async throws -> Draft {
        let staged = try await mls.stageExternal(groupInfo: info)
        return try Draft(
            ProcessExternalCommit.self,
            .init(commit: Bytes(staged.commit), convoId: convo, groupInfo: Bytes(staged.groupInfo)),
            lane: Self.lane(ofEntry: convo), epoch: staged.epoch - 1, object: staged.commit,
            note: encoded(External(groupId: staged.groupID, convoId: convo, byItself: byItself ? true : nil))
        )
    }

    private struct External: Codable {
        var groupId: Data
        var convoId: String
        var byItself: Bool?
    }

    // MARK: Author

    func rewrite(_ write: Write, because error: ServiceError?) async throws -> Rewrite {
        do { return try await rewritten(write) } catch {
            if error is UnknownDevices { watchLater(write.lane) }
            if error is ServiceError || error is NoAnswer || error is UnknownDevices { throw error }
            if await isInterruption(error) { throw error }
            return .never("it cannot be made anew: \(error)")
        }
    }

    /// Whether the work was cut off, by the storage or because it was cancelled. Any other error
    /// comes again.
    func isInterruption(_ error: any Error) async -> Bool {
        if error is CancellationError { return true }
        return await records.failed
    }

    private func rewritten(_ write: Write) async throws -> Rewrite {
        if write.nsid == ProcessExternalCommit.nsid {
            let external = try JSONDecoder().decode(External.self, from: write.note)
            let info = try await ask(GetGroupInfo.self, .init(convoId: external.convoId)).groupInfo.data
            return try await storing {
                let (offered, byItself) = (try await self.mls.group(of: info), external.byItself == true)
                try await self.mustFit(.groupInfo, external.convoId, offered)
                if byItself { try await self.mustHaveOwn(external.convoId, offered) }
                return try await self.draftExternal(external.convoId, info, byItself)
            }
        }
        try await catchUp(with: write.lane)
        if write.forked, let digest = write.digest, await records.data(Name.own(digest)) == nil { return .asItIs } // the log has it
        if let leaf = write.retires { return try await storing { try await self.draftRetirement(leaf, write.lane) } }
        if write.nsid == SendMessage.nsid {
            try await settled(write.lane)
            return try await storing { try await self.draftAnew(write, orWait: false) }
        }
        let plan = try JSONDecoder().decode(Plan.self, from: write.note)
        return try await storing { try await self.draftCommit(plan, write.lane) }
    }

    /// Stores the MLS state before what it made is stored. A kill between the two costs a key that is never
    /// used.
    private func storing(_ make: @Sendable () async throws -> Draft?) async throws -> Rewrite {
        try await turn.take {
            guard let draft = try await make() else {
                try await self.records.write(self.mls.takeChanges())
                return .never("nothing is left to do")
            }
            try await self.records.write(self.changes(for: draft))
            return .anew(draft)
        }
    }

    func accepted(_ write: Write, answer: Data) async throws {
        do { try await apply(write, answer) } catch {
            if await isInterruption(error) { throw error }
            tell(.failed("an accepted write cannot be applied: \(error)"))
        }
    }

    private func apply(_ write: Write, _ answer: Data) async throws {
        try await release(claimsOf: write)
        switch write.nsid {
        case CreateConvo.nsid: try await opened(write, Service.read(CreateConvo.Output.self, answer))
        case ResetConvo.nsid:
            let successor = try Service.read(ResetConvo.Output.self, answer).convo
            try await opened(write, successor)
            try await followOwn(write, to: successor.id)
        case ProcessExternalCommit.nsid: try await entered(write, answer)
        case AddMembers.nsid, SubmitCommit.nsid, LeaveConvo.nsid:
            if write.digest == nil { // leaving needs no commit
                try await change(write.lane) { $0.left = true }
                return try await answered(write)
            }
            let hasChanged = try await turn.take {
                var thread = try await self.thread(write.lane)
                let before = try await self.mls.members(of: thread.groupId) ?? []
                try await self.mls.confirm(groupID: thread.groupId)
                let after = try await self.mls.members(of: thread.groupId) ?? []
                let own = try await Leaf(identity: self.account.rawValue, signatureKey: self.mls.signatureKey)
                let change = CommitChange(from: before, to: after, by: own)
                let news = try await self.note(change, &thread)
                var changes = try await self.mls.takeChanges()
                // If it was read before its answer came, its entry says it already.
                if let digest = write.digest, await self.records.data(Name.own(digest)) != nil { changes[Name.change(digest)] = try encoded(change) }
                changes[thread.name] = try encoded(thread)
                try await self.write(changes, telling: news)
                return !news.isEmpty
            }
            if hasChanged { changed(write.lane) }
        case AcceptConvo.nsid: try await answered(write)
        case PublishKeyPackages.nsid:
            let refused = try Service.read(PublishKeyPackages.Output.self, answer).results.filter { $0.status == .rejected }
            for result in refused { tell(.failed("a KeyPackage was refused: \(result.message ?? "")")) }
            if !refused.isEmpty { restockAnew(after: write) }
        default: break
        }
    }

    private func opened(_ write: Write, _ convo: Defs.ConvoView) async throws {
        let missing: [Missing] = try await turn.take {
            if try await self.records.read(Thread.self, Thread.prefix + convo.id) != nil { return [] } // before a kill
            try await self.mls.confirm(groupID: write.note)
            var changes = try await self.mls.takeChanges()
            var thread = Thread(convoId: convo.id, groupId: write.note, entered: convo.epoch)
            let others = try await self.mls.members(of: write.note)?.map(\.account).filter { $0 != self.account }
            thread.silent = Array(Set(others ?? []))
            changes[thread.name] = try encoded(thread)
            if let origin = MLSDelivery.convo(of: write.body) {
                changes.merge(try await self.services.succession(of: origin, to: convo.id)) { _, new in new }
            }
            let missing = try await self.missing(inGroup: hexadecimal(write.note), of: convo.id)
            changes.merge(missing.changes) { $1 }
            try await self.records.write(changes)
            return missing.missing
        }
        changed(convo.id)
        note(missing, in: convo.id)
    }

    /// The device has no keys for older entries: it reads behind its own commit.
    private func entered(_ write: Write, _ answer: Data) async throws {
        let accepted = try Service.read(ProcessExternalCommit.Output.self, answer)
        let external = try JSONDecoder().decode(External.self, from: write.note)
        let kept = await outbox.keptWrites(lane: external.convoId)
        let unsent = await outbox.pending.filter { $0.lane == external.convoId && $0.epoch != nil }
        try await turn.take {
            let known = try await self.records.read(Thread.self, Thread.prefix + external.convoId)
            var thread = known ?? Thread(convoId: external.convoId, groupId: external.groupId, entered: -1)
            if known == nil { thread.expected = try await self.expected(in: external.convoId) }
            if thread.entered == accepted.newEpoch { return } // before a kill
            let lost = try await self.lostWrites(external.convoId, among: kept)
            try await self.outbox.markForked((lost + unsent).map(\.id))
            try await self.mls.confirmExternal(groupID: external.groupId)
            var changes = try await self.mls.takeChanges()
            (thread.entered, thread.left) = (accepted.newEpoch, nil)
            if !thread.rewound { (thread.seq, thread.messageId) = (accepted.seq, nil) }
            changes[thread.name] = try encoded(thread)
            changes[KeptWelcome.prefix + external.convoId] = .some(nil)
            try await self.records.write(changes)
        }
        changed(external.convoId)
    }

    func refused(_ write: Write, because error: ServiceError) async throws {
        try await release(claimsOf: write, because: error)
        if write.nsid == ResetConvo.nsid { return try await discardGroup(of: write) }
        guard let digest = write.digest else { return try await waitAgain(write) }
        try await turn.take {
            if write.isCommit, let thread = try await self.records.read(Thread.self, Thread.prefix + write.lane) {
                do { try await self.mls.discard(groupID: thread.groupId) } catch { await self.tell(.failed("\(error)")) }
            }
            var changes = try await self.mls.takeChanges()
            changes[Name.own(digest)] = .some(nil)
            try await self.records.write(changes)
        }
    }
}
