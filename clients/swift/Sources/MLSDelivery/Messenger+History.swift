import Foundation

/// A device asks for the history of a convo.
public struct HistoryRequest: Codable, Hashable, Sendable {
    public var convoId: String
    public var id: String
    /// Who asks, and the id of the device that does.
    public var account: DID
    public var device: String
    /// The device has everything from this seq on.
    public var before: Int
    /// Set if this device asks.
    public var isMine = false
    /// The people that have agreed to give it.
    public var agreed: [DID] = []
    var seq = 0

    static func folder(_ convo: String) -> String { "history/request/" + convo + "/" }
    static func name(_ convo: String, _ id: String) -> String { folder(convo) + id }
    var name: String { Self.name(convoId, id) }
}

/// A bundle that somebody has made.
public struct HistoryBundle: Codable, Hashable, Sendable {
    public enum State: String, Codable, Sendable { case offered, importing, imported, cancelled, failed }

    public var convoId: String
    public var id: String
    public var request: String
    /// Who has made it, and whose word its messages are.
    public var from: DID
    public var entries: Int
    public var bytes: Int
    /// Whether this device has asked for it.
    public var isAsked: Bool
    public var state = State.offered
    /// Why it has failed.
    public var reason: String?
    /// Messages that are imported; that the device had.
    public var imported = 0
    public var known = 0
    var seq: Int
    var parts: [HistoryPart]
    /// The next part, and how many of its entries are done.
    var part = 0
    var entry = 0

    static func folder(_ convo: String) -> String { "history/bundle/" + convo + "/" }
    static func name(_ convo: String, _ id: String) -> String { folder(convo) + id }
    var name: String { Self.name(convoId, id) }
}

/// A message that a bundle has brought: somebody's word, and to be shown as that.
public struct ImportedEntry: Hashable, Sendable {
    public var convoId: String
    public var entry: HistoryEntry
    /// Whose word it is.
    public var from: DID
    public var bundle: String
}

/// A bundle that this device makes.
private struct Share: Codable, Hashable {
    var convoId: String
    var id: String
    var request: String
    /// Up to this seq it is made.
    var after: Int
    var before: Int
    var parts: [HistoryPart] = []
    /// Attachments to name again for a newer member; nil for a device of the same person.
    var files: [String]?
    var sent = false

    static let prefix = "history/share/"
    static func name(_ id: String) -> String { prefix + id }
    var name: String { Self.name(id) }
    /// The sealed part that is being sent: made again it would have another key.
    var partName: String { "history/part/" + id }
}

private struct SealedPart: Codable {
    var file: SealedFile
    var entries: Int
    var from: Int
    var to: Int
    var files: [String]
}

/// Which messages of a convo are imported: a bit for each seq, in blocks.
private enum Imports {
    static let block = 4096
    static func name(_ convo: String, _ seq: Int) -> String { "imports/" + convo + "/" + ordered(seq / block) }
}

extension Messenger {
    /// Entries that are given to the app or read from it at once.
    public static let historyBatch = 200
    /// So many requests and bundles of others are remembered in a convo: the newest ones.
    private static let mostKept = 32
    /// So many files of a bundle are named again for a newer member: the newest ones.
    private static let mostFiles = 100
    /// How often a part is announced anew whose bytes did not arrive as announced.
    private static let maxAnnouncements = 3

    // MARK: Asking

    /// Asks the members of a convo, and the person's other devices, for the messages that this device has no
    /// keys for: docs/clients/HISTORY.md. Returns the request's id.
    public func requestHistory(of convo: String) async throws -> String {
        let thread = try await thread(convo)
        let (id, device, before) = (HistoryMessage.newID(), try await mls.deviceID, thread.readFrom ?? thread.seq + 1)
        let request = HistoryRequest(convoId: convo, id: id, account: account, device: device, before: before, isMine: true)
        try await say(.request(id: id, device: device, before: before), in: convo) { _ in [request.name: try encoded(request)] }
        return id
    }

    /// The open requests of a convo.
    public func historyRequests(of convo: String) async throws -> [HistoryRequest] {
        try await records.list(HistoryRequest.self, HistoryRequest.folder(convo))
    }

    /// The bundles that others have made in a convo.
    public func historyBundles(of convo: String) async throws -> [HistoryBundle] {
        try await records.list(HistoryBundle.self, HistoryBundle.folder(convo))
    }

