import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// Welcomes, KeyPackages and the recovery after a loss, against the model server.
final class MessengerTests: XCTestCase {
    let convo = OutboxTests.convo

    func messenger(_ server: ModelServer, _ storage: MemoryStorage, _ life: Life, seed: UInt64) async throws -> Messenger {
        let service = Service(
            .direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: MortalTransport(server, life)
        )
        return try await Messenger(
            account: OutboxTests.account, service: service, accounts: UncheckedAccounts(), storage: MortalStorage(storage, life), surroundings: simulated(seed: seed, life: life)
        ) { try FakeMLS($0, device: "phone", seed: seed) }
    }

    /// A kill at each step of fetch, store, join, confirm, read: the device joins, and confirms.
    func testWelcomeKilledAtEachStep() async throws {
        for step in 1... {
            let (server, storage) = (ModelServer(seed: 1), MemoryStorage())
            await server.addConvo(convo)
            await server.commit(convo)
            try await server.addWelcome(convo, FakeMLS.state(WrongCallsTests.group(convo), 1))
            let life = Life(seed: 0, at: step)
            let first = try await messenger(server, storage, life, seed: 2)
            do { try await first.join(convo) } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            await first.stop()
            let killed = await life.isOver
            if killed {
                let second = try await messenger(server, storage, Life(seed: 0), seed: 3)
                let joined = try await second.convos()
                let open = await second.records.names(KeptWelcome.prefix)
                if joined.isEmpty || !open.isEmpty { try await second.join(convo) }
                try await second.sync(convo)
                let convos = try await second.convos()
                XCTAssertEqual(convos, [convo], "killed at step \(step)")
            }
            let welcome = await server.welcomes[convo]
            XCTAssertEqual(welcome?.consumed, true, "killed at step \(step)")
            XCTAssertEqual(welcome?.failures, 0)
            if !killed { return XCTAssertGreaterThan(step, 8) }
        }
    }

    /// A stored Welcome needs no service (A20): the app was killed after the fetch, and starts
    /// again without a network. The device joins, and its message waits; with the network back it
    /// confirms and sends. Before, it could only join once the service had answered.
    func testJoinFromStoredWelcomeOffline() async throws {
        let (server, storage) = (ModelServer(seed: 1), MemoryStorage())
        await server.addConvo(convo)
        await server.commit(convo)
        let welcome = try FakeMLS.state(WrongCallsTests.group(convo), 1)
        await server.addWelcome(convo, welcome)
        let kept = KeptWelcome(convoId: convo, welcome: welcome, keyPackageRef: "00")
        try await storage.write([kept.name: encoded(kept)])
        await server.set(WrongCallsTests.offline)
        let phone = try await messenger(server, storage, Life(seed: 0), seed: 2)
        let events = await phone.events()
        try await phone.join(convo)
        let joined = try await phone.convos()
        XCTAssertEqual(joined, [convo])
        for await event in events { if event == .joined(convoId: convo) { break } }
        try await phone.start(listening: false)
        try await phone.send(Data("hello".utf8), to: convo)
        let before = await server.welcomes[convo]
        XCTAssertEqual([before?.fetched, before?.failures], [0, 0])
        await server.set(.init())
        try await untilEmpty(phone)
        try await phone.join(convo) // returns when it is confirmed
        let after = await server.welcomes[convo]
        XCTAssertEqual([after?.consumed, after?.fetched == 0], [true, true])
        let texts = try await server.texts(convo)
        XCTAssertEqual(texts, ["hello"])
        await phone.stop()
    }

    /// A stored Welcome that a newer one has replaced meanwhile: the device joins with it, learns
    /// that when it confirms, and joins with the newer one.
    func testStoredWelcomeIsReplaced() async throws {
        let (server, storage) = (ModelServer(seed: 1), MemoryStorage())
        await server.addConvo(convo)
        for _ in 0..<3 { await server.commit(convo) }
        let kept = KeptWelcome(convoId: convo, welcome: try FakeMLS.state(WrongCallsTests.group(convo), 1), keyPackageRef: "old")
        try await storage.write([kept.name: encoded(kept)])
        await server.addWelcome(convo, try FakeMLS.state(WrongCallsTests.group(convo), 3))
        let phone = try await messenger(server, storage, Life(seed: 0), seed: 2)
        try await phone.join(convo)
        let entered = try await phone.thread(convo).entered
        XCTAssertEqual(entered, 3)
        let welcome = await server.welcomes[convo]
        XCTAssertEqual(welcome?.consumed, true)
        await phone.stop()
    }

