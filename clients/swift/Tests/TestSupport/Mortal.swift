import Foundation
import MLSDelivery

/// What a kill ends. In a process it is the process; in a test of one process all later steps fail.
public actor Life {
    public struct Killed: Error {}
    private var random: Random
    private let times: Int
    private var stepsLeft: Int?
    private let kill: @Sendable () -> Void
    public private(set) var isOver = false
    public private(set) var steps = 0

    /// Ends at random, one in so many steps (0: never), or at the given step. `kill` is called then.
    public init(seed: UInt64, times: Int = 0, at step: Int? = nil, kill: @escaping @Sendable () -> Void = {}) {
        (random, self.times, stepsLeft, self.kill) = (Random(seed: seed), times, step, kill)
    }

    /// A point at which the app can be killed.
    public func step() throws {
        if isOver { throw Killed() }
        steps += 1
        if let left = stepsLeft { stepsLeft = left - 1 }
        if stepsLeft == 0 || times > 0 && random.once(in: times) {
            isOver = true
            kill()
            throw Killed()
        }
    }
}

/// A storage whose app can be killed before and after each write.
public struct MortalStorage: Storage {
    let storage: any Storage
    let life: Life
    public init(_ storage: any Storage, _ life: Life) { (self.storage, self.life) = (storage, life) }
    public func load() async throws -> [String: Data] { try await storage.load() }
    public func write(_ changes: Changes) async throws {
        try await life.step()
        try await storage.write(changes)
        try await life.step()
    }
}

/// A transport whose app can be killed before each request, and between its arrival and the answer.
public struct MortalTransport: Transport {
    let transport: any Transport
    let life: Life
    public init(_ transport: any Transport, _ life: Life) { (self.transport, self.life) = (transport, life) }
    public func send(_ request: Request) async throws -> Answer {
        try await life.step()
        let answer = try await transport.send(request)
        try await life.step()
        return answer
    }
    public func open(_ request: Request) async throws -> (Answer, AsyncThrowingStream<Data, any Error>) {
        try await life.step()
        return try await transport.open(request)
    }
}

/// A storage in memory, which outlives its apps.
public actor MemoryStorage: Storage {
    public private(set) var values: [String: Data] = [:]
    public init() {}
    public func load() -> [String: Data] { values }
    public func write(_ changes: Changes) {
        for (name, value) in changes { values[name] = value }
    }
}

/// Surroundings in which time passes only when somebody waits, and a seed determines numbers and keys.
public func simulated(seed: UInt64, life: Life? = nil) -> Surroundings {
    let numbers = Numbers(seed: seed)
    return Surroundings(
        now: { numbers.now() },
        sleep: { seconds in
            try Task.checkCancellation()
            if let life, await life.isOver { throw Life.Killed() }
            numbers.pass(seconds)
            await Task.yield()
        },
        random: { numbers.number() }
    )
}

/// Time, numbers and keys of one seed.
private final class Numbers: @unchecked Sendable {
    private let lock = NSLock()
    private var random: Random
    private var time = Date(timeIntervalSince1970: 1_800_000_000)
    init(seed: UInt64) { random = Random(seed: seed) }
    func now() -> Date { lock.withLock { time } }
    func pass(_ seconds: Double) { lock.withLock { time += seconds } }
    func number() -> Double { lock.withLock { .random(in: 0...1, using: &random) } }
}
