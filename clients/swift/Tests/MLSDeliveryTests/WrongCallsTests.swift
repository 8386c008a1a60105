import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// No write blocks the outbox: wrong arguments are refused before anything is stored, and what the
/// server refuses, or what MLS cannot make, lets the writes behind it pass.
final class WrongCallsTests: XCTestCase {
    static let convo = "0192f3a4-aaaa-7bbb-8ccc-000000000001"
    static let other = "0192f3a4-aaaa-7bbb-8ccc-000000000002"
    static let unknown = "0192f3a4-aaaa-7bbb-8ccc-00000000ffff"
    static let nobody = DID("did:plc:no such person")
    static let longName = Defs.ConvoMetadata(name: String(repeating: "n", count: 5000))
    static let offline: ModelServer.Faults = {
        var faults = ModelServer.Faults()
        faults.lostRequest = 1
        return faults
    }()

    static func group(_ convo: String) -> Data { Data(hexadecimal: convo.replacingOccurrences(of: "-", with: ""))! }

    static func begin(seed: UInt64 = 1, with others: [Leaf] = []) async throws -> (ModelServer, MemoryStorage) {
        let (server, storage) = (ModelServer(seed: seed), MemoryStorage())
        for convo in [convo, other] {
            await server.addConvo(convo)
            try await storage.write(firstValues(convo: convo, groupID: group(convo), with: others))
        }
        return (server, storage)
    }

    static func messenger(_ server: ModelServer, _ storage: MemoryStorage, _ life: Life = Life(seed: 0), seed: UInt64 = 1) async throws -> Messenger {
        let service = Service(
            .direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: MortalTransport(server, life)
        )
        return try await Messenger(
            account: OutboxTests.account, service: service, accounts: UncheckedAccounts(), storage: MortalStorage(storage, life), surroundings: simulated(seed: seed, life: life)
        ) { try FakeMLS($0, device: "phone", seed: seed) }
    }

    static func refusal(_ write: Write) -> ServiceError? { if case .refused(let error) = write.state { error } else { nil } }

    typealias Call = @Sendable (Messenger) async throws -> Void

    /// Calls with wrong arguments. All of them throw to the caller.
    static let wrongCalls: [(name: String, call: Call)] = [
        ("create with no DID", { try await $0.create(with: [nobody]) }),
        ("create with a long name", { try await $0.create(with: [], metadata: longName) }),
        ("create with 101 members", { try await $0.create(with: (0..<101).map { DID("did:plc:p\($0)") }) }),
        ("send with no URI", { try await $0.send(Data("x".utf8), to: convo, embedUri: "not a:uri") }),
        ("send with a long type", { try await $0.send(Data("x".utf8), to: convo, embedType: String(repeating: "t", count: 257)) }),
        ("send to nonsense", { try await $0.send(Data("x".utf8), to: "nonsense") }),
        ("add no DID", { _ = try await $0.add([nobody], to: convo) }),
        ("add nobody", { _ = try await $0.add([], to: convo) }),
        ("add to nonsense", { _ = try await $0.add([DID("did:plc:bob")], to: "nonsense") }),
        ("remove no DID", { _ = try await $0.remove(nobody, from: convo) }),
        ("rotate nonsense", { _ = try await $0.rotate("nonsense") }),
        ("make nobody an admin", { try await $0.promoteAdmin(convo, nobody) }),
        ("make an admin of nonsense", { try await $0.promoteAdmin("nonsense", DID("did:plc:bob")) }),
        ("make no admin of nonsense", { try await $0.demoteAdmin("nonsense", DID("did:plc:bob")) }),
        ("a long name", { try await $0.updateConvo(convo, name: longName.name) }),
        ("a name of nonsense", { try await $0.updateConvo("nonsense", name: "a name") }),
        ("leave nonsense", { try await $0.leave("nonsense") }),
        ("accept nonsense", { try await $0.accept("nonsense") }),
        ("join nonsense", { try await $0.join("nonsense") }),
        ("read nonsense", { try await $0.sync("nonsense") }),
        ("the group code of nonsense", { _ = try await $0.groupCode(of: "nonsense") }),
        (
            "a message of one's own making",
            { phone in
                let input = SendMessage.Input(ciphertext: Bytes(Data()), convoId: convo, epoch: 0, senderDid: phone.account, embedUri: "not a:uri")
                try await phone.outbox.add(Draft(SendMessage.self, input, lane: convo))
            }
        ),
    ]