    // MARK: Giving

    /// Agrees to a request. **All members can read the bundle**: who calls it has asked its person. Then call
    /// `makeBundle` with the id that it returns. `after` is a seq: only what is behind it is given.
    public func agree(to request: String, in convo: String, after: Int = 0) async throws -> String {
        guard let asked = try await records.read(HistoryRequest.self, HistoryRequest.name(convo, request)), !asked.isMine else {
            throw HistoryError("nobody asks for it")
        }
        let before = min(asked.before, try await thread(convo).seq + 1)
        let share = Share(
            convoId: convo, id: HistoryMessage.newID(), request: request, after: after, before: before, files: asked.account == account ? nil : []
        )
        try await say(.agree(id: share.id, request: request), in: convo) { _ in [share.name: try encoded(share)] }
        return share.id
    }

    /// The bundles that this device has agreed to make, and that are not made: after a start, call
    /// `makeBundle` for each.
    public func unmadeBundles() async throws -> [String] {
        try await records.list(Share.self, Share.prefix).filter { !$0.sent }.map(\.id)
    }

    /// Makes a bundle and puts it into the outbox, or goes on with that. `messages` returns the app's next
    /// messages after a seq and before another, some `historyBatch` at a time, in the order of their seqs, and
    /// none at the end. Errors: ``HistoryError`` if it was cancelled or there is nothing to give.
    public func makeBundle(_ id: String, from messages: @Sendable (_ after: Int, _ before: Int) async throws -> [HistoryEntry]) async throws {
        guard busyWithHistory.insert(id).inserted else { throw HistoryError("the bundle is being made") }
        defer { busyWithHistory.remove(id) }
        while true {
            let share = try await self.share(id)
            if share.sent { return }
            let isFull = share.parts.count == HistoryBounds.parts
            if !isFull, let part = try await sealNext(share, messages) {
                try await upload(part, share)
            } else if let uri = share.files?.first {
                let write = try await say(.file(id: id), in: share.convoId, embedUri: uri) { try await $0.changed(id) { $0.files?.removeFirst() } }
                later { // the file may be gone: then the bundle goes without it
                    if case .refused = try await $0.outbox.finished(write.id).state { try await $0.outbox.dismiss([write.id]) }
                }
            } else if share.parts.isEmpty {
                try await cancelHistory(id, in: share.convoId)
                throw HistoryError("there is nothing to give")
            } else {
                try await say(.bundle(id: id, request: share.request, parts: share.parts), in: share.convoId) {
                    try await $0.changed(id) { $0.sent = true }
                }
            }
        }
    }

    private func share(_ id: String) async throws -> Share {
        guard let share = try await records.read(Share.self, Share.name(id)) else { throw HistoryError("the bundle was cancelled") }
        return share
    }

    /// What changes of a share, unless it was cancelled.
    private func changed(_ id: String, _ change: @Sendable (inout Share) -> Void) async throws -> Changes {
        var share = try await share(id)
        change(&share)
        return [share.name: try encoded(share)]
    }

    /// Makes the next part and stores it, before anything of it is sent.
    private func sealNext(_ share: Share, _ messages: (Int, Int) async throws -> [HistoryEntry]) async throws -> SealedPart? {
        if let made = try await records.read(SealedPart.self, share.partName) { return made }
        var (bytes, files): ([Data], [String]) = ([], [])
        var (size, first, to, last) = (HistoryPart.head.count + FileCipher.tagBytes, 0, 0, share.after)
        collecting: while true {
            let page = try await messages(last, share.before)
            if page.isEmpty { break }
            for entry in page {
                guard entry.seq > last, entry.seq < share.before else { throw HistoryError("the app's messages are not in their order") }
                let one = entry.bytes
                if !bytes.isEmpty, size + one.count > HistoryBounds.usualPart { break collecting }
                last = entry.seq
                if HistoryMessage.isHistory(entry.plaintext) || size + one.count > HistoryBounds.part { continue }
                if bytes.isEmpty { first = entry.seq }
                to = entry.seq
                bytes.append(one)
                size += one.count
                if let uri = entry.embedUri, uri.hasPrefix("mlsd:attachment/") { files.append(uri) }
            }
        }
        if bytes.isEmpty { return nil }
        let file = try SealedFile(
            HistoryPart.plaintext(bytes), boundTo: HistoryPart.boundTo(share.convoId, share.id, share.parts.count + 1)
        )
        let part = SealedPart(file: file, entries: bytes.count, from: first, to: to, files: files)
        try await turn.take {
            _ = try await self.share(share.id)
            try await self.records.write([share.partName: encoded(part)])
        }
        return part
    }

