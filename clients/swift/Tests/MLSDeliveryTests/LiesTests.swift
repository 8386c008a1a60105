import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// A real service that lies (MLSD_LIAR_URL, which check.sh starts), by the numbers of the lies in
/// clients/typescript/test/support/lies.ts. The liar must read nothing, and the app must hear of it. T4, an old Welcome, is
/// in BindingTests: it needs a device that has last-resort KeyPackages alone.
final class LiesTests: XCTestCase {
    private static let patience: UInt64 = 60

    /// What a lie needs to know.
    private struct Lie: Encodable {
        var convo = ""
        var victim = ""
        var device = ""
        var member = ""
        var another = ""
    }

    /// A person's device.
    private struct Phone {
        let account: DID
        let messenger: Messenger
        let events: AsyncStream<MessengerEvent>

        /// Waits until the app hears this.
        func hears(_ what: @Sendable (MessengerEvent) -> Bool) async { for await event in events { if what(event) { return } } }
        func finds(_ what: Finding.What) async { await hears { if case .finding(let finding) = $0 { finding.what == what } else { false } } }
        func says(_ text: String, to convo: String) async throws {
            let write = try await messenger.send(Data(text.utf8), to: convo)
            _ = try await messenger.outbox.finished(write.id)
        }
    }

    private var base = URL(fileURLWithPath: "/")
    private var dev: DevServer { DevServer(base) }
    private var agent = ""

    override func setUp() async throws {
        let environment = ProcessInfo.processInfo.environment
        guard let text = environment["MLSD_LIAR_URL"], !text.isEmpty, let url = URL(string: text), let program = environment["MLSD_AGENT"] else {
            throw XCTSkip("MLSD_LIAR_URL names no service that lies: use check.sh, with Node")
        }
        (base, agent) = (url, program)
        _ = try await liar("forget", Lie())
    }

    /// What the account's own PDS says, which does not lie.
    private func accounts(_ account: DID) throws -> ATProtoAccounts {
        let directory = try XCTUnwrap(URL(string: ProcessInfo.processInfo.environment["MLSD_DEV_URL"] ?? ""))
        return ATProtoAccounts(account, pds: dev.route(account), directory: directory)
    }

    private func open(checked: Bool = true, storage: MemoryStorage = MemoryStorage()) async throws -> Phone {
        let account = try await dev.accounts(1)[0]
        let accounts: any Accounts = if checked { try accounts(account) } else { UncheckedAccounts() }
        let program = agent
        let messenger = try await Messenger(account: account, service: Service(dev.route(account)), accounts: accounts, storage: storage) {
            try await AgentDevice.load($0, account: account, program: program)
        }
        let events = await messenger.events()
        try await messenger.start()
        try await messenger.restock()
        for write in await messenger.outbox.pending { _ = try await messenger.outbox.finished(write.id) }
        return Phone(account: account, messenger: messenger, events: events)
    }

    private func convo(of first: Phone, with others: Phone...) async throws -> String {
        let created = try await first.messenger.create(with: others.map(\.account))
        let answer = try await first.messenger.outbox.finished(created.id).answer(of: CreateConvo.self)
        let convo = try XCTUnwrap(answer).id
        for other in others {
            _ = try await other.messenger.accept(convo)
            try await other.messenger.join(convo)
        }
        return convo
    }

    @discardableResult
    private func liar(_ path: String, _ body: Lie?) async throws -> Data {
        let headers = ["Content-Type": "application/json"]
        let url = base.appendingPathComponent("liar/" + path)
        let request = Request(method: body == nil ? "GET" : "POST", url: url, headers: headers, body: try body.map { try JSONEncoder().encode($0) })
        let answer = try await URLSessionTransport().send(request)
        XCTAssertEqual(answer.status, 200, String(decoding: answer.body, as: UTF8.self))
        return answer.body
    }

    private func tell(_ lie: String, _ convo: String = "", to victim: Phone, as member: DID, another: String = "") async throws {
        let device = try await victim.messenger.mls.deviceID
        try await liar(lie, Lie(convo: convo, victim: victim.account.rawValue, device: device, member: member.rawValue, another: another))
    }

    /// Ends the phones. It fails if the liar has read a message.
    private func end(_ phones: Phone..., hasRead: Bool = false) async throws {
        for phone in phones { await phone.messenger.stop() }
        let read = try JSONDecoder().decode([String].self, from: try await liar("read", nil))
        XCTAssertEqual(read.isEmpty, !hasRead, "\(read)")
    }

    /// Fails after a minute: a lie that nobody hears of would be waited for without an end.
    private func patiently(_ work: @escaping @Sendable () async throws -> Void) async throws {
        try await withThrowingTaskGroup(of: Bool.self) { group in
            group.addTask {
                try await work()
                return true
            }
            group.addTask {
                try await Task.sleep(nanoseconds: Self.patience * 1_000_000_000)
                return false
            }
            let isDone = try await group.next()
            group.cancelAll()
            XCTAssertEqual(isDone, true, "nothing has come of it in \(Self.patience) seconds")
        }
    }

