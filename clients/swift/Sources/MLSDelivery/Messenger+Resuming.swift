import Foundation

/// What goes on after an interruption.
extension Messenger {
    /// Goes on with everything that has stopped or waits: after a new sign-in, or when the network is back. Held lanes
    /// of the outbox, event streams that a refusal has ended, Welcomes, accounts that could not be asked. Before `start`
    /// it only wakes the outbox.
    public func resume() async throws {
        waits.end()
        await outbox.retryNow()
        await outbox.resume()
        if isStarted { try await goOn(listening: listening) }
    }

    /// A service has answered on a stream: what waits because there was no answer is tried now.
    func hearSign() async {
        if waits.sign() { await outbox.retryUnanswered() }
    }
}
