import TestSupport
import XCTest

@testable import MLSDelivery

/// The property of the outbox: of random calls, right and wrong, through every fault and many
/// kills, each one settles or its write is refused, and each message that the server can take is
/// there once.
final class RandomCallsTests: XCTestCase {
    private static let calls = 400
    private static let rights = [WrongCallsTests.convo, WrongCallsTests.other]

    private enum Call {
        case send(to: String, embedUri: String? = nil)
        /// A message that can only be encrypted in the group's first epoch.
        case sendOnce(to: String)
        case wrong(Int)
        case commit(String, add: DID?)
        case create([DID])
        /// Of a convo that nobody knows.
        case leave, accept
        case garbage(String)
        case discard
    }

    private static func draw(_ random: inout Random, _ i: Int) -> Call {
        let convo = rights.randomElement(using: &random)!
        switch Int.random(in: 0..<20, using: &random) {
        case 0..<8: return .send(to: convo)
        case 8: return .send(to: convo, embedUri: ModelServer.noAttachment)
        case 9: return .sendOnce(to: convo)
        case 10..<14: return .wrong(Int.random(in: 0..<WrongCallsTests.wrongCalls.count, using: &random))
        case 14: return .commit(convo, add: nil)
        case 15: return .commit(convo, add: random.once(in: 2) ? DID("did:plc:p\(i)") : DID(ModelServer.caller))
        case 16: return .create(random.once(in: 3) ? [DID(ModelServer.withoutKeyPackages)] : [DID("did:plc:p\(i)")])
        case 17: return random.once(in: 2) ? .leave : .accept
        case 18: return .garbage(convo)
        default: return .discard
        }
    }

    /// What the test knows of the calls, over all lives.
    private actor Book {
        var next = 0
        var settled = 0
        var wrongAccepted: [String] = []
        var discarded: Set<String> = []

        func take() -> Int? {
            guard next < RandomCallsTests.calls else { return nil }
            next += 1
            return next - 1
        }
        func settle() { settled += 1 }
        func accept(_ name: String) { wrongAccepted.append(name) }
        func discard(_ text: String) { discarded.insert(text) }
    }

    /// The record by which a message is stored: what has it must arrive.
    private static func record(_ i: Int) -> String { "app/\(i)" }

    private static func make(_ call: Call, _ i: Int, _ phone: Messenger, _ book: Book) async throws {
        switch call {
        case .send(let convo, let uri):
            let kind = uri == nil ? "right" : "refused"
            try await phone.send(Data("\(i)".utf8), to: convo, embedUri: uri, with: [record(i): Data(kind.utf8)])
        case .sendOnce(let convo):
            do { try await phone.send(Data("once: \(i)".utf8), to: convo, with: [record(i): Data("once".utf8)]) } catch FakeMLS.Failure.cannotEncrypt {}
        case .wrong(let which):
            let (name, call) = wrong(which)
            do {
                try await call(phone)
                await book.accept(name)
            } catch is InvalidInput {} catch is MessengerError {}
        case .commit(let convo, nil): _ = try await phone.rotate(convo)
        case .commit(let convo, let member?): do { _ = try await phone.add([member], to: convo) } catch is OwnDeviceError {}
        case .create(let members): do { try await phone.create(with: members) } catch MessengerError.noKeyPackage {}
        case .leave: try await phone.leave(WrongCallsTests.unknown)
        case .accept: try await phone.accept(WrongCallsTests.unknown)
        case .garbage(let convo):
            let input = SendMessage.Input(ciphertext: Bytes(Data([1])), convoId: convo, epoch: 0, senderDid: phone.account)
            try await phone.outbox.add(Draft(SendMessage.self, input, lane: convo))
        case .discard:
            guard let write = await phone.outbox.pending.first else { return }
            await book.discard(String(decoding: write.note, as: UTF8.self))
            try await phone.outbox.discard(write.id)
        }
    }

    private static func wrong(_ which: Int) -> (String, WrongCallsTests.Call) { WrongCallsTests.wrongCalls[which] }

