import Foundation
import MLSDelivery
import MLSDeliveryDev
import TestSupport
import XCTest

/// Against a real server: `mlsd-dev`, whose address is in MLSD_DEV_URL. check.sh starts it.
final class DevTests: XCTestCase {
    private var dev = DevServer(URL(fileURLWithPath: "/"))

    override func setUpWithError() throws {
        guard let text = ProcessInfo.processInfo.environment["MLSD_DEV_URL"], let url = URL(string: text) else {
            throw XCTSkip("MLSD_DEV_URL names no mlsd-dev: use check.sh")
        }
        dev = DevServer(url)
    }

    private func temporaryFolder() throws -> String {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent("phone-" + UUID().uuidString)
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        addTeardownBlock { try FileManager.default.removeItem(at: folder) }
        return folder.path
    }

    /// A convo of one, whose messages are fakes with true headers.
    private func fakeConvo(_ service: Service) async throws -> (id: String, group: Data) {
        var random = SystemRandomNumberGenerator()
        let group = Data((0..<16).map { _ in UInt8.random(in: 0...255, using: &random) })
        let input = CreateConvo.Input(
            cipherSuite: "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", groupId: group.hexadecimal, currentEpoch: 0
        )
        return (try await service.call(CreateConvo.self, input).id, group)
    }

    /// The process `phone` sends messages and is killed with SIGKILL again and again, at every kind of step;
    /// the server loses answers, cuts connections, and answers 503 and 429; another device commits meanwhile.
    func testKilledProcess() async throws {
        let runs = UInt64(ProcessInfo.processInfo.environment["MLSD_SWIFT_DEV_RUNS"] ?? "") ?? 1
        let messages = Int(ProcessInfo.processInfo.environment["MLSD_SWIFT_DEV_MESSAGES"] ?? "") ?? 1000
        for seed in 1...runs { try await killedProcess(seed: seed, messages) }
    }

    private func killedProcess(seed: UInt64, _ messages: Int) async throws {
        let account = try await dev.accounts(1)[0]
        let service = Service(dev.route(account))
        let (convo, group) = try await fakeConvo(service)
        let folder = try temporaryFolder()
        do { try await FileStorage(path: folder + "/store").write(firstValues(convo: convo, groupID: group)) }
        var random = Random(seed: seed)
        var kills = 0
        var commits = 0
        var faults = 0
        while true {
            for (kind, status) in [(DevServer.Fault.loseAnswer, nil), (.cut, nil), (.status, 503), (.status, 429)] as [(DevServer.Fault, Int?)] {
                try await dev.addFault(kind, method: SendMessage.nsid, account: account, status: status)
                faults += 1
            }
            let job = PhoneJob(
                server: dev.base, account: account.rawValue, convo: convo, messages: messages, folder: folder, seed: random.next() >> 12, killed: 300
            )
            let process = Process()
            process.executableURL = Self.phone
            process.arguments = [String(decoding: try JSONEncoder().encode(job), as: UTF8.self)]
            try process.run()
            let commit = FakeMLS.message(3, group, commits, random.bytes(16))
            _ = try await permitted { try await service.call(SubmitCommit.self, .init(commit: Bytes(commit), convoId: convo)) }
            commits += 1
            process.waitUntilExit()
            if process.terminationReason == .exit {
                XCTAssertEqual(process.terminationStatus, 0)
                break
            }
            XCTAssertEqual(process.terminationStatus, SIGKILL)
            kills += 1
        }
        let texts = try await texts(service, convo)
        XCTAssertEqual(texts, (0..<messages).map { "message \($0)" }, "seed \(seed)")
        print("seed \(seed): \(messages) messages, \(kills) kills, \(commits) commits of another device, \(faults) faults planned: \(Set(texts).count) there, \(texts.count - Set(texts).count) doubled")
    }

    static var phone: URL {
        // The test bundle lies beside the executables.
        #if os(macOS)
            Bundle(for: DevTests.self).bundleURL.deletingLastPathComponent().appendingPathComponent("phone")
        #else
            Bundle.main.bundleURL.appendingPathComponent("phone")
        #endif
    }

    /// Repeats a call that the rate limit refuses: the phone has used it up.
    private func permitted<Output>(_ call: () async throws -> Output) async throws -> Output {
        while true {
            do { return try await call() } catch let error as ServiceError where error.status == 429 {
                try await Task.sleep(nanoseconds: UInt64((error.retryAfter ?? 1) * 1e9))
            }
        }
    }

