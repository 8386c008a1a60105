import Foundation

/// Waits before a further attempt at a service that did not answer. A sign of life ends them: the network is back.
final class Waits: @unchecked Sendable {
    private let surroundings: Surroundings
    private let lock = NSLock() // guards the rest
    private var running: [UUID: Task<Void, any Error>] = [:]
    private var lastSign: Date?

    init(_ surroundings: Surroundings) { self.surroundings = surroundings }

    /// Waits after a failure. A sign of life ends the wait only if there was no answer: what a service asks for is kept.
    /// It throws if its task is cancelled.
    func pause(_ seconds: Double, after error: any Error) async throws {
        guard error is NoAnswer else { return try await surroundings.sleep(seconds) }
        let (id, sleep) = (UUID(), Task { [surroundings] in try await surroundings.sleep(seconds) })
        lock.withLock { running[id] = sleep }
        defer { lock.withLock { running[id] = nil } }
        let result = await withTaskCancellationHandler { await sleep.result } onCancel: { sleep.cancel() }
        try Task.checkCancellation()
        if case .failure(let error) = result, !(error is CancellationError) { throw error }
    }

    /// The service has been heard of. In a second it counts once: a stream brings many events, and one method alone can
    /// fail meanwhile. It returns whether it counts.
    func sign() -> Bool {
        let now = surroundings.now()
        let isFirst = lock.withLock {
            if let lastSign, abs(now.timeIntervalSince(lastSign)) < 1 { return false }
            lastSign = now
            return true
        }
        if isFirst { end() }
        return isFirst
    }

    /// Ends all waits that have begun.
    func end() {
        for sleep in lock.withLock({ running.values }) { sleep.cancel() }
    }
}