    func testT1TheLiarsKeyPackageStandsInBobsName() async throws {
        for checked in [true, false] { // the liar reads what is not checked: so the test can fail
            try await liar("forget", Lie())
            let (alice, bob) = try await (open(checked: checked), open())
            try await tell("T1", to: alice, as: bob.account)
            let convo = try await convo(of: alice, with: bob)
            try await patiently { try await alice.says("for Bob", to: convo) }
            try await end(alice, bob, hasRead: !checked)
        }
    }

    func testT2TheLiarEntersAsAnotherDeviceOfBobs() async throws {
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("T2", convo, to: alice, as: bob.account)
        try await alice.messenger.sync(convo)
        try await patiently { try await alice.says("for Bob", to: convo) }
        let changes = try await DevicesTests.changes(alice.messenger)
        XCTAssertTrue(changes.contains(.unlisted), "\(changes)")
        try await end(alice, bob)
    }

    func testT3AMadeUpWelcomeReplacesAGroup() async throws {
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("T3", convo, to: alice, as: bob.account)
        try await patiently { await alice.finds(.welcome) }
        try await patiently { try await alice.says("for Bob", to: convo) }
        try await end(alice, bob)
    }

    func testT5TheGroupInfoOfAnotherGroup() async throws {
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("T5", convo, to: alice, as: bob.account)
        do {
            try await alice.messenger.rejoin(convo)
            XCTFail("it has entered the liar's group")
        } catch let error as ContraryGroup { XCTAssertEqual(error.what, .groupInfo) }
        try await patiently { try await alice.says("for Bob", to: convo) }
        try await end(alice, bob)
    }

    func testT6AMadeUpSuccessor() async throws {
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("withheld", convo, to: alice, as: bob.account)
        try await alice.messenger.send(Data("for Bob".utf8), to: convo)
        try await tell("T6", convo, to: alice, as: bob.account)
        try await patiently { await alice.finds(.successor) }
        try await end(alice, bob)
    }

    func testT7BobHasLeftSaysTheService() async throws {
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("T7", convo, to: alice, as: bob.account)
        try await patiently { await alice.finds(.removal) }
        let people = try await alice.messenger.people(in: alice.messenger.thread(convo))
        XCTAssertEqual(Set(people), [alice.account, bob.account])
        try await end(alice, bob)
    }

    func testT8BobsMessageIsShownAsCarols() async throws {
        let (alice, bob, carol) = try await (open(), open(), open())
        let convo = try await convo(of: alice, with: bob, carol)
        try await tell("T8", convo, to: alice, as: carol.account)
        try await patiently { try await bob.says("from Bob", to: convo) }
        try await patiently { await alice.finds(.sender) }
        let entries = try await alice.messenger.inbox(convo).filter { $0.content == .message(Data("from Bob".utf8)) }
        XCTAssertEqual(entries.map(\.sender), [bob.account])
        try await end(alice, bob, carol)
    }

    /// What Alice has sent, and the service has acknowledged, is shown as Bob's.
    func testT10AlicesMessageIsShownAsBobs() async throws {
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("T10", convo, to: alice, as: bob.account)
        try await patiently { try await alice.says("from Alice", to: convo) }
        try await patiently { await alice.finds(.sender) }
        let entries = try await alice.messenger.inbox(convo).filter { $0.content == .own(Data("from Alice".utf8)) }
        XCTAssertEqual(entries.map(\.sender), [alice.account])
        try await end(alice, bob)
    }

    /// This client compares no heads of logs: nobody hears of it. What was withheld comes, in its place, once the service
    /// shows it.
    func testT11TheNewestEntriesAreWithheld() async throws {
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("T11", convo, to: bob, as: alice.account)
        try await patiently { try await alice.says("withheld", to: convo) }
        try await bob.messenger.sync(convo)
        let message = Entry.Content.message(Data("withheld".utf8))
        let before = try await bob.messenger.inbox(convo).map(\.content)
        XCTAssertFalse(before.contains(message))
        try await liar("forget", Lie())
        try await bob.messenger.sync(convo)
        let after = try await bob.messenger.inbox(convo).map(\.content)
        XCTAssertEqual(after.filter { $0 == message }, [message])
        try await end(alice, bob)
    }

    /// For Bob's external commit there is an old GroupInfo, with Mallory, whom Alice has removed since.
    func testAnOldGroupInfoWithSomebodyWhoWasRemoved() async throws {
        let (alice, bob, mallory) = try await (open(), open(), open())
        let convo = try await convo(of: alice, with: bob, mallory)
        try await bob.messenger.sync(convo)
        try await tell("stale", convo, to: bob, as: alice.account)
        let removal = try await alice.messenger.remove(mallory.account, from: convo)
        _ = try await alice.messenger.outbox.finished(XCTUnwrap(removal).id)
        try await bob.messenger.sync(convo)
        try await tell("again", convo, to: bob, as: alice.account)
        do {
            try await bob.messenger.rejoin(convo)
            XCTFail("it has entered the old group")
        } catch let error as ContraryGroup { XCTAssertEqual(error.what, .groupInfo) }
        try await patiently { await bob.finds(.groupInfo) }
        let people = try await bob.messenger.people(in: bob.messenger.thread(convo))
        XCTAssertEqual(Set(people), [alice.account, bob.account])
        try await end(alice, bob, mallory)
    }