    private func texts(_ service: Service, _ convo: String) async throws -> [String] {
        var texts: [String] = []
        var cursor: String?
        repeat {
            let since = cursor
            let page = try await permitted { try await service.query(GetMessages.self, .init(convoId: convo, limit: 100, sinceMessage: since)) }
            texts += try page.messages.map { try FakeMLS.text($0.ciphertext.data) }
            cursor = page.cursor
        } while cursor != nil
        return texts
    }

    /// One service-auth token buys a session, which calls and streams. An ended one is replaced by another.
    func testSession() async throws {
        let account = try await dev.accounts(1)[0]
        let direct = dev.route(account)
        let bought = Bought()
        let session = Session(dev.base, device: { String(repeating: "a", count: 64) }) { nsid in
            await bought.add(nsid)
            return try await direct.headers(nsid)["Authorization"].map { String($0.dropFirst("Bearer ".count)) } ?? ""
        }
        let service = Service(session.route)
        for _ in 0..<3 { _ = try await service.query(GetConvos.self, .init()) }
        let once = await bought.nsids
        XCTAssertEqual(once, [CreateSession.nsid])
        // It ends without the client's knowledge: the 401 buys another.
        _ = try await service.call(DeleteSession.self, .init())
        _ = try await service.query(GetConvos.self, .init())
        let twice = await bought.nsids
        XCTAssertEqual(twice, [CreateSession.nsid, CreateSession.nsid])
        try await session.end()
    }

    private actor Bought {
        var nsids: [String] = []
        func add(_ nsid: String) { nsids.append(nsid) }
    }

    /// Two devices with a real MLS library: KeyPackages, a convo, a Welcome, messages both ways over the stream
    /// of events, a commit; then one replaces the group, and both go on in its successor.
    func testRealDevices() async throws {
        let (alice, bob) = try await twoDevices()
        let (aliceHears, bobHears) = await (alice.events(), bob.events())
        try await bob.start()
        try await stocked(bob)
        try await alice.start()
        let created = try await alice.outbox.finished(alice.create(with: [bob.account]).id)
        let convo = try XCTUnwrap(created.answer(of: CreateConvo.self)).id
        for await event in bobHears {
            if case .request(let request) = event {
                XCTAssertEqual([request.convoId, request.invitedBy.rawValue], [convo, alice.account.rawValue])
                try await bob.accept(request.convoId)
            }
            if case .joined(convo) = event { break }
        }
        try await alice.send(Data("hello".utf8), to: convo)
        try await expect(bob, convo, "hello")
        // What the server refuses is refused, and does not stay in the way.
        let nowhere = UUID().uuidString.lowercased()
        let refused = [
            try await alice.send(Data("no attachment".utf8), to: convo, embedUri: "mlsd:attachment/" + nowhere), try await alice.leave(nowhere),
        ]
        for write in refused {
            guard case .refused = try await alice.outbox.finished(write.id).state else { return XCTFail("\(write.nsid) was not refused") }
        }
        try await alice.rotate(convo)
        try await bob.send(Data("and back".utf8), to: convo)
        try await expect(alice, convo, "and back")

        let reset = try await alice.outbox.finished(alice.reset(convo, because: .undecryptable).id)
        let next = try XCTUnwrap(reset.answer(of: ResetConvo.self), "\(reset.state)").convo.id
        for events in [aliceHears, bobHears] { for await event in events { if event == .moved(convoId: convo, successor: next) { break } } }
        try await bob.send(Data("in the new group".utf8), to: next)
        try await expect(alice, next, "in the new group")
        try await alice.send(Data("so am I".utf8), to: next)
        try await expect(bob, next, "so am I")
        let last = try await bob.inbox(convo).last?.content
        XCTAssertEqual(last, .reset)
        await alice.stop()
        await bob.stop()
    }