    /// One life: three callers at a time, until all calls are made and nothing is pending, or the
    /// app is killed.
    private static func live(_ phone: Messenger, _ life: Life, _ calls: [Call], _ book: Book) async throws {
        let events = await phone.outbox.events()
        let work = Task {
            try await phone.start(listening: false)
            try await withThrowingTaskGroup(of: Void.self) { callers in
                for _ in 0..<3 {
                    callers.addTask {
                        while let i = await book.take() {
                            do { try await make(calls[i], i, phone, book) } catch {
                                guard await life.isOver else { throw error }
                            }
                            await book.settle() // also if a kill has ended it
                            if await life.isOver { return }
                        }
                    }
                }
                try await callers.waitForAll()
            }
            for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
        }
        // After a kill nothing answers any more.
        let watch = Task { for await _ in events { if await life.isOver { work.cancel() } } }
        let limit = Task { // what is blocked fails the test
            try await Task.sleep(nanoseconds: 300_000_000_000)
            work.cancel()
        }
        let outcome = await work.result
        watch.cancel()
        limit.cancel()
        await phone.stop()
        if case .failure(let error) = outcome, await !life.isOver { throw error }
    }

    func testRandomCalls() async throws {
        let runs = Int(ProcessInfo.processInfo.environment["MLSD_SWIFT_RUNS"] ?? "") ?? 3
        for seed in 1...UInt64(runs) {
            let (server, storage) = try await WrongCallsTests.begin(seed: seed)
            await server.set(.all)
            var random = Random(seed: seed)
            let calls = (0..<Self.calls).map { Self.draw(&random, $0) }
            let book = Book()
            var lives = 0
            var over = true
            while over {
                lives += 1
                let life = Life(seed: seed &+ UInt64(lives), times: 100)
                let phone = try await WrongCallsTests.messenger(server, storage, life, seed: seed &* 1000 &+ UInt64(lives))
                try await Self.live(phone, life, calls, book)
                over = await life.isOver
            }
            try await check(seed, lives, server, storage, book)
        }
    }

    private func check(_ seed: UInt64, _ lives: Int, _ server: ModelServer, _ storage: MemoryStorage, _ book: Book) async throws {
        let phone = try await WrongCallsTests.messenger(server, storage)
        let (pending, refused) = await (phone.outbox.pending, phone.outbox.refused)
        var texts: [String] = []
        for convo in Self.rights { texts += try await server.texts(convo) }
        var counts: [String: Int] = [:]
        for text in texts { counts[text, default: 0] += 1 }
        let gone = Set(refused.map { String(decoding: $0.note, as: UTF8.self) })
        let discarded = await book.discarded
        var lost: [String] = []
        var sent = 0
        for (name, kind) in await storage.values where name.hasPrefix("app/") {
            let number = String(name.dropFirst(4))
            switch String(decoding: kind, as: UTF8.self) {
            case "right":
                sent += 1
                if counts[number] == nil && !discarded.contains(number) { lost.append(number) }
            case "refused": XCTAssertTrue(counts[number] == nil && gone.contains(number), "\(number) is neither refused nor blocked")
            default: if counts["once: " + number] == nil && !gone.contains("once: " + number) { lost.append(number) }
            }
        }
        let doubled = counts.filter { $0.value > 1 }.keys.sorted()
        XCTAssertEqual(lost, [], "seed \(seed)")
        XCTAssertEqual(doubled, [], "seed \(seed)")
        XCTAssertEqual(pending.map(\.nsid), [], "seed \(seed)")
        let (settled, accepted) = await (book.settled, book.wrongAccepted)
        XCTAssertEqual(settled, Self.calls, "seed \(seed)")
        XCTAssertEqual(accepted, [], "seed \(seed)")
        for name in ["InvalidAsset", "ConvoNotFound", "InvalidMessage", ""] {
            XCTAssertTrue(refused.contains { WrongCallsTests.refusal($0)?.name.rawValue == name }, "nothing was refused with \(name), seed \(seed)")
        }
        print("seed \(seed): \(settled) calls, \(lives - 1) restarts, \(sent) messages, \(refused.count) refused, \(discarded.count) discarded: lost \(lost.count), doubled \(doubled.count), blocked \(pending.count)")
    }
}