    /// Before, each of these was stored or asked the service, without which it never ended; `leave`
    /// and `accept` of nonsense stayed in the outbox for ever.
    func testWrongArgumentsThrowAndStoreNothing() async throws {
        let (server, storage) = try await Self.begin()
        await server.set(Self.offline)
        let phone = try await Self.messenger(server, storage)
        try await phone.start(listening: false)
        let before = await storage.values
        for (name, call) in Self.wrongCalls {
            do {
                try await call(phone)
                XCTFail("\(name): no error")
            } catch {
                XCTAssertTrue(error is InvalidInput || error is MessengerError, "\(name): \(error)")
                print("\(name): \(error)")
            }
        }
        let after = await storage.values
        XCTAssertEqual(after, before)
        await server.set(.init())
        let valid = try await phone.send(Data("valid".utf8), to: Self.convo)
        _ = try await phone.outbox.finished(valid.id)
        let texts = try await server.texts(Self.convo)
        XCTAssertEqual(texts, ["valid"])
        await phone.stop()
    }

    /// What only the server can know becomes refused, and everything behind it arrives, also after
    /// a restart.
    func testRefusedWritesLetOthersPass() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        var writes: [Write] = []
        writes.append(try await phone.send(Data("no attachment".utf8), to: Self.convo, embedUri: ModelServer.noAttachment))
        writes.append(try await phone.leave(Self.unknown)) // before: held for ever, in a lane of its own
        try await phone.accept(Self.unknown)
        let accepted = await phone.outbox.pending.first { $0.nsid == AcceptConvo.nsid }
        writes.append(try XCTUnwrap(accepted))
        let input = SendMessage.Input(ciphertext: Bytes(Data([1])), convoId: Self.convo, epoch: 0, senderDid: phone.account)
        writes.append(try await phone.outbox.add(Draft(SendMessage.self, input, lane: Self.convo)))
        let add = AddMembers.Input(convoId: Self.convo, didList: [phone.account], commit: Base64Text(FakeMLS.message(3, Self.group(Self.convo), 0, Data())))
        writes.append(try await phone.outbox.add(Draft(AddMembers.self, add, lane: "a lane of the app", object: Data())))
        try await phone.send(Data("behind".utf8), to: Self.convo)
        try await phone.start(listening: false)
        for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
        let texts = try await server.texts(Self.convo)
        XCTAssertEqual(texts, ["behind"])
        await phone.stop()
        let next = try await Self.messenger(server, storage)
        let (refused, pending) = await (next.outbox.refused, next.outbox.pending)
        XCTAssertEqual(refused.map(\.id), writes.map(\.id))
        XCTAssertEqual(refused.compactMap { Self.refusal($0)?.name.rawValue }, ["InvalidAsset", "ConvoNotFound", "ConvoNotFound", "InvalidMessage", "AlreadyMember"])
        XCTAssertEqual(pending, [])
    }

    /// A message whose epoch is over and that MLS cannot encrypt again. Before: tried for ever, and
    /// with it all behind it.
    func testWhatMLSCannotMakeIsRefused() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        let once = try await phone.send(Data("once: a".utf8), to: Self.convo)
        try await phone.send(Data("behind".utf8), to: Self.convo)
        await server.commit(Self.convo)
        try await phone.start(listening: false)
        let done = try await phone.outbox.finished(once.id)
        XCTAssertEqual(Self.refusal(done)?.message, "it cannot be made anew: cannotEncrypt")
        for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
        let texts = try await server.texts(Self.convo)
        XCTAssertEqual(texts, ["behind"])
        await phone.stop()
    }

    /// An accepted commit that MLS cannot apply. Before: its lane was held, and again after each
    /// start.
    func testWhatMLSCannotApplyIsAccepted() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        let fake = await phone.mls as? FakeMLS
        await fake?.failToConfirm()
        let rotated = try await phone.rotate(Self.convo)
        try await phone.start(listening: false)
        let done = try await phone.outbox.finished(XCTUnwrap(rotated).id)
        XCTAssertNil(Self.refusal(done))
        try await expectToWork(phone, server, ["behind"])
    }

    /// A convo that does not come back. Before: its lane was held and made good in turn, for ever.
    func testLostConvo() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        await server.lose(Self.convo)
        try await phone.start(listening: false)
        let lost = [try await phone.send(Data("a".utf8), to: Self.convo), try await phone.send(Data("b".utf8), to: Self.convo)]
        let fine = try await phone.send(Data("c".utf8), to: Self.other)
        for write in lost + [fine] { _ = try await phone.outbox.finished(write.id) }
        let refused = await phone.outbox.refused
        XCTAssertEqual(refused.map(\.id), lost.map(\.id))
        let texts = try await server.texts(Self.other)
        XCTAssertEqual(texts, ["c"])
        await phone.stop()
    }

    /// MLS stages one commit. Before, the second call staged its own over the first one, which was
    /// then accepted.
    func testASecondCommitWaits() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        let first = try await phone.rotate(Self.convo)
        async let second = phone.rotate(Self.convo)
        try await phone.start(listening: false)
        _ = try await phone.outbox.finished(XCTUnwrap(first).id)
        let waited = try await second
        let last = try XCTUnwrap(waited)
        XCTAssertEqual(last.epoch, 1)
        _ = try await phone.outbox.finished(last.id)
        let epoch = await server.epoch(Self.convo)
        XCTAssertEqual(epoch, 2)
        await phone.stop()
    }

    // MARK: Discarding

    func testDiscardBeforeTheFirstAttempt() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        let first = try await phone.send(Data("no".utf8), to: Self.convo)
        try await phone.send(Data("yes".utf8), to: Self.convo)
        let gone = try await phone.outbox.discard(first.id)
        XCTAssertEqual(gone.flatMap(Self.refusal)?.message, "discarded by the app")
        let again = try await phone.outbox.discard(first.id) // without effect
        XCTAssertEqual(again, gone)
        try await phone.start(listening: false)
        for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
        let texts = try await server.texts(Self.convo)
        XCTAssertEqual(texts, ["yes"])
        try await phone.outbox.dismiss([first.id])
        let refused = await phone.outbox.refused
        XCTAssertEqual(refused, [])
        await phone.stop()
    }

    /// The message arrived, and its answer did not. It is read as the device's own, and not sent
    /// again.
    func testDiscardAfterALostAnswer() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        try await loseAnswers(of: phone, server) { try await phone.send(Data("sent".utf8), to: Self.convo) }
        try await phone.sync(Self.convo)
        let inbox = try await phone.inbox(Self.convo)
        XCTAssertEqual(inbox.map(\.content), [.own(Data("sent".utf8))])
        try await expectToWork(phone, server, ["sent", "behind"])
    }

    /// The same with a commit: the device notices in the log that it counts.
    func testDiscardOfACommitThatArrived() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        try await loseAnswers(of: phone, server) { try await phone.rotate(Self.convo) }
        try await expectToWork(phone, server, ["behind"])
        let epoch = await server.epoch(Self.convo)
        XCTAssertEqual(epoch, 1)
    }

    /// An attempt at a discarded commit arrives late, when another one is staged: the device has to
    /// enter the group again.
    func testDiscardedCommitArrivesLate() async throws {
        let (server, storage) = try await Self.begin()
        let phone = try await Self.messenger(server, storage)
        let rotated = try await phone.rotate(Self.convo)
        let late = try XCTUnwrap(rotated)
        try await phone.outbox.discard(late.id)
        let rotatedAgain = try await phone.rotate(Self.convo)
        let second = try XCTUnwrap(rotatedAgain)
        _ = try await phone.service.post(late.nsid, body: late.body)
        try await phone.start(listening: false)
        let done = try await phone.outbox.finished(second.id)
        XCTAssertNil(Self.refusal(done))
        try await expectToWork(phone, server, ["behind"])
    }

    /// Makes a write whose answers are lost, and discards it.
    private func loseAnswers(of phone: Messenger, _ server: ModelServer, _ make: () async throws -> Write?) async throws {
        let events = await phone.outbox.events()
        let made = try await make()
        let write = try XCTUnwrap(made)
        var faults = ModelServer.Faults()
        faults.lostAnswer = 1
        await server.set(faults)
        try await phone.start(listening: false)
        for await event in events { if case .waiting(write.lane, _, _) = event { break } }
        let gone = try await phone.outbox.discard(write.id)
        XCTAssertEqual(gone.flatMap(Self.refusal)?.message, "discarded by the app")
        await server.set(.init())
    }

    private func expectToWork(_ phone: Messenger, _ server: ModelServer, _ want: [String]) async throws {
        let behind = try await phone.send(Data("behind".utf8), to: Self.convo)
        let done = try await phone.outbox.finished(behind.id)
        XCTAssertNil(Self.refusal(done))
        let texts = try await server.texts(Self.convo)
        XCTAssertEqual(texts, want)
        await phone.stop()
    }
}