    private func upload(_ part: SealedPart, _ share: Share) async throws {
        let id = share.id
        let attachments = Attachments(service: service, surroundings: surroundings) { _ = try await self.share(id) }
        var file = part.file
        var pointer: FilePointer?
        for attempt in 1... {
            do {
                pointer = try await attachments.upload(file, to: share.convoId)
                break
            } catch let error as ServiceError where error.name.rawValue == "InvalidAsset" && attempt < Self.maxAnnouncements {
                file.idempotencyKey = newIdempotencyKey()
            }
        }
        guard let pointer else { return }
        let made = HistoryPart(
            id: pointer.id, key: pointer.key, nonce: pointer.nonce, sha256: pointer.sha256, size: pointer.size, entries: part.entries,
            from: part.from, to: part.to
        )
        try await turn.take {
            var changes = try await self.changed(id) { share in
                share.parts.append(made)
                share.after = part.to
                if let files = share.files { share.files = Array((files + part.files).suffix(Self.mostFiles)) }
            }
            changes[share.partName] = .some(nil)
            try await self.records.write(changes)
        }
    }

    // MARK: Importing

    /// Imports a bundle, or goes on with that. `store` puts messages into the app's database, **as imported**,
    /// under convo and seq: after a kill the last batch comes again. It gets at most `historyBatch` at a time,
    /// in the order of the log. Errors: ``HistoryError`` if the bundle breaks the format or was cancelled, those
    /// of the service, and those of `store`. What was stored before stays.
    @discardableResult
    public func importHistory(
        _ id: String, in convo: String, mostBytes: Int = HistoryBounds.bundle, store: @Sendable ([ImportedEntry]) async throws -> Void
    ) async throws -> HistoryBundle {
        let bundle = try await self.bundle(id, convo)
        if bundle.state == .imported { return bundle }
        guard busyWithHistory.insert(id).inserted else { throw HistoryError("the bundle is being imported") }
        defer { busyWithHistory.remove(id) }
        do {
            try HistoryMessage.check(bundle.parts, entries: bundle.entries, seq: bundle.seq, mostBytes: mostBytes)
            try await change(bundle) { $0.state = .importing }
            for part in bundle.part..<bundle.parts.count { try await importPart(part, id, convo, store) }
            return try await change(bundle) { $0.state = .imported }
        } catch {
            if error is HistoryError || error is FileChanged || error is ServiceError {
                _ = try? await change(bundle) { ($0.state, $0.reason) = (.failed, String(describing: error)) }
            }
            if let error = error as? FileChanged { throw HistoryError(error.description) }
            throw error
        }
    }

    private func bundle(_ id: String, _ convo: String) async throws -> HistoryBundle {
        guard let bundle = try await records.read(HistoryBundle.self, HistoryBundle.name(convo, id)) else {
            throw HistoryError("convo \(convo) has no bundle \(id)")
        }
        if bundle.state == .cancelled { throw HistoryError("the bundle was cancelled") }
        return bundle
    }

    /// Stores what has changed of a bundle, and other changes in the same write, unless it was cancelled.
    @discardableResult
    private func change(
        _ bundle: HistoryBundle, with changes: Changes = [:], _ change: @Sendable (inout HistoryBundle) -> Void
    ) async throws -> HistoryBundle {
        let after = try await turn.take {
            var after = try await self.bundle(bundle.id, bundle.convoId)
            change(&after)
            try await self.records.write(changes.merging([after.name: encoded(after)]) { _, new in new })
            return after
        }
        tell(.historyBundle(after))
        return after
    }

