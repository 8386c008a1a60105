import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// History for a new device: docs/clients/HISTORY.md.
final class HistoryTests: XCTestCase {
    static let convo = WrongCallsTests.convo
    static let bob = "did:plc:bob"

    /// The app's database: what it has of a convo, by seq.
    actor Database {
        private(set) var entries: [Int: HistoryEntry] = [:]
        private(set) var imported: [Int: ImportedEntry] = [:]
        private(set) var batches: [Int] = []
        private(set) var twice = 0 // imported once more

        func save(_ inbox: [Entry]) { for entry in inbox { entries[entry.seq] = HistoryEntry(entry) } }
        func store(_ batch: [ImportedEntry]) {
            batches.append(batch.count)
            for one in batch { if imported.updateValue(one, forKey: one.entry.seq) != nil { twice += 1 } }
        }
        func page(_ after: Int, _ before: Int) -> [HistoryEntry] {
            Array(entries.values.filter { $0.seq > after && $0.seq < before }.sorted { $0.seq < $1.seq }.prefix(Messenger.historyBatch))
        }
        var texts: [String] { imported.keys.sorted().map { String(decoding: imported[$0]!.entry.plaintext, as: UTF8.self) } }
    }

    /// A device of the account, whose messenger is a new life at each `open`.
    struct Phone {
        let server: ModelServer
        let name: String
        let storage = MemoryStorage()
        let database = Database()

        /// Its MLS key.
        var device: String { hexadecimal(sha256(Data(name.utf8))) }

        func open(_ life: Life = Life(seed: 0)) async throws -> Messenger {
            let service = Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: MortalTransport(server, life))
            return try await Messenger(
                account: OutboxTests.account, service: service, accounts: UncheckedAccounts(), storage: MortalStorage(storage, life), surroundings: simulated(seed: 7, life: life)
            ) { try FakeMLS($0, device: device, seed: 7) }
        }

        /// Sends what waits, reads the log, and takes the inbox.
        func sync(_ messenger: Messenger, _ convo: String = HistoryTests.convo) async throws {
            for write in await messenger.outbox.pending { _ = try await messenger.outbox.finished(write.id) }
            try await messenger.sync(convo)
            let inbox = try await messenger.inbox(convo)
            await database.save(inbox)
            try await messenger.taken(inbox)
        }

        func make(_ messenger: Messenger, _ bundle: String) async throws {
            try await messenger.makeBundle(bundle) { await database.page($0, $1) }
            for write in await messenger.outbox.pending { _ = try await messenger.outbox.finished(write.id) }
        }

