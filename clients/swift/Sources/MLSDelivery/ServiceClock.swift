import Foundation

/// The service's time, by the header `Date` of its answers. A device whose clock is wrong would make KeyPackages that
/// nobody accepts, and would take living ones for expired.
final class ServiceClock: @unchecked Sendable {
    /// A device's clock is off if the difference is greater, in seconds. `Date` has whole seconds, and an answer can be
    /// late.
    static let tolerance: TimeInterval = 60

    private let device: Surroundings
    private let lock = NSLock() // guards the rest
    private var ahead: TimeInterval = 0
    private var tell: (@Sendable (TimeInterval) -> Void)?

    init(_ device: Surroundings) { self.device = device }

    /// By how much the device's clock is ahead of the service's, in seconds; 0 if it is right.
    var offset: TimeInterval { lock.withLock { ahead } }

    /// Time and chance, with the service's time.
    var surroundings: Surroundings {
        Surroundings(now: { self.device.now().addingTimeInterval(-self.offset) }, sleep: device.sleep, random: device.random)
    }

    /// `tell` is called when the offset has changed by more than the tolerance.
    func onChange(_ tell: @escaping @Sendable (TimeInterval) -> Void) { lock.withLock { self.tell = tell } }

    /// Takes the time of an answer. Only one in JSON, or of events, is the service's: a captive portal has a clock too.
    func take(_ answer: Answer) {
        let type = answer.headers["content-type"] ?? ""
        guard type.hasPrefix("application/json") || type.hasPrefix("text/event-stream"), let date = answer.headers["date"].flatMap(Self.date) else { return }
        let difference = device.now().timeIntervalSince(date)
        let now = abs(difference) > Self.tolerance ? difference : 0
        let changed = lock.withLock { () -> (@Sendable (TimeInterval) -> Void)? in
            if abs(now - ahead) <= Self.tolerance { return nil }
            ahead = now
            return tell
        }
        changed?(now)
    }

    /// The date of a header (RFC 9110 §5.6.7), such as `Sun, 06 Nov 1994 08:49:37 GMT`.
    static func date(_ text: String) -> Date? {
        let formatter = DateFormatter()
        formatter.locale = Locale(identifier: "en_US_POSIX")
        formatter.timeZone = TimeZone(identifier: "GMT")
        formatter.dateFormat = "EEE, dd MMM yyyy HH:mm:ss 'GMT'"
        return formatter.date(from: text)
    }
}

/// Carries requests, and looks at the time of their answers.
private struct Watched: Transport {
    let transport: any Transport
    let clock: ServiceClock

    func send(_ request: Request) async throws -> Answer {
        let answer = try await transport.send(request)
        clock.take(answer)
        return answer
    }
    func open(_ request: Request) async throws -> (Answer, AsyncThrowingStream<Data, any Error>) {
        let opened = try await transport.open(request)
        clock.take(opened.0)
        return opened
    }
}

extension Service {
    /// The same service, whose answers tell the time.
    func watched(by clock: ServiceClock) -> Service {
        var service = self
        service.transport = Watched(transport: transport, clock: clock)
        return service
    }
}

extension Messenger {
    /// The app hears that the device's clock is off, or right again. KeyPackages that were made with another time are
    /// perhaps refused: there are others then.
    func clockChanged(_ ahead: TimeInterval) {
        tell(.clock(aheadMs: Int((ahead * 1000).rounded())))
        if isStarted { later { try await $0.restock() } }
    }

    /// After a refusal of KeyPackages: if they were made with another time than that which the service says now, others
    /// are made.
    func restockAnew(after write: Write) {
        guard abs(clock.offset - madeWithOffset) > ServiceClock.tolerance else { return }
        madeWithOffset = clock.offset // once
        later { messenger in
            _ = try await messenger.outbox.finished(write.id)
            try await messenger.restock()
        }
    }
}