    /// One part is in memory, and checked as a whole before anything of it is stored.
    private func importPart(_ part: Int, _ id: String, _ convo: String, _ store: @Sendable ([ImportedEntry]) async throws -> Void) async throws {
        let bundle = try await self.bundle(id, convo)
        let pointer = bundle.parts[part]
        let attachments = Attachments(service: service, surroundings: surroundings) { _ = try await self.bundle(id, convo) }
        let boundTo = HistoryPart.boundTo(convo, id, part + 1)
        let entries = try pointer.decode(try await attachments.download(pointer.pointer, from: convo, boundTo: boundTo))
        for first in stride(from: bundle.entry, to: entries.count, by: Self.historyBatch) {
            try Task.checkCancellation()
            let end = min(first + Self.historyBatch, entries.count)
            let batch = Array(entries[first..<end])
            let isLast = end == entries.count
            try await importTurn.take {
                let (new, changes) = try await self.judge(batch, convo)
                _ = try await self.bundle(id, convo) // it was cancelled while another one had the turn
                if !new.isEmpty { try await store(new.map { ImportedEntry(convoId: convo, entry: $0, from: bundle.from, bundle: id) }) }
                try await self.change(bundle, with: changes) {
                    $0.imported += new.count
                    $0.known += batch.count - new.count
                    ($0.part, $0.entry) = isLast ? (part + 1, 0) : (part, end)
                }
            }
        }
    }

    /// Says which entries the device has neither read itself nor imported, and what says that they are imported.
    private func judge(_ entries: [HistoryEntry], _ convo: String) async throws -> ([HistoryEntry], Changes) {
        let readFrom = try await thread(convo).readFrom ?? Int.max
        var blocks: [String: Data] = [:]
        var new: [HistoryEntry] = []
        for entry in entries where entry.seq < readFrom && !HistoryMessage.isHistory(entry.plaintext) {
            let name = Imports.name(convo, entry.seq)
            var block = Data(count: Imports.block / 8)
            if let known = blocks[name] { block = known } else if let stored = await records.data(name) { block = stored }
            let (byte, bit) = (entry.seq % Imports.block / 8, UInt8(1) << (entry.seq % 8))
            if block[byte] & bit != 0 { continue }
            block[byte] |= bit
            blocks[name] = block
            new.append(entry)
        }
        return (new, blocks.mapValues { $0 })
    }

    // MARK: Cancelling

    /// Ends a request of this device, a bundle that it makes or has made, or an import. What is imported stays.
    public func cancelHistory(_ id: String, in convo: String) async throws {
        if let share = try await records.read(Share.self, Share.name(id)) {
            try await say(.cancel(id: id), in: convo) { _ in [share.name: nil, share.partName: nil] }
            return later { try await $0.remove(share) }
        }
        let request = try await records.read(HistoryRequest.self, HistoryRequest.name(convo, id))
        let imports = try await historyBundles(of: convo).filter { ($0.id == id || $0.request == id) && $0.state != .imported }
        for bundle in imports where bundle.state != .cancelled { try await change(bundle) { $0.state = .cancelled } }
        guard let request, request.isMine else { return }
        try await say(.cancel(id: id), in: convo) { _ in [request.name: nil] }
    }

    /// Deletes what is uploaded of a bundle. What fails is deleted with the messages of its time.
    private func remove(_ share: Share) async throws {
        for part in share.parts {
            let input = DeleteAttachment.Input(attachmentId: part.id, convoId: share.convoId)
            do { _ = try await patiently { try await $0.call(DeleteAttachment.self, input) } } catch is ServiceError {}
        }
    }

    /// Sends a message. `changes` are stored in the same write.
    @discardableResult
    private func say(
        _ message: HistoryMessage, in convo: String, embedUri: String? = nil, with changes: @Sendable (Messenger) async throws -> Changes
    ) async throws -> Write {
        try await turn.take {
            let more = try await changes(self)
            let draft = try await self.draftOrWait(message.plaintext(), convo, nil, embedUri)
            return try await self.outbox.add(draft, with: self.changes(for: draft).merging(more) { _, new in new })
        }
    }

    // MARK: What the log brings

    /// Adds to the changes of a page what an entry says about history, and returns what the inbox gets. The
    /// caller has the turn.
    func hear(
        _ content: Entry.Content, in convo: String, _ seq: Int, by sender: DID, _ changes: inout Changes, _ events: inout [MessengerEvent]
    ) async throws -> Entry.Content {
        switch content {
        case .own(let note): return HistoryMessage.isHistory(note) ? .history : content
        case .message(let plaintext):
            guard HistoryMessage.isHistory(plaintext) else { return content }
            if let message = HistoryMessage(plaintext: plaintext) { try await hear(message, in: convo, seq, by: sender, &changes, &events) }
            return .history
        default: return content
        }
    }

