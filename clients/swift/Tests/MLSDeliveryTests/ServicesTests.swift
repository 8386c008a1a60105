import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// Convos and people of several services, against a model server for each.
final class ServicesTests: XCTestCase {
    private static let (here, there) = (DID("did:web:here.example"), DID("did:web:there.example"))
    private let (own, far) = (WrongCallsTests.convo, WrongCallsTests.other)

    private func text(_ text: String) -> Data { Data(text.utf8) }

    private static func service(_ server: ModelServer, _ life: Life) -> Service {
        Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: MortalTransport(server, life))
    }

    /// A phone whose home is one of the services.
    private static func phone(
        _ servers: [DID: ModelServer], home: DID = here, _ storage: MemoryStorage, _ life: Life = Life(seed: 0), seed: UInt64 = 1,
        surroundings: Surroundings? = nil
    ) async throws -> Messenger {
        let others = OtherServices(home: home) { did, device in
            XCTAssertEqual(device, FakeMLS.id(of: "phone"))
            return service(servers[did]!, life)
        }
        return try await Messenger(
            account: OutboxTests.account, service: service(servers[home]!, life), others: others, accounts: UncheckedAccounts(), storage: MortalStorage(storage, life),
            surroundings: surroundings ?? simulated(seed: seed, life: life)
        ) { try FakeMLS($0, device: "phone", seed: seed) }
    }

    /// Two services: a convo of the phone is at its home, and another one is at the other service, to which it is
    /// invited.
    private func begin() async throws -> ([DID: ModelServer], MemoryStorage) {
        let servers = [Self.here: ModelServer(seed: 1), Self.there: ModelServer(seed: 2)]
        let storage = MemoryStorage()
        await servers[Self.here]!.addConvo(own)
        try await storage.write(firstValues(convo: own, groupID: WrongCallsTests.group(own)))
        await servers[Self.here]!.invite(.init(convo: far, service: Self.there.rawValue))
        let server = servers[Self.there]!
        await server.addConvo(far)
        await server.commit(far)
        try await server.addWelcome(far, FakeMLS.state(WrongCallsTests.group(far), 1))
        return (servers, storage)
    }

    private func joined(_ servers: [DID: ModelServer], _ storage: MemoryStorage) async throws -> Messenger {
        let phone = try await Self.phone(servers, storage)
        let events = await phone.events()
        try await phone.start(listening: false)
        try await phone.acceptInvitation(to: far, at: Self.there)
        for await event in events { if event == .joined(convoId: far) { break } }
        return phone
    }

    /// Waits for what the phone does in the background.
    private func eventually(_ isTrue: () async throws -> Bool) async throws {
        while try await !isTrue() { await Task.yield() }
    }

    private func hasMoved(_ phone: Messenger) async throws -> Bool {
        let isLeft = try await phone.services.former().isEmpty
        let isSent = await phone.outbox.pending.isEmpty
        return isLeft && isSent
    }

    /// A kill at each step of the acceptance, the way to the other service, join, confirm, read.
    func testInvitationKilledAtEachStep() async throws {
        for step in 1... {
            let (servers, storage) = try await begin()
            let life = Life(seed: 0, at: step)
            do {
                let first = try await Self.phone(servers, storage, life)
                try await first.start(listening: false)
                try await first.acceptInvitation(to: far, at: Self.there)
                try await eventually {
                    if await life.isOver { return true }
                    return try await first.records.read(Thread.self, Thread.prefix + self.far)?.seq == 1
                }
                await first.stop()
            } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            let killed = await life.isOver
            let second = try await Self.phone(servers, storage, seed: 2)
            try await second.start(listening: false)
            let known = try await second.services.of(far)
            if known == nil { try await second.acceptInvitation(to: far, at: Self.there) }
            try await eventually { try await second.convos().contains(self.far) }
            try await second.join(far) // returns when it is confirmed
            let write = try await second.send(text("hello"), to: far)
            _ = try await second.outbox.finished(write.id)
            let (texts, home) = try await (servers[Self.there]!.texts(far), servers[Self.here]!.log(far).count)
            XCTAssertEqual(texts, ["hello"], "killed at step \(step)")
            XCTAssertEqual(home, 0)
            let welcome = await servers[Self.there]!.welcomes[far]
            XCTAssertEqual([welcome?.consumed, welcome?.failures == 0], [true, true], "killed at step \(step)")
            await second.stop()
            if !killed { return XCTAssertGreaterThan(step, 12) }
        }
    }

    /// The home has the invitation, and learns of the answer. The convo's service hears that the person does not
    /// come, also in the next life.
    func testDeclines() async throws {
        let (servers, storage) = try await begin()
        await servers[Self.there]!.set(WrongCallsTests.offline)
        let first = try await Self.phone(servers, storage)
        let open = try await first.invitations().map(\.state)
        XCTAssertEqual(open, [.open])
        try await first.declineInvitation(to: far, at: Self.there)
        await first.stop()
        let answered = await servers[Self.here]!.invitations.map(\.state)
        XCTAssertEqual(answered, ["declined"])
        await servers[Self.there]!.set(.init())
        let second = try await Self.phone(servers, storage, seed: 2)
        try await second.start(listening: false)
        await servers[Self.there]!.reached(LeaveConvo.nsid, times: 1)
        try await eventually { await second.records.names(Elsewhere.prefix).isEmpty }
        let convos = try await second.convos()
        XCTAssertEqual(convos, [own])
        await second.stop()
    }

    /// A service that is away delays its own convo only, and another one's refusal stops nothing.
    func testAServiceIsAway() async throws {
        let (servers, storage) = try await begin()
        let phone = try await joined(servers, storage)
        await servers[Self.there]!.set(WrongCallsTests.offline)
        let late = try await phone.send(text("late"), to: far)
        let now = try await phone.send(text("now"), to: own)
        _ = try await phone.outbox.finished(now.id)
        try await phone.catchUp()
        let pending = await phone.outbox.pending.map(\.id)
        XCTAssertEqual(pending, [late.id])
        await servers[Self.there]!.set(.init())
        _ = try await phone.outbox.finished(late.id)
        let texts = try await (servers[Self.here]!.texts(own), servers[Self.there]!.texts(far))
        XCTAssertTrue(texts == (["now"], ["late"]), "\(texts)")
        await phone.stop()
    }

    /// KeyPackages are claimed at the home of each person, as the convo's service knows it. The convo's service
    /// gets the receipts of the others.
    func testClaimsAtHomes() async throws {
        let (servers, storage) = try await begin()
        let phone = try await joined(servers, storage)
        let (bob, carol) = (DID("did:plc:bob"), DID("did:plc:carol"))
        for server in servers.values { await server.setHome(of: "did:plc:bob", Self.there.rawValue) }
        let created = try await phone.create(with: [bob, carol])
        _ = try await phone.outbox.finished(created.id)
        let first = await servers[Self.here]!.receipts
        XCTAssertEqual(first, ["of did:plc:bob"])
        await servers[Self.there]!.setHome(of: "did:plc:carol", Self.here.rawValue)
        let added = try await phone.add([bob, carol], to: far)
        _ = try await phone.outbox.finished(try XCTUnwrap(added).id)
        let second = await servers[Self.there]!.receipts
        XCTAssertEqual(second, ["of did:plc:carol"])
        let claims = await (servers[Self.here]!.claims, servers[Self.there]!.claims)
        XCTAssertTrue(claims == (2, 2), "\(claims)")
        await phone.stop()
    }

    /// Pushes are registered at the home, and at each other service that has convos.
    func testPushes() async throws {
        let (servers, storage) = try await begin()
        let phone = try await Self.phone(servers, storage)
        try await phone.start(listening: false)
        try await phone.registerPushTarget(.init(deviceId: "phone", kind: .apns, token: "t"))
        try await phone.acceptInvitation(to: far, at: Self.there)
        await servers[Self.there]!.reached(RegisterPushTarget.nsid, times: 1)
        try await phone.registerPushTarget(.init(deviceId: "phone", kind: .apns, token: "u"))
        await servers[Self.there]!.reached(RegisterPushTarget.nsid, times: 2)
        let targets = await (servers[Self.here]!.pushTargets, servers[Self.there]!.pushTargets)
        XCTAssertTrue(targets == (["t", "u"], ["t", "u"]), "\(targets)")
        await phone.stop()
    }

    /// What a service says of another one's convo, and of invitations, is not believed.
    func testNoServiceSpeaksForAnother() async throws {
        let (servers, storage) = try await begin()
        let phone = try await joined(servers, storage)
        await phone.stop()
        for (convo, service) in [(own, Self.there), (far, Self.here), (far, DID("did:web:third.example"))] {
            do {
                try await phone.acceptInvitation(to: convo, at: service)
                XCTFail("\(convo) at \(service)")
            } catch { XCTAssertEqual(error as? MessengerError, .notAt(service, convoId: convo)) }
        }
        let single = try await WrongCallsTests.messenger(servers[Self.here]!, MemoryStorage())
        do {
            try await single.acceptInvitation(to: far, at: Self.there)
            XCTFail("there is a way")
        } catch { XCTAssertEqual(error as? MessengerError, .noWay(Self.there)) }
        let left: [String: any Sendable] = [
            "cursor": "1", "did": "did:plc:bob", "change": "left", "commitNeeded": false, "epoch": 1, "seq": 1, "createdAt": "2026-11-27T09:30:00.123Z",
        ]
        let liar = servers[Self.there]!
        await liar.emit("membershipEvent", left.merging(["convoId": own]) { $1 })
        await liar.emit("invitationEvent", ModelServer.Invitation(convo: WrongCallsTests.unknown, service: Self.there.rawValue).fields)
        await liar.emit("resetEvent", [
            "cursor": "1", "convoId": far, "by": "did:plc:bob", "reason": "forked", "epoch": 1, "seq": 2, "createdAt": "2026-11-27T09:30:00.123Z",
            "successorConvoId": own,
        ])
        await liar.emit("membershipEvent", left.merging(["convoId": far]) { $1 })
        let next = try await Self.phone(servers, storage, seed: 3)
        let events = await next.events()
        try await next.start()
        var heard: [String] = []
        for await event in events {
            switch event {
            case .membership(let event): heard.append(event.convoId)
            case .request, .moved: XCTFail("\(event)")
            default: break
            }
            if heard == [far] { break }
        }
        let successor = try await next.thread(far).resetTo
        XCTAssertNil(successor)
        await next.stop()
    }

    /// The person moves, and the app is killed at one of many steps. Convos stay where they are, with what was to be sent;
    /// an invitation on its way to the old home arrives; nothing of the old stock is left there or is at both.
    func testMovesKilled() async throws {
        for step in stride(from: 1, to: 1000, by: 7) {
            let (servers, storage) = try await begin()
            let (old, new) = (servers[Self.here]!, servers[Self.there]!)
            let before = try await Self.phone(servers, storage)
            try await before.start(listening: false)
            let stock = try await published(by: before, at: old)
            await before.stop()
            try await before.send(text("waits"), to: own)
            let made = try await before.create(with: [])

            let life = Life(seed: 0, at: step)
            do {
                let first = try await Self.phone(servers, home: Self.there, storage, life, seed: 2)
                try await first.start(listening: false)
                try await first.catchUp()
                try await first.acceptInvitation(to: far, at: Self.there) // the old home has it
                try await eventually {
                    if await life.isOver { return true }
                    return try await self.hasMoved(first)
                }
                await first.stop()
            } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            let killed = await life.isOver
            let second = try await Self.phone(servers, home: Self.there, storage, seed: 3)
            try await second.start(listening: false)
            try await second.catchUp()
            if await old.invitations[0].state == "open" { try await second.acceptInvitation(to: far, at: Self.there) }
            try await eventually { try await self.hasMoved(second) }
            try await eventually { await new.refs.count >= Messenger.stock }
            let texts = try await old.texts(own)
            XCTAssertEqual(texts, ["waits"], "killed at step \(step)")
            let created = try await second.records.list(Thread.self, Thread.prefix).first { $0.groupId == made.note }?.convoId
            let at = try await second.services.of(XCTUnwrap(created))
            XCTAssertEqual(at, Self.here, "killed at step \(step)")
            let convos = try await second.convos()
            XCTAssertEqual(convos.count, 3, "\(convos), killed at step \(step)") // and the one of the new home
            try await second.makeGood(far) // what was published at the old home is not what the new one gets
            let (left, both) = await (old.refs, stock.intersection(new.refs))
            XCTAssertTrue(left.isEmpty && both.isEmpty, "\(left), \(both), killed at step \(step)")
            await second.stop()
            if !killed { return XCTAssertGreaterThan(step, 12) }
        }
    }

    private func published(by phone: Messenger, at server: ModelServer) async throws -> Set<String> {
        try await phone.restock()
        for write in await phone.outbox.pending where write.nsid == PublishKeyPackages.nsid { _ = try await phone.outbox.finished(write.id) }
        return await Set(server.refs)
    }

    /// Other services remember the old record for an hour. So long their people get KeyPackages at the old home.
    func testTheOldStockStaysForAnHour() async throws {
        let (servers, storage) = try await begin()
        let first = try await Self.phone(servers, storage)
        try await first.start(listening: false)
        let stock = try await published(by: first, at: servers[Self.here]!)
        await first.stop()
        let moved = servers.merging([DID("did:web:third.example"): ModelServer(seed: 3)]) { $1 }
        for (time, next, left) in [(0, 3600, stock), (3600, 8 * 24 * 3600 - 3600, [])] as [(TimeInterval, TimeInterval, Set<String>)] {
            let waits = AsyncStream<TimeInterval>.makeStream()
            let surroundings = Surroundings(now: { Date(timeIntervalSince1970: 1_800_000_000 + time) }) { seconds in
                waits.continuation.yield(seconds)
                try await Task.sleep(nanoseconds: 1_000_000_000_000_000) // until the phone stops
            }
            let phone = try await Self.phone(moved, home: DID("did:web:third.example"), storage, seed: 2, surroundings: surroundings)
            try await phone.start(listening: false)
            for await wait in waits.stream { if wait == next { break } }
            let there = await Set(servers[Self.here]!.refs)
            XCTAssertEqual(there, left, "after \(time) seconds")
            await phone.stop()
        }
    }

    /// What is on its way to the old home arrives once, and is answered there. Until then it is looked after.
    func testInvitationAtTheOldHome() async throws { for isStreamed in [true, false] { try await invitationAtTheOldHome(isStreamed) } }

    private func invitationAtTheOldHome(_ isStreamed: Bool) async throws {
        let (servers, storage) = try await begin()
        let first = try await Self.phone(servers, storage)
        await first.stop()
        let third = DID("did:web:third.example")
        let moved = servers.merging([third: ModelServer(seed: 3)]) { $1 }
        if isStreamed {
            await storage.write([Name.cursor(Self.here): text("0")]) // it has listened before: it does not look for invitations
            await servers[Self.here]!.emit("invitationEvent", ModelServer.Invitation(convo: far, service: Self.there.rawValue).fields)
        }
        let phone = try await Self.phone(moved, home: third, storage, seed: 2)
        let events = await phone.events()
        try await phone.start(listening: isStreamed)
        if !isStreamed { try await phone.catchUp() }
        for await event in events {
            guard case .request(let request) = event else { continue }
            XCTAssertEqual(request.service, Self.there)
            try await phone.accept(request.convoId)
            break
        }
        for await event in events { if event == .joined(convoId: far) { break } }
        try await eventually { try await self.hasMoved(phone) }
        let answered = await servers[Self.here]!.invitations.map(\.state)
        XCTAssertEqual(answered, ["accepted"])
        let at = try await (phone.services.of(own), phone.services.of(far))
        XCTAssertTrue(at == (Self.here, Self.there), "\(at)")
        await phone.stop()
    }

    /// A reset names the receipts of members from elsewhere. It does not wait for a home that is away.
    func testResetsAcrossServices() async throws {
        let (servers, storage) = try await begin()
        let (server, third) = (servers[Self.there]!, DID("did:web:third.example"))
        let all = servers.merging([third: ModelServer(seed: 3)]) { $1 }
        await all[third]!.set(WrongCallsTests.offline)
        let others = ["bob", "carol", "dave"].map { FakeMLS.leaf(of: "did:plc:" + $0) }
        let members = [FakeMLS.leaf(of: ModelServer.caller, "phone")] + others
        try await server.addWelcome(far, FakeMLS.state(WrongCallsTests.group(far), 1, members))
        let phone = try await joined(all, storage)
        await server.addMembers(["did:plc:bob", "did:plc:carol", "did:plc:dave"], to: far)
        for (person, home) in [("bob", Self.here), ("carol", third)] { await server.setHome(of: "did:plc:" + person, home.rawValue) }
        let write = try await phone.reset(far, because: .forked)
        _ = try await phone.outbox.finished(write.id)
        let receipts = await server.receipts
        XCTAssertEqual(receipts, ["of did:plc:bob"])
        await phone.stop()
    }

    /// A convo of another service that is reset goes on there.
    func testResetElsewhere() async throws {
        let (servers, storage) = try await begin()
        let phone = try await joined(servers, storage)
        let events = await phone.events()
        let next = "0192f3a4-bbbb-7bbb-8ccc-000000000001"
        await servers[Self.there]!.reset(far, to: next)
        try await phone.sync(far)
        for await event in events { if event == .moved(convoId: far, successor: next) { break } }
        let write = try await phone.send(text("after"), to: next)
        _ = try await phone.outbox.finished(write.id)
        let texts = try await servers[Self.there]!.texts(next)
        XCTAssertEqual(texts, ["after"])
        await phone.stop()
    }
}