        @discardableResult
        func take(_ messenger: Messenger, _ bundle: String, in convo: String = HistoryTests.convo) async throws -> HistoryBundle {
            try await messenger.importHistory(bundle, in: convo) { await database.store($0) }
        }
    }

    /// An old device that has read messages, and a new one that entered the group after them.
    func scene(_ messages: Int, files: [String] = []) async throws -> (ModelServer, old: Phone, new: Phone) {
        let server = ModelServer(seed: 1)
        let (old, new) = (Phone(server: server, name: "old"), Phone(server: server, name: "new"))
        await server.addConvo(Self.convo)
        let group = WrongCallsTests.group(Self.convo)
        try await old.storage.write(firstValues(convo: Self.convo, groupID: group, device: old.device))
        for i in 0..<messages {
            if i % 400 == 399 { await server.commit(Self.convo) }
            await server.post(Data("message \(i)".utf8), to: Self.convo, by: i % 2 == 0 ? Self.bob : ModelServer.caller, embedUri: i < files.count ? files[i] : nil)
        }
        await server.commit(Self.convo)
        let epoch = await server.epoch(Self.convo)
        let mls = try FakeMLS([:], device: new.device, seed: 0)
        _ = try await mls.join(welcome: FakeMLS.state(group, epoch), if: { _ in })
        var values = try await mls.takeChanges()
        let thread = MLSDelivery.Thread(convoId: Self.convo, groupId: group, entered: epoch)
        values[thread.name] = try encoded(thread)
        await new.storage.write(values)
        return (server, old, new)
    }

    /// The new device asks, and the old one gives.
    func given(_ old: Phone, _ new: Phone) async throws -> (giver: Messenger, asker: Messenger, bundle: String) {
        let (giver, asker) = (try await old.open(), try await new.open())
        for messenger in [giver, asker] { try await messenger.start(listening: false) }
        try await new.sync(asker)
        let request = try await asker.requestHistory(of: Self.convo)
        try await new.sync(asker)
        try await old.sync(giver)
        let bundle = try await giver.agree(to: request, in: Self.convo)
        try await old.make(giver, bundle)
        try await new.sync(asker)
        return (giver, asker, bundle)
    }

    /// Messages and attachments arrive in their order, each once, in small batches.
    func testOrderAndDuplicates() async throws {
        let count = Int(ProcessInfo.processInfo.environment["MLSD_SWIFT_HISTORY"] ?? "") ?? 1000
        let plains = (0..<3).map { i in Data((0..<300_000).map { UInt8(truncatingIfNeeded: $0 &* 7 &+ i) }) }
        let (server, old, new) = try await scene(count, files: (0..<3).map { "mlsd:attachment/file\($0)" })
        var pointers: [FilePointer] = []
        let attachments = Attachments(service: Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: server))
        for plain in plains { pointers.append(try await attachments.upload(SealedFile(plain), to: Self.convo)) }
        let giver = try await old.open()
        try await old.sync(giver)
        let begun = Date()
        let (_, asker, id) = try await given(old, new)
        let made = Date()
        let bundle = try await new.take(asker, id)
        let ended = Date()
        let texts = await new.database.texts
        XCTAssertEqual(texts, (0..<count).map { "message \($0)" })
        let twice = await new.database.twice
        XCTAssertEqual(twice, 0)
        XCTAssertEqual([bundle.imported, bundle.known], [count, 0])
        XCTAssertEqual(bundle.state, .imported)
        let batches = await new.database.batches
        XCTAssertLessThanOrEqual(batches.max() ?? 0, Messenger.historyBatch)
        let files = await new.database.imported.values.compactMap(\.entry.embedUri).sorted()
        XCTAssertEqual(files, (0..<3).map { "mlsd:attachment/file\($0)" })
        for (plain, pointer) in zip(plains, pointers) {
            let got = try await attachments.download(pointer, from: Self.convo)
            XCTAssertEqual(got, plain)
        }
        print(
            "\(count) messages and 3 attachments: \(bundle.bytes) bytes, made and sent in \(Int(made.timeIntervalSince(begun) * 1000)) ms, imported in",
            "\(Int(ended.timeIntervalSince(made) * 1000)) ms (debug build); \(texts.count) in their order, \(twice) duplicates"
        )
    }

    /// What is imported names who gave it, is never in the inbox, and is given on as that.
    func testShownAsImported() async throws {
        let (server, old, new) = try await scene(6)
        let (_, asker, id) = try await given(old, new)
        await server.post(Data("after".utf8), to: Self.convo, by: Self.bob)
        try await new.sync(asker)
        try await new.take(asker, id)
        let imported = await new.database.imported.values
        XCTAssertEqual(Set(imported.map(\.from)), [OutboxTests.account])
        XCTAssertEqual(Set(imported.map(\.bundle)), [id])
        XCTAssertEqual(Set(imported.map(\.entry.sender.rawValue)), [Self.bob, ModelServer.caller])
        let theirs = await old.database.entries
        for one in imported { XCTAssertEqual(one.entry, theirs[one.entry.seq]) }
        let received = await new.database.entries.values.map { String(decoding: $0.plaintext, as: UTF8.self) }
        XCTAssertEqual(received, ["after"])
    }

    /// Two bundles of the same messages are imported at the same time: each message is stored once.
    func testTwoBundlesAtOnce() async throws {
        let (_, old, new) = try await scene(500)
        let (giver, asker, first) = try await given(old, new)
        let request = try await giver.historyRequests(of: Self.convo)[0]
        let second = try await giver.agree(to: request.id, in: Self.convo, after: 200)
        try await old.make(giver, second)
        try await new.sync(asker)
        async let one = new.take(asker, first)
        async let two = new.take(asker, second)
        let (a, b) = try await (one, two)
        XCTAssertEqual(a.imported + b.imported, 500)
        XCTAssertEqual(a.known + b.known, b.entries)
        let (twice, texts) = await (new.database.twice, new.database.texts)
        XCTAssertEqual(twice, 0)
        XCTAssertEqual(texts, (0..<500).map { "message \($0)" })
    }

    /// What the device has received is not imported.
    func testReceivedIsNotReplaced() async throws {
        let (server, old, new) = try await scene(3)
        let (_, asker, _) = try await given(old, new)
        await server.post(Data("received".utf8), to: Self.convo, by: Self.bob)
        try await new.sync(asker)
        let before = await new.database.entries
        let target = try XCTUnwrap(before.values.first { $0.plaintext == Data("received".utf8) })
        let id = try await forge(server, .init(entries: [entry(target.seq)]))
        try await new.sync(asker)
        let done = try await new.take(asker, id)
        XCTAssertEqual([done.imported, done.known], [0, 1])
        let (after, imported) = await (new.database.entries, new.database.imported)
        XCTAssertEqual(after, before)
        XCTAssertTrue(imported.isEmpty)
    }

    /// A request, a bundle that is being made, one that is offered, and an import that runs.
    func testCancelled() async throws {
        let (server, old, new) = try await scene(450)
        let (giver, asker, offered) = try await given(old, new)
        let request = try await giver.historyRequests(of: Self.convo)[0].id

        let making = try await giver.agree(to: request, in: Self.convo)
        let (convo, database) = (Self.convo, old.database)
        do {
            try await giver.makeBundle(making) { after, before in
                try await giver.cancelHistory(making, in: convo)
                return await database.page(after, before)
            }
            XCTFail("it was made")
        } catch let error as HistoryError { XCTAssertEqual(error.description, "the bundle was cancelled") }
        try await old.sync(giver)
        let unmade = try await giver.unmadeBundles()
        XCTAssertEqual(unmade, [])

        // An import that its person cancels after the first batch, also in the next life.
        do {
            try await asker.importHistory(offered, in: convo) { batch in
                await new.database.store(batch)
                try await asker.cancelHistory(offered, in: convo)
            }
            XCTFail("it was imported")
        } catch let error as HistoryError { XCTAssertEqual(error.description, "the bundle was cancelled") }
        let again = try await new.open()
        let stays = try await again.historyBundles(of: convo).first { $0.id == offered }
        XCTAssertEqual(stays?.state, .cancelled)
        do {
            try await new.take(again, offered)
            XCTFail("it was imported")
        } catch is HistoryError {}
        let batches = await new.database.batches
        XCTAssertEqual(batches.count, 1)

        // A bundle that its maker cancels: its parts are deleted.
        let last = try await giver.agree(to: request, in: Self.convo)
        try await old.make(giver, last)
        try await new.sync(asker)
        let part = try await asker.historyBundles(of: convo).first { $0.id == last }?.parts.first?.id
        let there = await server.has(part ?? "")
        XCTAssertTrue(there)
        try await giver.cancelHistory(last, in: convo)
        try await old.sync(giver)
        await giver.stop()
        let gone = await server.has(part ?? "")
        let after = try await new.open()
        try await after.start(listening: false)
        try await new.sync(after)
        let state = try await after.historyBundles(of: convo).first { $0.id == last }?.state
        XCTAssertEqual(state, .cancelled)
        XCTAssertFalse(gone)

        // Who asks takes it back.
        let mine = try await after.historyRequests(of: convo).first { $0.isMine }?.id
        try await after.cancelHistory(XCTUnwrap(mine), in: convo)
        try await new.sync(after)
        let hears = try await old.open()
        try await hears.start(listening: false)
        try await old.sync(hears)
        let open = try await hears.historyRequests(of: convo)
        XCTAssertEqual(open, [])
    }

    /// A kill at each step of an import: it goes on, and each message is there once.
    func testInterruptedImport() async throws {
        let (server, old, new) = try await scene(450)
        let (_, asker, id) = try await given(old, new)
        await asker.stop()
        let values = await new.storage.load()
        for step in 1... {
            let phone = Phone(server: server, name: "new")
            await phone.storage.write(values.mapValues { $0 })
            let life = Life(seed: 0, at: step)
            let first = try await phone.open(life)
            do { try await phone.take(first, id) } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            let second = try await phone.open()
            let done = try await phone.take(second, id)
            XCTAssertEqual([done.imported, done.known], [450, 0], "killed at step \(step)")
            let texts = await phone.database.texts
            XCTAssertEqual(texts, (0..<450).map { "message \($0)" }, "killed at step \(step)")
            if await !life.isOver { return XCTAssertGreaterThan(step, 8) }
        }
    }

    /// A kill at each step of the making: afterwards there is one bundle, whole.
    func testInterruptedMaking() async throws {
        for step in 1... {
            let (_, old, new) = try await scene(5)
            let asker = try await new.open()
            try await asker.start(listening: false)
            try await new.sync(asker)
            let request = try await asker.requestHistory(of: Self.convo)
            try await new.sync(asker)
            let life = Life(seed: 0, at: step)
            let first = try await old.open(life)
            do {
                try await old.sync(first)
                let bundle = try await first.agree(to: request, in: Self.convo)
                try await first.makeBundle(bundle) { await old.database.page($0, $1) }
            } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            let killed = await life.isOver
            let second = try await old.open()
            try await second.start(listening: false)
            try await old.sync(second)
            for bundle in try await second.unmadeBundles() { try await old.make(second, bundle) }
            try await old.sync(second)
            try await new.sync(asker)
            let bundles = try await asker.historyBundles(of: Self.convo)
            XCTAssertLessThanOrEqual(bundles.count, 1)
            for bundle in bundles { try await new.take(asker, bundle.id) }
            let texts = await new.database.texts
            XCTAssertEqual(texts, bundles.isEmpty ? [] : (0..<5).map { "message \($0)" }, "killed at step \(step)")
            await asker.stop()
            await second.stop()
            if !killed {
                XCTAssertEqual(bundles.count, 1)
                return XCTAssertGreaterThan(step, 12)
            }
        }
    }

    // MARK: Hostile members

    struct Forgery {
        var entries: [HistoryEntry]?
        var change: (inout HistoryPart) -> Void = { _ in }
        var count: Int?
        var convo = HistoryTests.convo
        var index = 1
        var plain: (Data) -> Data = { $0 }
        var parts: (HistoryPart) -> [HistoryPart] = { [$0] }
    }

    func entry(_ seq: Int = 1, sender: String = "did:plc:victim", createdAt: Int = 1_700_000_000_000) -> HistoryEntry {
        HistoryEntry(
            seq: seq, messageId: "0192f3a4-0000-7000-8000-000000000001", sender: DID(sender), createdAt: createdAt, digest: Data(count: 32),
            plaintext: Data("0123456789abcdefI never wrote this".utf8)
        )
    }

    /// Posts a bundle that a hostile member has made by hand.
    func forge(_ server: ModelServer, _ forgery: Forgery, in convo: String = convo) async throws -> String {
        let id = HistoryMessage.newID()
        let entries = forgery.entries ?? [entry()]
        let plain = forgery.plain(HistoryPart.plaintext(entries.map(\.bytes)))
        let file = try SealedFile(plain, boundTo: HistoryPart.boundTo(forgery.convo, id, forgery.index))
        let attachments = Attachments(service: Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: server))
        let pointer = try await attachments.upload(file, to: convo)
        var part = HistoryPart(
            id: pointer.id, key: pointer.key, nonce: pointer.nonce, sha256: pointer.sha256, size: pointer.size, entries: entries.count,
            from: entries[0].seq, to: entries[entries.count - 1].seq
        )
        forgery.change(&part)
        let parts = forgery.parts(part)
        var message = HistoryMessage.bundle(id: id, request: String(repeating: "0", count: 32), parts: parts)
        message.entries = forgery.count ?? message.entries
        await server.post(try message.plaintext(), to: convo, by: Self.bob)
        return id
    }

    func testHostileBundles() async throws {
        let (server, _, new) = try await scene(6)
        let asker = try await new.open()
        let hostile: [(String, Forgery, says: String)] = [
            ("a part of 4 GiB", Forgery(change: { $0.size = 0xffff_ffff }), "too large"),
            ("300 parts", Forgery(parts: { Array(repeating: $0, count: 300) }), "300 parts"),
            ("25 parts of 11 MiB", Forgery(parts: { part in
                (1...25).map { i in var one = part; (one.size, one.from, one.to) = (11 << 20, i, i); return one }
            }), "too large"),
            ("more messages than its parts", Forgery(count: 7), "7 messages"),
            ("a million messages", Forgery(change: { $0.entries = 1_000_000 }), "not in their order"),
            ("the same part twice", Forgery(parts: { [$0, $0] }), "not in their order"),
            ("parts in the wrong order", Forgery(parts: { part in
                [2, 1].map { i in var one = part; (one.from, one.to) = (i, i); return one }
            }), "not in their order"),
            ("another part's place", Forgery(index: 2), "cannot be decrypted"),
            ("another convo's part", Forgery(convo: WrongCallsTests.other), "cannot be decrypted"),
            ("another key", Forgery(change: { $0.key = String(repeating: "A", count: 43) }), "cannot be decrypted"),
            ("a key of another length", Forgery(change: { $0.key = "AAAA" }), "cannot be decrypted"),
            ("other bytes", Forgery(change: { $0.sha256 = String(repeating: "0", count: 64) }), "not the one that was sent"),
            ("messages from after itself", Forgery(entries: [entry(900_000)]), "not in their order"),
            ("a message outside of its part", Forgery(change: { ($0.from, $0.to) = (2, 2) }), "not in its place"),
            ("a message twice", Forgery(entries: [entry(), entry()], change: { $0.to = 2 }), "not in its place"),
            ("messages in the wrong order", Forgery(entries: [entry(2), entry(1)], change: { ($0.from, $0.to) = (1, 2) }), "not in its place"),
            ("fewer messages than it says", Forgery(change: { ($0.entries, $0.to) = (2, 2) }), "missing"),
            ("a part that is cut short", Forgery(plain: { $0.dropLast() }), "cut short"),
            ("a message of 4 GiB", Forgery(plain: { plain in
                var bytes = plain
                for i in 0..<4 { bytes[bytes.count - 38 + i] = 255 }
                return bytes
            }), "cut short"),
            ("another version", Forgery(plain: { var bytes = $0; bytes[4] = 2; return bytes }), "version 2"),
            ("something else", Forgery(plain: { _ in Data("something else".utf8) }), "no part"),
            ("a sender that is no DID", Forgery(entries: [entry(sender: "<b>Alice</b>")]), "not described"),
            ("a message of the year 20000", Forgery(entries: [entry(createdAt: 568_971_820_800_000)]), "not described"),
        ]
        for (name, forgery, says) in hostile {
            let id = try await forge(server, forgery)
            try await new.sync(asker)
            do {
                try await new.take(asker, id)
                XCTFail(name)
            } catch let error as HistoryError { XCTAssertTrue(error.description.contains(says), "\(name): \(error)") }
            let state = try await asker.historyBundles(of: Self.convo).first { $0.id == id }?.state
            XCTAssertEqual(state, .failed, name)
        }
        let none = await new.database.imported
        XCTAssertTrue(none.isEmpty)
        // A message about history that comes in a bundle is not one.
        var inner = entry()
        inner.plaintext = try HistoryMessage.cancel(id: HistoryMessage.newID()).plaintext()
        let nested = try await forge(server, Forgery(entries: [inner]))
        let honest = try await forge(server, Forgery())
        try await new.sync(asker)
        let first = try await new.take(asker, nested)
        XCTAssertEqual(first.imported, 0)
        do {
            try await asker.importHistory(honest, in: Self.convo, mostBytes: 100) { _ in }
            XCTFail("it is too large")
        } catch is HistoryError {}
        let second = try await new.take(asker, honest)
        XCTAssertEqual(second.imported, 1, "as Bob's word")
    }

    /// Others neither fill the storage nor cancel what is not theirs, and later versions are not read.
    func testOthersMessages() async throws {
        let (server, old, new) = try await scene(3)
        let (_, asker, mine) = try await given(old, new)
        let request = try await asker.historyRequests(of: Self.convo)[0].id
        let post = { (message: HistoryMessage) in await server.post(try message.plaintext(), to: Self.convo, by: Self.bob) }
        try await post(.cancel(id: mine))
        try await post(.cancel(id: request))
        let part = HistoryPart(
            id: "a", key: "A", nonce: "A", sha256: String(repeating: "0", count: 64), size: 100, entries: 1, from: 1, to: 1
        )
        for _ in 0..<40 {
            try await post(.bundle(id: HistoryMessage.newID(), request: HistoryMessage.newID(), parts: [part]))
            try await post(.request(id: HistoryMessage.newID(), device: String(repeating: "0", count: 64), before: 9))
        }
        var later = try HistoryMessage.cancel(id: HistoryMessage.newID()).plaintext()
        later[16 + 13] = 2
        await server.post(later, to: Self.convo, by: Self.bob)
        try await asker.sync(Self.convo)
        let contents = try await asker.inbox(Self.convo).map(\.content)
        XCTAssertEqual(Set(contents), [.history], "an app does not show them")
        let bundles = try await asker.historyBundles(of: Self.convo)
        XCTAssertEqual(bundles.count, 33)
        XCTAssertEqual(bundles.first { $0.id == mine }?.state, .offered)
        let requests = try await asker.historyRequests(of: Self.convo)
        XCTAssertEqual(requests.count, 33)
        XCTAssertTrue(requests.contains { $0.id == request && $0.isMine })
    }

    /// A bundle of one convo is not imported into another, also if a member passes its message on.
    func testOtherConvo() async throws {
        let (server, old, new) = try await scene(4)
        let (_, asker, id) = try await given(old, new)
        let bundle = try await asker.historyBundles(of: Self.convo)[0]
        let other = WrongCallsTests.other
        await server.addConvo(other)
        try await new.storage.write(firstValues(convo: other, groupID: WrongCallsTests.group(other), device: new.device))
        for i in 0..<12 { await server.post(Data("filler \(i)".utf8), to: other) }
        try await server.post(HistoryMessage.bundle(id: id, request: bundle.request, parts: bundle.parts).plaintext(), to: other)
        let again = try await new.open()
        do {
            try await new.take(again, id, in: other)
            XCTFail("it was imported")
        } catch is HistoryError {}
        try await new.sync(again, other)
        do {
            try await new.take(again, id, in: other)
            XCTFail("it was imported")
        } catch let error as ServiceError { XCTAssertEqual(error.name.rawValue, "AttachmentNotFound") }
        let imported = await new.database.imported
        XCTAssertTrue(imported.isEmpty)
    }

    // MARK: One format

    /// A bundle as one of the clients has written it: clients/vectors.
    struct Vector: Codable {
        struct Message: Codable {
            var seq: Int
            var id: String
            var sender: String
            var createdAt: Int
            var digest: String
            var relayed: Bool
            var embedUri: String
            var plaintext: Data
        }
        var convo: String
        var seq: Int
        var message: Data
        var parts: [Data]
        var entries: [Message]
    }

    /// Bundles that either client has written are read here, and their parts are encoded to the same bytes.
    func testVectors() throws {
        let folder = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent("../../../vectors").standardized
        if ProcessInfo.processInfo.environment["HISTORY_VECTORS"] == "write" {
            try encoded(vector()).write(to: folder.appendingPathComponent("history-swift.json"))
        }
        for name in ["history-typescript.json", "history-swift.json"] {
            let vector = try JSONDecoder().decode(Vector.self, from: Data(contentsOf: folder.appendingPathComponent(name)))
            let message = try XCTUnwrap(HistoryMessage(plaintext: Data(count: 16) + vector.message), name)
            let parts = try XCTUnwrap(message.parts)
            try HistoryMessage.check(parts, entries: message.entries ?? 0, seq: vector.seq, mostBytes: HistoryBounds.bundle)
            var all: [HistoryEntry] = []
            for (i, part) in parts.enumerated() {
                XCTAssertEqual(hexadecimal(sha256(vector.parts[i])), part.sha256)
                let plain = try FileCipher.open(
                    vector.parts[i], key: XCTUnwrap(data(ofBase64url: part.key)), nonce: XCTUnwrap(data(ofBase64url: part.nonce)),
                    boundTo: HistoryPart.boundTo(vector.convo, message.id, i + 1)
                )
                let entries = try part.decode(plain)
                XCTAssertEqual(HistoryPart.plaintext(entries.map(\.bytes)), plain, name)
                all += entries
            }
            XCTAssertEqual(all, vector.entries.map { message in
                HistoryEntry(
                    seq: message.seq, messageId: message.id, sender: DID(message.sender), createdAt: message.createdAt,
                    digest: bytes(ofHexadecimal: message.digest), relayed: message.relayed, embedUri: message.embedUri.isEmpty ? nil : message.embedUri,
                    plaintext: message.plaintext
                )
            }, name)
            XCTAssertEqual(all.count, 5)
        }
    }

    private func vector() throws -> Vector {
        let bundle = HistoryMessage.newID()
        let messages = (1...5).map { i in
            Vector.Message(
                seq: i * 3, id: "0192f3a4-0000-7000-8000-00000000000\(i)", sender: "did:plc:person\(i)", createdAt: 1_767_225_600_000 + i,
                digest: String(repeating: "0\(i)", count: 32), relayed: i == 2, embedUri: i == 3 ? "mlsd:attachment/0192f3a4" : "",
                plaintext: i == 4 ? Data("short".utf8) : Data("0123456789abcdef".utf8) + Data("hello \(i), from Swift: grüezi 👋".utf8)
            )
        }
        var (parts, ciphertexts): ([HistoryPart], [Data]) = ([], [])
        for (i, chunk) in [messages[..<2], messages[2...]].enumerated() {
            let entries = chunk.map {
                HistoryEntry(
                    seq: $0.seq, messageId: $0.id, sender: DID($0.sender), createdAt: $0.createdAt, digest: bytes(ofHexadecimal: $0.digest),
                    relayed: $0.relayed, embedUri: $0.embedUri.isEmpty ? nil : $0.embedUri, plaintext: $0.plaintext
                )
            }
            let file = try SealedFile(HistoryPart.plaintext(entries.map(\.bytes)), boundTo: HistoryPart.boundTo(Self.convo, bundle, i + 1))
            ciphertexts.append(file.ciphertext)
            parts.append(HistoryPart(
                id: "attachment-\(i + 1)", key: file.key, nonce: file.nonce, sha256: file.sha256, size: file.ciphertext.count, entries: entries.count,
                from: entries[0].seq, to: entries[entries.count - 1].seq
            ))
        }
        let message = HistoryMessage.bundle(id: bundle, request: HistoryMessage.newID(), parts: parts)
        return Vector(convo: Self.convo, seq: 20, message: Data(try message.plaintext().dropFirst(16)), parts: ciphertexts, entries: messages)
    }

    /// AES-256-GCM agrees with a known answer: the empty plaintext under the zero key and nonce.
    func testCipher() throws {
        let sealed = try FileCipher.seal(Data(), key: Data(count: 32), nonce: Data(count: 12), boundTo: Data())
        XCTAssertEqual(hexadecimal(sealed), "530f8afbc74536b9a963b4f1c4cb738b")
        let one = try FileCipher.seal(Data(count: 16), key: Data(count: 32), nonce: Data(count: 12), boundTo: Data())
        XCTAssertEqual(hexadecimal(one), "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919")
        XCTAssertEqual(try FileCipher.open(one, key: Data(count: 32), nonce: Data(count: 12), boundTo: Data()), Data(count: 16))
        XCTAssertThrowsError(try FileCipher.open(one, key: Data(count: 32), nonce: Data(count: 12), boundTo: Data([1])))
    }

    // MARK: Against a real server

    /// mlsd-dev at MLSD_DEV_URL: two devices of one account, whose MLS is fake with true headers.
    func testRealServer() async throws {
        guard let text = ProcessInfo.processInfo.environment["MLSD_DEV_URL"], let url = URL(string: text) else {
            throw XCTSkip("MLSD_DEV_URL names no mlsd-dev: use check.sh")
        }
        let dev = DevServer(url)
        let account = try await dev.accounts(1)[0]
        let service = Service(dev.route(account))
        let group = FileCipher.random(16)
        let input = CreateConvo.Input(
            cipherSuite: "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", groupId: group.hexadecimal, currentEpoch: 0
        )
        let convo = try await service.call(CreateConvo.self, input).id
        let (oldDevice, newDevice) = (hexadecimal(FileCipher.random(32)), hexadecimal(FileCipher.random(32)))
        let (storage, other) = (MemoryStorage(), MemoryStorage())
        try await storage.write(firstValues(convo: convo, groupID: group, device: oldDevice))
        let giver = try await Messenger(account: account, service: service, accounts: UncheckedAccounts(), storage: storage) { try FakeMLS($0, device: oldDevice, seed: 1) }
        try await giver.start(listening: false)
        let attachments = Attachments(service: service)
        let plains = (0..<3).map { i in Data((0..<1_500_000).map { UInt8(truncatingIfNeeded: $0 &* 7 &+ i) }) }
        var pointers: [FilePointer] = []
        for plain in plains {
            pointers.append(try await attachments.upload(SealedFile(plain), to: convo))
            try await giver.send(encoded(pointers.last), to: convo, embedUri: pointers.last?.uri)
        }
        for i in 3..<100 { try await giver.send(Data("message \(i)".utf8), to: convo) }
        for write in await giver.outbox.pending { _ = try await giver.outbox.finished(write.id) }
        _ = try await service.call(SubmitCommit.self, .init(commit: Bytes(FakeMLS.message(3, group, 0, FileCipher.random(16))), convoId: convo))
        let mls = try FakeMLS([:], device: newDevice, seed: 2)
        _ = try await mls.join(welcome: FakeMLS.state(group, 1), if: { _ in })
        var values = try await mls.takeChanges()
        let thread = MLSDelivery.Thread(convoId: convo, groupId: group, entered: 1)
        values[thread.name] = try encoded(thread)
        await other.write(values)
        let asker = try await Messenger(account: account, service: service, accounts: UncheckedAccounts(), storage: other) { try FakeMLS($0, device: newDevice, seed: 2) }
        try await asker.start(listening: false)
        try await asker.sync(convo)
        let write = try await asker.requestHistory(of: convo)
        for write in await asker.outbox.pending { _ = try await asker.outbox.finished(write.id) }
        try await giver.sync(convo)
        let database = Database()
        await database.save(try await giver.inbox(convo))
        let bundle = try await giver.agree(to: write, in: convo)
        try await giver.makeBundle(bundle) { await database.page($0, $1) }
        for write in await giver.outbox.pending { _ = try await giver.outbox.finished(write.id) }
        try await asker.sync(convo)
        let done = try await asker.importHistory(bundle, in: convo) { await database.store($0) }
        XCTAssertEqual([done.imported, done.known], [100, 0])
        let imported = await database.imported.values.sorted { $0.entry.seq < $1.entry.seq }
        XCTAssertEqual(imported.dropFirst(3).map { String(decoding: $0.entry.plaintext, as: UTF8.self) }, (3..<100).map { "message \($0)" })
        for (one, plain) in zip(imported, plains) {
            let pointer = try JSONDecoder().decode(FilePointer.self, from: one.entry.plaintext)
            XCTAssertEqual(one.entry.embedUri, pointer.uri)
            let got = try await attachments.download(pointer, from: convo)
            XCTAssertEqual(got, plain)
        }
        await giver.stop()
        await asker.stop()
    }
}