    /// A damaged Welcome: two fetches, two reports, and then back by an external commit.
    func testDamagedWelcome() async throws {
        let (server, storage) = (ModelServer(seed: 1), MemoryStorage())
        await server.addConvo(convo)
        await server.commit(convo)
        await server.addWelcome(convo, Data([9, 9]))
        let phone = try await messenger(server, storage, Life(seed: 0), seed: 2)
        try await phone.start(listening: false)
        try await phone.join(convo)
        let welcome = await server.welcomes[convo]
        XCTAssertEqual(welcome?.fetched, 2)
        XCTAssertEqual(welcome?.failures, 2)
        let epoch = await server.epoch(convo)
        XCTAssertEqual(epoch, 2)
        try await phone.send(Data("message 0".utf8), to: convo)
        try await untilEmpty(phone)
        let texts = try await server.texts(convo)
        XCTAssertEqual(texts, ["message 0"])
        await phone.stop()
    }

    /// Lost answers do not lead to more KeyPackages than are needed, and none is made twice.
    func testStock() async throws {
        let (server, storage) = (ModelServer(seed: 5), MemoryStorage())
        var faults = ModelServer.Faults()
        (faults.lostAnswer, faults.lostRequest) = (2, 3)
        await server.set(faults)
        let phone = try await messenger(server, storage, Life(seed: 0), seed: 2)
        let events = await phone.outbox.events()
        try await phone.start(listening: false)
        try await phone.restock()
        for await event in events { // a last-resort one goes in a batch of its own
            if case .accepted = event, await phone.outbox.pending.isEmpty { break }
        }
        let published = await server.keyPackages.count
        XCTAssertEqual(published, Messenger.stock + 1)
        try await phone.restock()
        let pending = await phone.outbox.pending
        XCTAssertEqual(pending, [])
        await phone.stop()
    }

    /// The device or the service has lost a part of the stock, or both have. Afterwards there is none that
    /// the device could not be welcomed by, and enough.
    func testLostStock() async throws {
        for seed in 1...UInt64(200) {
            let (server, storage) = (ModelServer(seed: seed), MemoryStorage())
            var random = Random(seed: seed)
            for life in 0...1 {
                let phone = try await messenger(server, storage, Life(seed: seed + UInt64(life)), seed: seed * 2 + UInt64(life))
                try await phone.start(listening: false)
                if life == 1 {
                    let published = await server.refs
                    let lost = { (of: Int, random: inout Random) in Set(published.filter { _ in Int.random(in: 0..<10, using: &random) < of }) }
                    await server.lose(lost(Int(seed % 4) * 3, &random))
                    await (phone.mls as? FakeMLS)?.lose(lost(Int(seed / 4 % 4) * 3, &random))
                }
                try await phone.restock()
                for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
                let held = await (phone.mls as? FakeMLS)?.keyPackageRefs() ?? []
                let served = await server.refs
                XCTAssertTrue(Set(served).isSubset(of: held), "seed \(seed): the service serves what the device has lost")
                XCTAssertGreaterThanOrEqual(served.count, 20, "seed \(seed)")
                await phone.stop()
            }
        }
    }

    /// The server goes back by a few hundred entries, other members' commits among them: every message is in
    /// the log once in the end.
    func testRestoredServer() async throws {
        let runs = Int(ProcessInfo.processInfo.environment["MLSD_SWIFT_RUNS"] ?? "") ?? 3
        for seed in 1...UInt64(runs) {
            let (server, storage) = try await OutboxTests.begin(seed: seed)
            var faults = ModelServer.Faults.all
            faults.race = seed % 2 == 0 ? 0 : 40 // without commits the same bytes come back, with them new ones
            await server.set(faults)
            _ = try await OutboxTests.liveOn(server, storage, seed: seed, killed: 60, 850)
            await server.backUp()
            _ = try await OutboxTests.liveOn(server, storage, seed: seed &+ 100, killed: 60, 980)
            let before = try await server.texts(convo).count
            await server.restore()
            faults.race = 0
            await server.set(faults)
            let lost = try await before - server.texts(convo).count
            XCTAssertEqual(lost, 130)
            let phone = try await messenger(server, storage, Life(seed: 0), seed: seed)
            try await phone.start(listening: false)
            for i in 980..<1000 { try await phone.send(Data("message \(i)".utf8), to: convo) }
            try await phone.makeGood(convo)
            try await untilEmpty(phone)
            let texts = try await server.texts(convo)
            XCTAssertEqual(texts.count, 1000, "seed \(seed)")
            XCTAssertEqual(Set(texts), Set((0..<1000).map { "message \($0)" }), "seed \(seed)")
            print("seed \(seed): the server lost \(lost) of 980 messages, \(texts.count) are there")
            await phone.stop()
        }
    }

    private func untilEmpty(_ phone: Messenger) async throws {
        for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
    }
}
