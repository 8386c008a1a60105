import Foundation

extension Messenger {
    /// How many entries a page has.
    private static let pageSize = 100

    /// Reads the log from where the device stopped. Each page is one write of MLS state, place and
    /// plaintexts. If the server has lost entries that were read, it goes back to the last one that both have.
    func read(_ convo: String) async throws {
        var again = true
        while again {
            let before = try await thread(convo)
            if before.left == true, try await presentMembers(of: before) == nil { return } // nothing more is for this device
            // The turn is not taken while the network is asked: a message can be encrypted meanwhile.
            let page = try await nextPage(before)
            let back = page == nil ? try await lastCommon(before) : nil
            again = try await turn.take {
                var thread = try await self.thread(convo)
                if !thread.hasSamePlace(as: before) { return true } // the device entered the group again meanwhile
                guard let page else {
                    try await self.rewind(&thread, to: back ?? 0)
                    await self.later { try await $0.makeGood(convo) }
                    return true
                }
                try await self.take(page.messages, &thread)
                return page.cursor != nil && thread.left != true
            }
        }
    }

    /// nil if the server does not have what was read. The last entry is named by its id: then the server
    /// notices.
    private func nextPage(_ thread: Thread) async throws -> GetMessages.Output? {
        var parameters = GetMessages.Parameters(convoId: thread.convoId, limit: Self.pageSize, messageType: .all, untilLeft: true)
        if let last = thread.messageId { parameters.sinceMessage = last } else { parameters.sinceSeq = thread.seq }
        do {
            let page = try await ask(GetMessages.self, parameters)
            return page.lastSeq.map { $0 < thread.seq } == true ? nil : page
        } catch let error as ServiceError where error.name == .invalidCursor { return nil }
    }

    /// What reading a page changes.
    private struct Page {
        var hasChanged = false // the group has other members, or a proposal removes one
        var changes: Changes = [:]
        var events: [MessengerEvent] = []
        var news: [News.Content] = []
    }

    /// An entry as it was read, and who has sent it by MLS.
    private struct Reading {
        var content: Entry.Content
        var sender: DID?
        /// Of a message: the sender's leaf.
        var leaf: Leaf?
        /// Of a commit.
        var change: CommitChange?
    }

    private func take(_ views: [Defs.MessageView], _ thread: inout Thread) async throws {
        var page = Page()
        var forked: MessengerError?
        // A device that is stuck before the entry goes on, too.
        let successor = views.last.flatMap(Self.successor(in:))
        if let successor { goOnLater(thread.convoId, successor) }
        for view in views {
            guard view.seq == thread.seq + 1 || thread.seq == 0 else {
                throw MessengerError.gap(convoId: thread.convoId, after: thread.seq)
            }
            let digest = sha256(view.ciphertext.data)
            guard let reading = try await read(view, digest, &thread, &page) else {
                forked = .forked(convoId: thread.convoId)
                break
            }
            let sender = named(reading, view, &page)
            var entry = Entry(
                convoId: thread.convoId, seq: view.seq, messageId: view.id, sender: sender, content: reading.content, createdAt: view.createdAt,
                digest: digest, embedUri: view.embedUri, change: reading.change
            )
            if let leaf = reading.leaf, try await !mayShow(leaf, thread) {
                let withheld = Withheld(entry: entry, leaf: leaf)
                page.changes[withheld.name] = try encoded(withheld)
                entry.content = .withheld
                page.hasChanged = true
            } else {
                entry.content = try await hear(entry.content, in: thread.convoId, view.seq, by: sender, &page.changes, &page.events)
            }
            if thread.readFrom == nil, view.epoch >= thread.entered { thread.readFrom = view.seq }
            page.changes[entry.name] = try encoded(entry)
            let mark = ReadMark(seq: view.seq, messageId: view.id, digest: digest, sender: sender)
            page.changes[ReadMark.name(thread.convoId, view.seq)] = try encoded(mark)
            page.changes[ReadMark.name(thread.convoId, view.seq - ReadMark.most)] = .some(nil)
            (thread.seq, thread.messageId) = (view.seq, view.id)
            if thread.left == true { break } // what follows is not for this device
        }
        if page.changes.isEmpty && forked == nil { return }
        if let successor {
            page.changes.merge(try await services.succession(of: thread.convoId, to: successor)) { _, new in new }
            if thread.resetTo == nil, thread.doubted != successor { thread.resetTo = successor }
        }
        page.changes[thread.name] = try encoded(thread)
        page.changes.merge(try await mls.takeChanges()) { _, new in new }
        try await write(page.changes, telling: page.news)
        tell(.received(convoId: thread.convoId))
        for event in page.events { tell(event) }
        if page.hasChanged { changed(thread.convoId) }
        if thread.left == true { later { try await $0.listAgain() } } // this device was removed
        if let forked { throw forked }
    }

    /// Who has sent an entry: MLS says it. The app hears if the service has named another one.
    private func named(_ reading: Reading, _ view: Defs.MessageView, _ page: inout Page) -> DID {
        guard let sender = reading.sender, sender != view.sender else { return view.sender }
        let sentence = "convo \(view.convoId): entry \(view.seq) is of \(sender), and the service says that it is of \(view.sender)"
        page.news.append(.finding(Finding(convoId: view.convoId, what: .sender, sentence: sentence)))
        return sender
    }

