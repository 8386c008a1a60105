import MLSDelivery
import MLSDeliveryDev
import TestSupport
import XCTest

/// The outbox's property: whatever fails, and wherever the app is killed, each message is in the log exactly
/// once, in its order.
final class OutboxTests: XCTestCase {
    static let convo = WrongCallsTests.convo
    static let account = DID("did:plc:alice")

    /// One life of the app.
    static func live(_ server: ModelServer, _ storage: MemoryStorage, _ life: Life, seed: UInt64, _ count: Int) async throws {
        let service = Service(
            .direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: MortalTransport(server, life)
        )
        let messenger = try await Messenger(
            account: account, service: service, accounts: UncheckedAccounts(), storage: MortalStorage(storage, life), surroundings: simulated(seed: seed, life: life)
        ) { try FakeMLS($0, device: "phone", seed: seed) }
        do { try await sendNumbered(messenger, convo, count, life: life) } catch {
            await messenger.stop()
            guard await life.isOver else { throw error }
        }
    }

    /// Lives until all messages are sent, and returns how many lives it took.
    static func liveOn(_ server: ModelServer, _ storage: MemoryStorage, seed: UInt64, killed: Int, _ count: Int) async throws -> Int {
        for lives in 1... {
            let life = Life(seed: seed &+ UInt64(lives), times: killed)
            try await live(server, storage, life, seed: seed &* 1000 &+ UInt64(lives), count)
            if await !life.isOver { return lives }
        }
        return 0
    }

    static func begin(seed: UInt64) async throws -> (ModelServer, MemoryStorage) {
        let (server, storage) = (ModelServer(seed: seed), MemoryStorage())
        await server.addConvo(convo)
        try await storage.write(firstValues(convo: convo, groupID: WrongCallsTests.group(convo)))
        return (server, storage)
    }

    func wanted(_ count: Int) -> [String] { (0..<count).map { "message \($0)" } }

    func testThousandMessagesThroughEveryFault() async throws {
        let runs = Int(ProcessInfo.processInfo.environment["MLSD_SWIFT_RUNS"] ?? "") ?? 3
        for seed in 1...UInt64(runs) {
            let (server, storage) = try await Self.begin(seed: seed)
            await server.set(.all)
            let lives = try await Self.liveOn(server, storage, seed: seed, killed: 60, 1000)
            let texts = try await server.texts(Self.convo)
            XCTAssertEqual(texts, wanted(1000), "seed \(seed)")
            let struck = await server.struck
            for fault in ["lostRequest", "lostAnswer", "429", "503", "inProgress", "usedToken", "race", "portal"] {
                XCTAssertGreaterThan(struck[fault] ?? 0, 0, "\(fault) never struck, seed \(seed)")
            }
            print("seed \(seed): 1000 messages, \(lives - 1) kills, faults \(struck.sorted { $0.key < $1.key }.map { "\($0.key) \($0.value)" })")
        }
    }

    /// A kill at each single step of a short run.
    func testKilledAtEachStep() async throws {
        for step in 1... {
            let (server, storage) = try await Self.begin(seed: 7)
            var faults = ModelServer.Faults()
            (faults.lostAnswer, faults.race) = (3, 3)
            await server.set(faults)
            let life = Life(seed: 0, at: step)
            try await Self.live(server, storage, life, seed: 1, 4)
            let killed = await life.isOver
            _ = try await Self.liveOn(server, storage, seed: 2, killed: 0, 4)
            let texts = try await server.texts(Self.convo)
            XCTAssertEqual(texts, wanted(4), "killed at step \(step)")
            if !killed {
                XCTAssertGreaterThan(step, 20)
                return
            }
        }
    }
}
