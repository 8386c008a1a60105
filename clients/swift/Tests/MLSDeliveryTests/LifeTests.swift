import TestSupport
import XCTest

@testable import MLSDelivery

/// D3, D8, D10, D16: what an app lives through: a sign-in that has ended, a wrong clock, a network that is away.
final class LifeTests: XCTestCase {
    private let convo = WrongCallsTests.convo

    private func open(_ transport: any Transport, _ storage: MemoryStorage, _ surroundings: Surroundings = simulated(seed: 1)) async throws -> Messenger {
        let service = Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: transport)
        let accounts = MemoryAccounts(DevicesTests.alice)
        try await accounts.list(ListedDevice(key: Data("phone".utf8), cipherSuite: "suite"))
        return try await Messenger(
            account: DevicesTests.alice, service: service, accounts: accounts, storage: storage, surroundings: surroundings
        ) { try FakeMLS($0, device: "phone", seed: 1) }
    }

    /// Says more than the server does, or refuses its stream.
    private actor Front: Transport {
        let server: ModelServer
        let time: (@Sendable () -> Date)?
        private(set) var opened = 0
        private var refuses = false
        private var waiting: (opened: Int, CheckedContinuation<Void, Never>)?

        init(_ server: ModelServer, time: (@Sendable () -> Date)? = nil) { (self.server, self.time) = (server, time) }
        func refuse(_ refuses: Bool) { self.refuses = refuses }
        func opened(_ times: Int) async { if opened < times { await withCheckedContinuation { waiting = (times, $0) } } }

        func send(_ request: Request) async throws -> Answer {
            var answer = try await server.send(request)
            if let time {
                let formatter = DateFormatter()
                formatter.locale = Locale(identifier: "en_US_POSIX")
                formatter.timeZone = TimeZone(identifier: "GMT")
                formatter.dateFormat = "EEE, dd MMM yyyy HH:mm:ss 'GMT'"
                answer.headers["date"] = formatter.string(from: time())
                answer.headers["content-type"] = "application/json"
            }
            return answer
        }

        func open(_ request: Request) async throws -> (Answer, AsyncThrowingStream<Data, any Error>) {
            opened += 1
            if let (times, continuation) = waiting, opened >= times {
                waiting = nil
                continuation.resume()
            }
            if refuses { return (Answer(status: 401, body: Data(#"{"error":"InvalidToken","message":"the session has ended"}"#.utf8)), AsyncThrowingStream { $0.finish() }) }
            return try await server.open(request)
        }
    }

    /// A 401 stops the stream; after a new sign-in `resume` opens it again.
    func testD3ResumeOpensTheStreamAgain() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        let front = Front(server)
        await front.refuse(true)
        let phone = try await open(front, storage)
        let events = await phone.events()
        try await phone.start()
        for await event in events { if case .failed(let text) = event, text.contains("the session has ended") { break } }
        await front.refuse(false)
        try await phone.resume()
        await front.opened(2)
        await phone.stop()
    }

    /// The device's clock is 70 minutes ahead: KeyPackages are made with the service's time, and the app hears of it.
    func testD8AClockThatIsAheadIsTold() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        let surroundings = simulated(seed: 1)
        let phone = try await open(Front(server) { surroundings.now().addingTimeInterval(-4200) }, storage, surroundings)
        let events = await phone.events()
        let madeBefore = surroundings.now()
        try await phone.start(listening: false)
        try await phone.restock()
        var heard: Int?
        for await event in events {
            if case .clock(let ahead) = event {
                heard = ahead
                break
            }
        }
        XCTAssertEqual(Double(heard ?? 0), 4_200_000, accuracy: 2000)
        while await phone.outbox.pending.isEmpty, await server.keyPackages.isEmpty { await Task.yield() }
        let mls = await phone.mls as? FakeMLS
        let madeAt = await mls?.madeAt
        let made = try XCTUnwrap(madeAt)
        XCTAssertEqual(made.timeIntervalSince(madeBefore), -4200, accuracy: 120)
        await phone.stop()
    }

    func testD8WhatIsNoTimeOfTheService() {
        let now = Date(timeIntervalSince1970: 1_750_000_000)
        let clock = ServiceClock(Surroundings(now: { now }))
        for (type, date) in [("text/html", "Sun, 06 Nov 1994 08:49:37 GMT"), ("application/json", "yesterday"), ("application/json", "")] {
            clock.take(Answer(status: 200, headers: ["content-type": type, "date": date]))
        }
        clock.take(Answer(status: 200, headers: ["content-type": "application/json", "date": "Sun, 15 Jun 2025 15:06:00 GMT"])) // 40 s
        XCTAssertEqual(clock.offset, 0)
        clock.take(Answer(status: 401, headers: ["content-type": "application/json", "date": "Sun, 15 Jun 2025 14:06:40 GMT"]))
        XCTAssertEqual(clock.offset, 3600)
        XCTAssertEqual(clock.surroundings.now(), now.addingTimeInterval(-3600))
    }

    /// No answer came, and the wait is long: an event is a sign of life, and the message goes.
    func testD10ASignOfLifeEndsAWait() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        let endless = Surroundings(sleep: { _ in try await Task.sleep(nanoseconds: 1 << 60) })
        let phone = try await open(server, storage, endless)
        let events = await phone.outbox.events()
        var faults = ModelServer.Faults()
        faults.lostRequest = 1
        await server.set(faults)
        try await phone.start(listening: false)
        let write = try await phone.send(Data("hello".utf8), to: convo)
        for await event in events { if case .waiting(convo, _, _) = event { break } }
        await server.set(.init())
        var done: Write?
        async let finished = phone.outbox.finished(write.id)
        await phone.hearSign()
        done = try await finished
        XCTAssertNotNil(try done?.answer(of: SendMessage.self))
        await phone.stop()
    }

    /// What a service asks for is kept, whatever is heard meanwhile.
    func testD10ASignOfLifeDoesNotEndAWaitThatTheServiceAsksFor() async throws {
        let waits = Waits(Surroundings(sleep: { _ in try await Task.sleep(nanoseconds: 1 << 60) }))
        let busy = Task { try await waits.pause(60, after: ServiceError(status: 503, name: ErrorName(rawValue: ""), message: "", retryAfter: 60)) }
        let away = Task { try await waits.pause(60, after: NoAnswer(URLError(.timedOut))) }
        while !away.isCancelled {
            waits.end()
            await Task.yield()
            if await ended(away) { break }
        }
        busy.cancel()
        do {
            try await busy.value
            XCTFail("the service asked for a minute")
        } catch { XCTAssertTrue(error is CancellationError) }
    }

    private func ended(_ task: Task<Void, any Error>) async -> Bool {
        let (stream, continuation) = AsyncStream<Bool>.makeStream()
        Task {
            _ = await task.result
            continuation.yield(true)
        }
        Task {
            for _ in 0..<20 { await Task.yield() }
            continuation.yield(false)
        }
        for await isEnded in stream { return isEnded }
        return false
    }

    /// D16: tokens of OAuth are bound to a key: each request has a proof, with the newest nonce of the PDS.
    func testD16RequestsThroughAPDSHaveProofs() async throws {
        let pds = PDS()
        let route = Route.pds(URL(string: "https://pds.example.com")!, service: "did:web:mls.example.com#atproto_mls", access: { "token" }) {
            [$0, $1.absoluteString, $2, $3 ?? "-"].joined(separator: " ")
        }
        let service = Service(route, transport: pds)
        for _ in 0..<2 { _ = try await service.query(GetConvos.self, .init(limit: 10)) }
        let seen = await pds.seen
        let proof = "GET https://pds.example.com/xrpc/blue.catbird.mls.getConvos token "
        XCTAssertEqual(seen.map { $0["DPoP"] }, [proof + "-", proof + "one", proof + "two"])
        XCTAssertEqual(seen.map { $0["Authorization"] }, Array(repeating: "DPoP token", count: 3))
        XCTAssertEqual(seen.compactMap { $0["atproto-proxy"] }.count, 3)
        XCTAssertEqual(route.toPDS.proofs === route.proofs, true)
    }

    private actor PDS: Transport {
        private(set) var seen: [[String: String]] = []
        func send(_ request: Request) -> Answer {
            seen.append(request.headers)
            if request.headers["DPoP"]?.hasSuffix(" -") == true {
                return Answer(status: 401, headers: ["dpop-nonce": "one"], body: Data(#"{"error":"use_dpop_nonce","message":"a nonce is needed"}"#.utf8))
            }
            return Answer(status: 200, headers: ["dpop-nonce": "two"], body: Data(#"{"conversations":[]}"#.utf8))
        }
        func open(_ request: Request) throws -> (Answer, AsyncThrowingStream<Data, any Error>) { throw URLError(.badServerResponse) }
    }

    /// D12: the inbox has pages, in both directions, and counts.
    func testD12PagesOfTheInbox() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        for i in 1...5 { await server.post(Data("message \(i)".utf8), to: convo, by: DevicesTests.alice.rawValue) }
        let phone = try await open(server, storage)
        try await phone.readToItsEnd(convo)
        let pages = try await [
            phone.items(convo, limit: 2), phone.items(convo, limit: 2, before: 4), phone.items(convo, limit: 2, before: 2),
            phone.items(convo, limit: 2, after: 3), phone.items(convo, limit: 9, after: 5), phone.items(convo, limit: 9, before: 5, after: 1),
            phone.items("another", limit: 9),
        ]
        XCTAssertEqual(pages.map { $0.map(\.seq) }, [[4, 5], [2, 3], [1], [4, 5], [], [2, 3, 4], []])
        try await phone.taken(pages[0])
        let counts = try await phone.counts(convo)
        XCTAssertEqual(counts, Counts(items: 3, unread: 0))
        do {
            _ = try await phone.items(convo, limit: 0)
            XCTFail("a page of nothing")
        } catch { XCTAssertTrue(error is InvalidInput, "\(error)") }
        await phone.stop()
    }

    /// D16: `join` without a network ends: of a convo that the device has no Welcome of, and with a stored one that is of
    /// no use. Before, it neither returned nor threw.
    func testD16JoinEndsWithoutANetwork() async throws {
        let group = WrongCallsTests.group(convo)
        for isStored in [false, true] {
            let (server, storage) = (ModelServer(seed: 1), MemoryStorage())
            await server.addConvo(convo)
            await server.commit(convo)
            try await server.addWelcome(convo, FakeMLS.state(group, 1))
            let kept = KeptWelcome(convoId: convo, welcome: Data("no Welcome".utf8), keyPackageRef: "00")
            if isStored { await storage.write([kept.name: try encoded(kept)]) }
            let phone = try await open(server, storage)
            await server.set(WrongCallsTests.offline)
            do {
                try await phone.join(convo)
                XCTFail("it has joined")
            } catch { XCTAssertTrue(error is NoAnswer, "\(error)") }
            await server.set(.init())
            try await phone.join(convo)
            let convos = try await phone.convos()
            XCTAssertEqual(convos, [convo])
            await phone.stop()
        }
    }

    /// Every error has a code, and the page names it.
    func testD11ErrorsHaveCodes() throws {
        let did = DevicesTests.bob
        let messenger: [MessengerError] = [
            .unknownConvo(""), .forked(convoId: ""), .gap(convoId: "", after: 1), .needsInvitation(convoId: ""), .moved(convoId: "", successor: ""),
            .noKeyPackage(did), .notAt(did, convoId: ""), .noWay(did), .waitsForAnswer(convoId: ""), .unreadable(convoId: "", seq: 1, ""),
        ]
        let others: [any CodedError] = [
            ServiceError(status: 500, name: ErrorName(rawValue: ""), message: ""), NoAnswer(URLError(.timedOut)), InvalidInput(field: "", reason: ""),
            AccountAway(did, ""), UnknownDevices(devices: []), ContraryGroup(what: .welcome, description: ""), StoreOpenError(path: ""),
            StorageError.damaged("", offset: 0), StorageError.system("", code: 1), FileChanged(description: ""), FileCipherError.cannotOpen,
            OwnDeviceError(description: ""), SignedOut(.done), HistoryError(""), CodeError.noKeys(did),
        ]
        let page = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent("../../README.md")
        let lines = try String(contentsOf: page, encoding: .utf8).components(separatedBy: "\n")
        let begin = try XCTUnwrap(lines.firstIndex(of: "| code | error |"))
        let codes = lines[(begin + 2)...].prefix { $0.hasPrefix("|") }.map { $0.components(separatedBy: "`")[1] }
        XCTAssertEqual(codes, Set((messenger as [any CodedError] + others).map(\.code)).sorted())
    }
}
