import TestSupport
import XCTest

@testable import MLSDelivery

/// T1, T2: whose key a device has says its account, and nothing is encrypted for a device that is not known.
final class DevicesTests: XCTestCase {
    private let convo = WrongCallsTests.convo
    static let (alice, bob, carol) = (DID(ModelServer.caller), DID("did:plc:bob"), DID("did:plc:carol"))
    static let bobsPhone = FakeMLS.leaf(of: bob.rawValue)
    static let another = FakeMLS.leaf(of: ModelServer.caller)

    /// A phone of Alice, which is alone in its convos, and accounts.
    struct Scene {
        let server: ModelServer
        let storage: MemoryStorage
        let accounts = MemoryAccounts(DevicesTests.alice)

        init() async throws {
            (server, storage) = try await WrongCallsTests.begin()
            try await list(FakeMLS.leaf(of: ModelServer.caller, "phone"))
        }

        func list(_ leaf: Leaf) async throws {
            try await accounts.as(leaf.account).list(ListedDevice(key: leaf.signatureKey, cipherSuite: "suite"))
        }

        func open(
            seed: UInt64 = 1, asking other: (any Accounts)? = nil, decide: @escaping @Sendable (Doubt) async -> Bool = { _ in false }
        ) async throws -> Messenger {
            let service = Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: server)
            return try await Messenger(
                account: DevicesTests.alice, service: service, accounts: other ?? accounts, decide: decide, storage: storage,
                surroundings: simulated(seed: seed)
            ) { try FakeMLS($0, device: "phone", seed: seed) }
        }
    }

    static func changes(_ phone: Messenger) async throws -> [DeviceNews.Change] {
        try await phone.news().compactMap { if case .device(let news) = $0.content { news.change } else { nil } }
    }

    static func sent(_ phone: Messenger) async throws {
        for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
    }

    /// The service hands out a KeyPackage that it has made in Bob's name, or Carol's for Bob's.
    func testT1AKeyPackageThatTheAccountDoesNotListIsNotAdded() async throws {
        let scene = try await Scene()
        try await scene.list(Self.bobsPhone)
        try await scene.list(FakeMLS.leaf(of: Self.carol.rawValue))
        let phone = try await scene.open()
        for wrong in [FakeMLS.leaf(of: Self.bob.rawValue, "the server's"), FakeMLS.leaf(of: Self.carol.rawValue)] {
            await scene.server.give(wrong, for: Self.bob.rawValue)
            for call in [{ _ = try await phone.create(with: [Self.bob]) }, { _ = try await phone.add([Self.bob], to: self.convo) }] as [() async throws -> Void] {
                do {
                    try await call()
                    XCTFail("\(wrong) was added")
                } catch { XCTAssertEqual(error as? MessengerError, .noKeyPackage(Self.bob)) }
            }
        }
        await scene.server.give(Self.bobsPhone, for: Self.bob.rawValue)
        try await phone.start(listening: false)
        let added = try await phone.add([Self.bob], to: convo)
        _ = try await phone.outbox.finished(XCTUnwrap(added).id)
        let members = try await phone.mls.members(of: WrongCallsTests.group(convo))
        XCTAssertEqual(members, [FakeMLS.leaf(of: ModelServer.caller, "phone"), Self.bobsPhone])
        await phone.stop()
    }

    /// Bob's PDS is away while Alice invites him: the call waits for it.
    func testT1AnInvitationWaitsForTheAccount() async throws {
        let scene = try await Scene()
        try await scene.list(Self.bobsPhone)
        await scene.accounts.setAway(Self.bob)
        let phone = try await scene.open()
        try await phone.start(listening: false)
        async let created = phone.create(with: [Self.bob])
        while await scene.accounts.questions < 2 { await Task.yield() }
        let pending = await phone.outbox.pending
        XCTAssertEqual(pending, [])
        await scene.accounts.setAway(Self.bob, false)
        let write = try await phone.outbox.finished(created.id)
        XCTAssertNotNil(try write.answer(of: CreateConvo.self))
        let claims = await scene.server.claims
        XCTAssertEqual(claims, 1)
        await phone.stop()
    }

    /// A device that Bob does not list enters his account's place: it is taken out, and the message that waited for that
    /// is encrypted without it.
    func testT2ADeviceThatTheAccountDoesNotListIsTakenOut() async throws {
        let scene = try await Scene()
        try await scene.list(Self.bobsPhone)
        try await scene.server.commit(.init(add: [Self.bobsPhone]), to: convo, by: Self.another)
        let liar = FakeMLS.leaf(of: Self.bob.rawValue + "#x", "the server's")
        try await scene.server.commit(.init(enters: liar), to: convo, by: liar)
        let phone = try await scene.open()
        try await phone.readToItsEnd(convo)
        try await phone.send(Data("a secret".utf8), to: convo)
        let (waits, before) = try await (phone.outbox.pending.first { $0.nsid == SendMessage.nsid }?.unsealed, scene.server.texts(convo))
        XCTAssertEqual(waits, true)
        XCTAssertEqual(before, [])
        try await phone.start(listening: false)
        try await Self.sent(phone)
        let log = await scene.server.log(convo)
        XCTAssertEqual(log.map(\.isCommit), [true, true, true, false])
        let texts = try await scene.server.texts(convo)
        XCTAssertEqual(texts, ["a secret"])
        let members = try await phone.mls.members(of: WrongCallsTests.group(convo))
        XCTAssertEqual(members, [FakeMLS.leaf(of: ModelServer.caller, "phone"), Self.bobsPhone])
        let changes = try await Self.changes(phone)
        for change in [.entered, .unlisted, .left] as [DeviceNews.Change] { XCTAssertTrue(changes.contains(change), "\(changes)") }
        await phone.stop()
    }

    /// T2: the service enters by external commit with a stolen key whose record is deleted already, while the cached answer
    /// still counts: the account is asked before the next message. While it is away, the device stays listed.
    func testT2TheServiceEntersByExternalCommitWithAStolenKeyWhoseRecordIsDeletedWhileTheCachedAnswerCounts() async throws {
        let scene = try await Scene()
        try await scene.list(Self.bobsPhone)
        try await scene.server.commit(.init(add: [Self.bobsPhone]), to: convo, by: Self.another)
        let phone = try await scene.open()
        try await phone.sync(convo)
        try await scene.server.commit(.init(enters: Self.bobsPhone), to: convo, by: Self.bobsPhone)
        await scene.accounts.setAway(Self.bob)
        try await phone.sync(convo)
        let known = try await phone.device(Self.bobsPhone).state
        XCTAssertEqual(known, .listed)

        await scene.accounts.setAway(Self.bob, false)
        await scene.accounts.hide(Self.bobsPhone.signatureKey, of: Self.bob)
        try await scene.server.commit(.init(enters: Self.bobsPhone), to: convo, by: Self.bobsPhone)
        try await phone.readToItsEnd(convo)
        try await phone.send(Data("a secret".utf8), to: convo)
        let isUnsealed = await phone.outbox.pending.first { $0.nsid == SendMessage.nsid }?.unsealed
        XCTAssertEqual(isUnsealed, true)
        try await phone.start(listening: false)
        try await Self.sent(phone)
        let members = try await phone.mls.members(of: WrongCallsTests.group(convo))
        XCTAssertEqual(members, [FakeMLS.leaf(of: ModelServer.caller, "phone")])
        let log = await scene.server.log(convo)
        XCTAssertEqual(log.map(\.isCommit), [true, true, true, true, false]) // it was taken out before the message
        let changes = try await Self.changes(phone)
        XCTAssertTrue(changes.contains(.unlisted), "\(changes)")
        await phone.stop()
    }

    /// Bob's PDS is away when he is added: messages wait, also over a kill, and arrive in their order.
    func testT2MessagesWaitWhileAnAccountIsAway() async throws {
        let scene = try await Scene()
        try await scene.list(Self.bobsPhone)
        await scene.accounts.setAway(Self.bob)
        try await scene.server.commit(.init(add: [Self.bobsPhone]), to: convo, by: Self.another)
        let first = try await scene.open()
        try await first.sync(convo)
        let events = await first.outbox.events()
        for text in ["one", "two"] { try await first.send(Data(text.utf8), to: convo) }
        try await first.start(listening: false)
        for await event in events { if case .waiting(convo, _, _) = event { break } }
        await first.stop()
        let before = try await scene.server.texts(convo)
        XCTAssertEqual(before, [])
        let heard = try await Self.changes(first)
        XCTAssertEqual(heard.filter { $0 == .waiting }, [.waiting])

        let second = try await scene.open(seed: 2)
        try await second.start(listening: false)
        await scene.accounts.setAway(Self.bob, false)
        try await Self.sent(second)
        let after = try await scene.server.texts(convo)
        XCTAssertEqual(after, ["one", "two"])
        let changes = try await Self.changes(second)
        XCTAssertTrue(changes.contains(.listed), "\(changes)")
        await second.stop()
    }

    /// A message of a device that is not known yet is withheld, and comes once it is: with what it says of history.
    func testT2MessagesOfUnknownDevicesAreWithheld() async throws {
        let scene = try await Scene()
        await scene.accounts.setAway(Self.bob)
        try await scene.server.commit(.init(add: [Self.bobsPhone]), to: convo, by: Self.another)
        await scene.server.post(Data("I am Bob".utf8), to: convo, by: Self.bob.rawValue)
        let request = HistoryMessage.request(id: HistoryMessage.newID(), device: String(repeating: "a", count: 64), before: 9)
        await scene.server.post(try request.plaintext(), to: convo, by: Self.bob.rawValue)
        let phone = try await scene.open()
        try await phone.sync(convo)
        let before = try await phone.inbox(convo)
        XCTAssertEqual(before.map(\.content), [.commit, .withheld, .withheld])
        try await phone.taken(before)
        let requests = try await phone.historyRequests(of: convo)
        XCTAssertEqual(requests, [])
        try await scene.list(Self.bobsPhone)
        await scene.accounts.setAway(Self.bob, false)
        let again = try await scene.open(seed: 2) // a kill does not lose it
        try await again.sync(convo)
        let after = try await again.inbox(convo)
        XCTAssertEqual(after.map(\.content), [.message(Data("I am Bob".utf8)), .history])
        XCTAssertEqual(after.map(\.seq), [2, 3])
        let asks = try await again.historyRequests(of: convo).map(\.account)
        XCTAssertEqual(asks, [Self.bob])
        await phone.stop()
        await again.stop()
    }

    /// The person decides about a device that its account does not list: it is used, and not asked about again.
    func testT2APersonAcceptsADevice() async throws {
        let scene = try await Scene()
        try await scene.server.commit(.init(add: [Self.bobsPhone]), to: convo, by: Self.another)
        let asked = Asked()
        let phone = try await scene.open { doubt in
            await asked.add(doubt)
            return true
        }
        try await phone.start(listening: false)
        try await phone.sync(convo)
        try await phone.send(Data("hello".utf8), to: convo)
        try await Self.sent(phone)
        let log = await scene.server.log(convo)
        XCTAssertEqual(log.map(\.isCommit), [true, false])
        let doubts = await asked.doubts
        XCTAssertEqual(doubts, [Doubt(convoId: convo, account: Self.bob, key: Self.bobsPhone.signatureKey, why: .unlisted)])
        await phone.stop()
    }

    actor Asked {
        var doubts: [Doubt] = []
        func add(_ doubt: Doubt) { doubts.append(doubt) }
    }

    /// Carol enters by an external commit, and nobody in the group has added her: messages wait. A removal passes them.
    func testT2WhoNobodyHasAddedIsAskedAbout() async throws {
        let scene = try await Scene()
        let carols = FakeMLS.leaf(of: Self.carol.rawValue)
        try await scene.list(carols)
        try await scene.server.commit(.init(enters: carols), to: convo, by: carols)
        let phone = try await scene.open()
        let events = await phone.outbox.events()
        try await phone.sync(convo)
        try await phone.send(Data("not for Carol".utf8), to: convo)
        try await phone.start(listening: false)
        for await event in events { if case .waiting(convo, _, _) = event { break } }
        let before = try await scene.server.texts(convo)
        XCTAssertEqual(before, [])
        let changes = try await Self.changes(phone)
        XCTAssertTrue(changes.contains(.uninvited), "\(changes)")
        try await phone.remove(Self.carol, from: convo)
        try await Self.sent(phone)
        let log = await scene.server.log(convo)
        XCTAssertEqual(log.map(\.isCommit), [true, true, false])
        await phone.stop()
    }

    /// Asks about one account only when it is let, and counts the questions that are under way.
    actor Slow: Accounts {
        private let accounts: MemoryAccounts
        private let whom: DID?
        private var running = 0
        private(set) var most = 0
        private var isAllowed = false
        private var waiting: [CheckedContinuation<Void, Never>] = []
        private var asked: CheckedContinuation<Void, Never>?
        private var wasAsked = false

        init(_ accounts: MemoryAccounts, about whom: DID? = nil) { (self.accounts, self.whom) = (accounts, whom) }

        func allow() {
            isAllowed = true
            for one in waiting { one.resume() }
            waiting = []
        }

        func reached() async { if !wasAsked { await withCheckedContinuation { asked = $0 } } }

        func lists(_ key: Data, of account: DID) async throws -> Bool {
            running += 1
            most = max(most, running)
            defer { running -= 1 }
            if account == whom {
                wasAsked = true
                asked?.resume()
                asked = nil
                if !isAllowed { await withCheckedContinuation { waiting.append($0) } }
            }
            for _ in 0..<20 { await Task.yield() } // those who are asked at once are under way together
            return try await accounts.lists(key, of: account)
        }
        func devices(of account: DID) async throws -> [ListedDevice] { try await accounts.devices(of: account) }
        func hasEnded(_ account: DID) async throws -> Bool { try await accounts.hasEnded(account) }
        func list(_ device: ListedDevice) async throws { try await accounts.list(device) }
        func unlist(_ key: Data) async throws { try await accounts.unlist(key) }
    }

    /// A commit comes while a device is judged: its own devices are judged, and messages go on.
    func testT2AGroupThatChangesWhileItIsJudgedIsJudgedAnew() async throws {
        let scene = try await Scene()
        let carols = FakeMLS.leaf(of: Self.carol.rawValue)
        for leaf in [Self.bobsPhone, carols] { try await scene.list(leaf) }
        let accounts = Slow(scene.accounts, about: Self.bob)
        let convo = convo
        let phone = try await scene.open(asking: accounts)
        try await scene.server.commit(.init(add: [Self.bobsPhone]), to: convo, by: Self.another)
        async let first: Void = phone.sync(convo)
        await accounts.reached()
        try await scene.server.commit(.init(add: [carols]), to: convo, by: Self.another)
        await scene.server.post(Data("I am Carol".utf8), to: convo, by: Self.carol.rawValue)
        try await phone.readToItsEnd(convo)
        async let second: Void = phone.settled(convo)
        for _ in 0..<100 { await Task.yield() }
        await accounts.allow()
        _ = try await (first, second)
        let (clear, entries) = try await (phone.clear, phone.inbox(convo))
        XCTAssertEqual(clear, [convo])
        XCTAssertEqual(entries.map(\.content), [.commit, .commit, .message(Data("I am Carol".utf8))])
        let device = try await phone.device(carols)
        XCTAssertEqual(device.state, .listed)
        await phone.stop()
    }

    func testOfALargeGroupFewAccountsAreAskedAtOnce() async throws {
        let scene = try await Scene()
        let others = (0..<20).map { FakeMLS.leaf(of: "did:plc:other\($0)") }
        for leaf in others { try await scene.list(leaf) }
        try await scene.server.commit(.init(add: others), to: convo, by: Self.another)
        let accounts = Slow(scene.accounts)
        let phone = try await scene.open(asking: accounts)
        try await phone.sync(convo)
        let (most, clear) = await (accounts.most, phone.clear)
        XCTAssertEqual(clear, [convo])
        XCTAssertTrue(most > 1 && most <= 8, "\(most) at once")
        await phone.stop()
    }
}