    /// Roles: an admin makes another one, both name the convo, and everybody hears of it; the last one stays. What somebody
    /// may not do is refused, and does not stay in the way.
    func testRoles() async throws {
        let (alice, bob) = try await twoDevices()
        let (aliceHears, bobHears) = await (alice.events(), bob.events())
        for phone in [alice, bob] { try await phone.start() }
        try await stocked(bob)
        let created = try await alice.outbox.finished(alice.create(with: [bob.account], metadata: .init(name: "us")).id)
        let convo = try XCTUnwrap(created.answer(of: CreateConvo.self)).id
        try await bob.accept(convo)
        for await event in bobHears { if event == .joined(convoId: convo) { break } }
        let before = try await bob.admins(convo)
        XCTAssertEqual(before, [alice.account])

        let refused: [(Messenger, () async throws -> Write)] = [
            (bob, { try await bob.promoteAdmin(convo, bob.account) }), (bob, { try await bob.updateConvo(convo, name: "mine") }),
            (alice, { try await alice.demoteAdmin(convo, alice.account) }), // the last one
        ]
        for (phone, call) in refused {
            guard case .refused(let error) = try await phone.outbox.finished(call().id).state else { return XCTFail("it was not refused") }
            XCTAssertEqual(error.name, .notPermitted)
        }
        let promoted = try await alice.outbox.finished(alice.promoteAdmin(convo, bob.account).id)
        XCTAssertNotNil(try promoted.answer(of: PromoteAdmin.self), "\(promoted.state)")
        for hears in [aliceHears, bobHears] { for await event in hears { if case .role(let role) = event, role.did == bob.account { break } } }
        let both = try await Set(bob.admins(convo))
        XCTAssertEqual(both, [alice.account, bob.account])
        let named = try await bob.outbox.finished(bob.updateConvo(convo, name: "the two of us").id)
        XCTAssertNotNil(try named.answer(of: UpdateConvo.self), "\(named.state)")
        for await event in aliceHears { if event == .renamed(convoId: convo) { break } }
        let name = try await alice.service.query(GetConvo.self, .init(convoId: convo)).convo.metadata?.name
        XCTAssertEqual(name, "the two of us")
        let demoted = try await alice.outbox.finished(alice.demoteAdmin(convo, alice.account).id)
        XCTAssertNotNil(try demoted.answer(of: DemoteAdmin.self), "\(demoted.state)")
        let after = try await alice.admins(convo)
        XCTAssertEqual(after, [bob.account])
        await alice.stop()
        await bob.stop()
    }

    /// Members of a convo have the same group code, and each commit makes another one.
    func testGroupCode() async throws {
        let (alice, bob) = try await twoDevices()
        for phone in [alice, bob] { try await phone.start(listening: false) }
        try await stocked(bob)
        let created = try await alice.outbox.finished(alice.create(with: [bob.account]).id)
        let convo = try XCTUnwrap(created.answer(of: CreateConvo.self)).id
        try await bob.join(convo)
        let first = try await alice.groupCode(of: convo)
        let his = try await bob.groupCode(of: convo)
        XCTAssertEqual(his, first)

        let rotated = try await bob.rotate(convo)
        _ = try await bob.outbox.finished(XCTUnwrap(rotated).id)
        for phone in [alice, bob] { try await phone.sync(convo) }
        let second = try await alice.groupCode(of: convo)
        let hisSecond = try await bob.groupCode(of: convo)
        XCTAssertEqual(hisSecond, second)
        XCTAssertEqual(second.epoch, first.epoch + 1)
        XCTAssertNotEqual(second.digits, first.digits)
        for phone in [alice, bob] { await phone.stop() }
    }

    private func twoDevices() async throws -> (Messenger, Messenger) {
        guard let program = ProcessInfo.processInfo.environment["MLSD_AGENT"], !program.isEmpty else { throw XCTSkip("MLSD_AGENT is not set") }
        var phones: [Messenger] = []
        for account in try await dev.accounts(2) {
            let storage = try FileStorage(path: temporaryFolder() + "/store")
            phones.append(try await Messenger(account: account, service: Service(dev.route(account)), accounts: UncheckedAccounts(), storage: storage) {
                try await AgentDevice.load($0, account: account, program: program)
            })
        }
        return (phones[0], phones[1])
    }

    private func stocked(_ phone: Messenger) async throws {
        try await phone.restock()
        for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
    }

    private func expect(_ phone: Messenger, _ convo: String, _ text: String) async throws {
        let events = await phone.events()
        while true {
            let inbox = try await phone.inbox(convo)
            if inbox.contains(where: { $0.content == .message(Data(text.utf8)) }) { return }
            for await event in events { if case .received(convo) = event { break } }
        }
    }
}