    /// A stranger enters by external commit, whose account lists her device, and the service takes it.
    func testAStrangerEntersWhoseAccountListsHerDevice() async throws {
        struct Made: Decodable { var key: Data }
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        let mallory = try await dev.accounts(1)[0]
        let made = try JSONDecoder().decode(Made.self, from: await liar("device", Lie(member: mallory.rawValue)))
        try await accounts(mallory).list(ListedDevice(key: made.key, cipherSuite: alice.messenger.mls.cipherSuite))
        try await tell("stranger", convo, to: alice, as: mallory)
        try await patiently { await alice.hears { if case .device(let news) = $0 { news.change == .uninvited && news.account == mallory } else { false } } }
        try await alice.messenger.send(Data("for Bob".utf8), to: convo) // it waits
        try await end(alice, bob)
    }

    /// The Welcome for another convo of the same people, in which Mallory is too, comes as that for this one.
    func testTheWelcomeOfAnotherConvo() async throws {
        let (alice, bob, mallory) = try await (open(), open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("silence", to: alice, as: alice.account)
        let created = try await bob.messenger.create(with: [alice.account, mallory.account])
        let answer = try await bob.messenger.outbox.finished(created.id).answer(of: CreateConvo.self)
        let another = try XCTUnwrap(answer).id
        try await tell("another", convo, to: alice, as: bob.account, another: another)
        try await patiently { await alice.finds(.welcome) }
        try await patiently { try await alice.says("for Bob alone", to: convo) }
        try await end(alice, bob, mallory)
    }

    /// Bob's stolen device enters again, which his account does not list any more. The answer of before still counts.
    func testBobsStolenDeviceEntersAgain() async throws {
        let (storage, alice) = try await (MemoryStorage(), open())
        let bob = try await open(storage: storage)
        let convo = try await convo(of: alice, with: bob)
        try await patiently { try await alice.says("for Bob, whose device Alice has looked up", to: convo) }
        await bob.messenger.stop()
        let key = try await bob.messenger.mls.signatureKey
        try await accounts(bob.account).unlist(key)
        let thief = try await AgentDevice.load(storage.values, account: bob.account, program: agent)
        let service = Service(dev.route(bob.account))
        let info = try await service.query(GetGroupInfo.self, .init(convoId: convo)).groupInfo.data
        let staged = try await thief.stageExternal(groupInfo: info)
        let input = ProcessExternalCommit.Input(commit: Bytes(staged.commit), convoId: convo, groupInfo: Bytes(staged.groupInfo))
        let entered = try await service.call(ProcessExternalCommit.self, input)
        try await thief.confirmExternal(groupID: staged.groupID)
        try await alice.messenger.readToItsEnd(convo)
        try await patiently { try await alice.says("not for the thief", to: convo) }
        let changes = try await DevicesTests.changes(alice.messenger)
        XCTAssertTrue(changes.contains(.unlisted), "\(changes)")
        var read: [String] = []
        for entry in try await service.query(GetMessages.self, .init(convoId: convo, messageType: .all, sinceSeq: entered.seq, untilLeft: true)).messages {
            let received = try? await thief.process(entry.ciphertext.data, in: staged.groupID) // it fails from its removal on
            if case .application(let text, _)? = received { read.append(String(decoding: text, as: UTF8.self)) }
        }
        XCTAssertEqual(read, [])
        try await end(alice)
    }

    /// MLS cannot show a fork to those who are in one of its halves: people see it when they compare codes.
    func testT9TwoHalvesOfAGroupHaveTwoCodes() async throws {
        let (alice, bob) = try await (open(), open())
        let convo = try await convo(of: alice, with: bob)
        try await tell("T9", convo, to: bob, as: bob.account)
        for phone in [alice, bob] {
            let write = try await phone.messenger.rotate(convo)
            _ = try await phone.messenger.outbox.finished(XCTUnwrap(write).id)
        }
        let (one, other) = try await (alice.messenger.groupCode(of: convo), bob.messenger.groupCode(of: convo))
        XCTAssertEqual(one.epoch, other.epoch)
        XCTAssertNotEqual(one.grouped, other.grouped)
        try await end(alice, bob)
    }

    /// There is nothing to be found in this lie: so it is told as the service's report, and that somebody has joined is
    /// told when MLS shows it.
    func testT12CarolHasJoinedSaysTheService() async throws {
        let (alice, carol) = try await (open(), open())
        try await tell("silence", to: carol, as: carol.account)
        let created = try await alice.messenger.create(with: [carol.account])
        let answer = try await alice.messenger.outbox.finished(created.id).answer(of: CreateConvo.self)
        try await tell("T12", XCTUnwrap(answer).id, to: alice, as: carol.account)
        try await patiently { await alice.hears { if case .arrived = $0 { true } else { false } } }
        let changes = try await DevicesTests.changes(alice.messenger)
        XCTAssertFalse(changes.contains(.joined), "\(changes)")
        try await end(alice, carol)
    }
}