    private func hear(
        _ message: HistoryMessage, in convo: String, _ seq: Int, by sender: DID, _ changes: inout Changes, _ events: inout [MessengerEvent]
    ) async throws {
        let id = message.id
        let requestName = { HistoryRequest.name(convo, $0) }
        switch message.type {
        case "request":
            guard try await pending(HistoryRequest.self, requestName(id), changes) == nil else { return }
            let request = HistoryRequest(
                convoId: convo, id: id, account: sender, device: message.device ?? "", before: message.before ?? 0, seq: seq
            )
            changes[request.name] = try encoded(request)
            try await bound(HistoryRequest.self, HistoryRequest.folder(convo), &changes) { $0.isMine ? nil : ($0.name, $0.seq) }
            events.append(.historyRequest(request))
        case "agree":
            let name = requestName(message.request ?? "")
            guard var request = try await pending(HistoryRequest.self, name, changes), request.agreed.count < Self.mostKept,
                !request.agreed.contains(sender)
            else { return }
            request.agreed.append(sender)
            changes[name] = try encoded(request)
            events.append(.historyRequest(request))
        case "bundle":
            guard try await pending(HistoryBundle.self, HistoryBundle.name(convo, id), changes) == nil else { return } // ids do not come twice
            let parts = message.parts ?? []
            let asked = try await pending(HistoryRequest.self, requestName(message.request ?? ""), changes)
            let bundle = HistoryBundle(
                convoId: convo, id: id, request: message.request ?? "", from: sender, entries: message.entries ?? 0,
                bytes: parts.reduce(0) { $0 &+ $1.size }, isAsked: asked?.isMine == true, seq: seq, parts: parts
            )
            changes[bundle.name] = try encoded(bundle)
            try await bound(HistoryBundle.self, HistoryBundle.folder(convo), &changes) {
                $0.isAsked || $0.state == .importing ? nil : ($0.name, $0.seq)
            }
            events.append(.historyBundle(bundle))
        case "cancel": try await hearCancel(id, in: convo, by: sender, &changes, &events)
        default: break
        }
    }

    private func hearCancel(
        _ id: String, in convo: String, by sender: DID, _ changes: inout Changes, _ events: inout [MessengerEvent]
    ) async throws {
        if var bundle = try await pending(HistoryBundle.self, HistoryBundle.name(convo, id), changes), bundle.from == sender, bundle.state != .imported {
            bundle.state = .cancelled
            changes[bundle.name] = try encoded(bundle)
            events.append(.historyBundle(bundle))
        }
        guard let request = try await pending(HistoryRequest.self, HistoryRequest.name(convo, id), changes), request.account == sender else { return }
        changes[request.name] = .some(nil)
        for share in try await records.list(Share.self, Share.prefix) where share.request == id && share.convoId == convo && !share.sent {
            changes[share.name] = .some(nil)
            changes[share.partName] = .some(nil)
            later { try await $0.remove(share) }
        }
    }

    /// A record as the changes leave it.
    private func pending<Value: Decodable & Sendable>(_ type: Value.Type, _ name: String, _ changes: Changes) async throws -> Value? {
        guard let changed = changes[name] else { return try await records.read(type, name) }
        return try changed.map { try JSONDecoder().decode(type, from: $0) }
    }

    /// Forgets the oldest of what others have asked or offered, so that nobody fills the storage. `place` is
    /// nil for what stays.
    private func bound<Value: Decodable & Sendable>(
        _ type: Value.Type, _ folder: String, _ changes: inout Changes, _ place: (Value) -> (name: String, seq: Int)?
    ) async throws {
        let names = Set(await records.names(folder)).union(changes.keys.filter { $0.hasPrefix(folder) })
        var others: [(name: String, seq: Int)] = []
        for name in names {
            if let value = try await pending(type, name, changes), let place = place(value) { others.append(place) }
        }
        others.sort { $0.seq < $1.seq }
        for other in others.dropLast(Self.mostKept) { changes[other.name] = .some(nil) }
    }
}