    /// Reads one entry. Its own bytes say what it is. nil is a fork.
    private func read(_ view: Defs.MessageView, _ digest: Data, _ thread: inout Thread, _ page: inout Page) async throws -> Reading? {
        let loose = Name.loose(thread.convoId, digest)
        if let before = try await records.read(ReadMark.self, loose) {
            page.changes[loose] = .some(nil)
            return Reading(content: .moved(from: before.messageId), sender: before.sender)
        }
        if view.messageType == .reset { return Reading(content: .reset) }
        let isCommit = view.messageType == .commit
        let epoch = try await mls.epoch(of: thread.groupId) ?? 0
        let own = await records.data(Name.own(digest))
        if let note = own {
            page.changes[Name.own(digest)] = .some(nil)
            if !isCommit { return Reading(content: view.messageType == .proposal ? .proposal : .own(note), sender: account) }
            if view.epoch < epoch { // confirmed by its answer
                let change = try await records.read(CommitChange.self, Name.change(digest))
                page.changes[Name.change(digest)] = .some(nil)
                return Reading(content: .commit, sender: account, change: change)
            }
        }
        if thread.rewound, isCommit, view.epoch + 1 >= thread.entered, view.epoch < epoch { return nil }
        if view.epoch < thread.entered || thread.rewound && view.epoch < epoch { return Reading(content: isCommit ? .commit : .unreadable) }
        let before = isCommit ? try await mls.members(of: thread.groupId) ?? [] : []
        let received: Received
        do { received = try await mls.process(view.ciphertext.data, in: thread.groupId) } catch {
            if own != nil { // a commit that was discarded, and arrived later
                page.changes.removeValue(forKey: Name.own(digest))
                return nil
            }
            throw MessengerError.unreadable(convoId: thread.convoId, seq: view.seq, String(describing: error))
        }
        switch received {
        case .application(let plaintext, let sender):
            note(sender, hasWrittenIn: &thread, &page)
            return Reading(content: .message(plaintext), sender: sender.account, leaf: sender)
        case .proposal(let sender, let removed):
            // It leaves: its own person has proposed to remove it.
            if let sender, let removed, sender.account == removed.account {
                thread.leaving = (thread.leaving ?? []) + [removed.signatureKey]
                page.hasChanged = true
            }
            if let sender { note(sender, hasWrittenIn: &thread, &page) }
            return Reading(content: .proposal, sender: sender?.account)
        case .commit(let sender, let isExternal):
            if isExternal { askForInvitation(sender.account, before, &thread) }
            let (after, key) = try await (mls.members(of: thread.groupId) ?? [], mls.signatureKey)
            let change = CommitChange(from: before, to: after, by: sender)
            let news = try await note(change, &thread)
            page.news += news
            page.hasChanged = page.hasChanged || !news.isEmpty
            if !after.contains(where: { $0.signatureKey == key }) { thread.left = true }
            if isExternal { // nobody in the group has let it in
                try await askAgain(sender, &page.changes)
                page.hasChanged = true
            }
            note(sender, hasWrittenIn: &thread, &page)
            return Reading(content: .commit, sender: sender.account, change: change)
        case .past: return Reading(content: .unreadable)
        }
    }

    /// Notes that a person has written, and tells the app if it is the first time since the person was added: MLS shows
    /// now that it has joined.
    private func note(_ sender: Leaf, hasWrittenIn thread: inout Thread, _ page: inout Page) {
        guard let i = thread.silent?.firstIndex(of: sender.account) else { return }
        thread.silent?.remove(at: i)
        page.news.append(.device(DeviceNews(convoId: thread.convoId, change: .joined, account: sender.account, key: sender.signatureKey)))
    }

    /// Notes a person who has entered by an external commit, and whom nobody in the group has added before. Whether
    /// they may be here the service alone says.
    private func askForInvitation(_ entered: DID, _ before: [Leaf], _ thread: inout Thread) {
        if entered == account || thread.expected?.contains(entered) == true || before.contains(where: { $0.account == entered }) { return }
        if thread.uninvited?.contains(entered) != true { thread.uninvited = (thread.uninvited ?? []) + [entered] }
    }

    // MARK: After a loss

    /// Sets the thread back to the last entry that the device and the server both have. What was read behind
    /// it is kept by its digest: MLS cannot decrypt it a second time.
    /// `common` is how many of the marks the server has.
    private func rewind(_ thread: inout Thread, to common: Int) async throws {
        let marks = try await records.list(ReadMark.self, ReadMark.folder(thread.convoId))
        var changes: Changes = [:]
        for mark in marks[common...] {
            changes[ReadMark.name(thread.convoId, mark.seq)] = .some(nil)
            changes[Name.loose(thread.convoId, mark.digest)] = try encoded(mark)
        }
        thread.rewound = true
        let last = common > 0 ? marks[common - 1] : nil
        thread.seq = last?.seq ?? 0
        thread.messageId = last?.messageId
        changes[thread.name] = try encoded(thread)
        try await records.write(changes)
    }

    /// How many of the marks the server still has: if it has one, it has all before it.
    private func lastCommon(_ thread: Thread) async throws -> Int {
        let marks = try await records.list(ReadMark.self, ReadMark.folder(thread.convoId))
        var (low, high) = (0, marks.count)
        while low < high {
            let middle = (low + high) / 2
            do {
                _ = try await ask(
                    GetMessages.self, .init(convoId: thread.convoId, limit: 1, messageType: .all, sinceMessage: marks[middle].messageId)
                )
                low = middle + 1
            } catch let error as ServiceError where error.name == .invalidCursor { high = middle }
        }
        return low
    }
}
