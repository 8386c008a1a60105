import Foundation

/// What an attempt's outcome asks for.
public enum Verdict: String, Sendable, Codable {
    /// Send the same bytes under the same key again, after a wait.
    case again
    /// The same, but not before the time at which the quota begins anew. Tell the user.
    case atReset
    /// The account may not write now. Keep everything, and go on when the app calls `resume`.
    case hold
    /// Bring the group up to date, and encrypt again under a new key.
    case newEpoch
    /// The server possibly has lost writes: docs/RECOVERY.md.
    case recover
    /// Repeating it does not help.
    case refuse
}

/// The retry rule of docs/CLIENTS.md as data: the first row that matches counts. What matches no row
/// is refused.
public struct RetryRule: Sendable {
    /// nil: no answer came, or none that can be read.
    public let status: Int?
    public let name: ErrorName?
    public let text: String?
    public let verdict: Verdict

    init(_ status: Int?, _ name: ErrorName? = nil, saying text: String? = nil, then verdict: Verdict) {
        (self.status, self.name, self.text, self.verdict) = (status, name, text, verdict)
    }

    public static let table: [RetryRule] = [
        RetryRule(nil, then: .again),
        RetryRule(429, .quotaExceeded, then: .atReset),
        RetryRule(408, then: .again),
        RetryRule(425, then: .again),
        RetryRule(429, then: .again),
        RetryRule(500, then: .again),
        RetryRule(502, then: .again),
        RetryRule(503, then: .again),
        RetryRule(504, then: .again),
        RetryRule(401, .invalidToken, saying: "token was used before", then: .again),
        RetryRule(401, .invalidToken, saying: "token has expired", then: .again),
        RetryRule(401, then: .hold),
        RetryRule(403, .blocked, saying: "is blocked by the caller", then: .refuse),
        RetryRule(403, .blocked, then: .hold),
        RetryRule(403, .accountInactive, then: .hold),
        RetryRule(409, .requestInProgress, then: .again),
        RetryRule(409, .epochMismatch, saying: "is ahead", then: .recover),
        RetryRule(409, .epochMismatch, then: .newEpoch),
        RetryRule(404, .convoNotFound, then: .recover),
        RetryRule(409, .convoClosed, then: .refuse),
        RetryRule(409, .idempotencyConflict, then: .refuse),
    ]

    /// What the outcome of an attempt asks for.
    public static func verdict(on error: any Error) -> Verdict {
        if error is InvalidInput { return .refuse }
        guard let answer = error as? ServiceError else { return .again }
        let rule = table.first { rule in
            rule.status == answer.status && (rule.name ?? answer.name) == answer.name
                && (rule.text.map(answer.message.contains) ?? true)
        }
        return rule?.verdict ?? .refuse
    }
}

/// Time and chance, which tests replace.
public struct Surroundings: Sendable {
    public var now: @Sendable () -> Date
    /// Waits for a number of seconds. It throws if its task is cancelled.
    public var sleep: @Sendable (_ seconds: Double) async throws -> Void
    /// A number from 0 to 1.
    public var random: @Sendable () -> Double

    public init(
        now: @escaping @Sendable () -> Date = { Date() },
        sleep: @escaping @Sendable (Double) async throws -> Void = { try await Task.sleep(nanoseconds: nanoseconds($0)) },
        random: @escaping @Sendable () -> Double = { .random(in: 0...1) }
    ) {
        (self.now, self.sleep, self.random) = (now, sleep, random)
    }

    /// Seconds to wait before the next attempt: twice as long each time, half of it at random, and at
    /// least what the service asks for, between a second and an hour.
    func backoff(after attempts: Int, _ error: any Error) -> Double {
        let longest = min(30, 0.5 * pow(2, Double(min(attempts, 10))))
        let asked = (error as? ServiceError)?.retryAfter.map(boundedWait) ?? 0
        return max(asked, longest / 2) + random() * longest / 2
    }
}

/// A wait that somebody else asks for, in seconds: at least one, so that nobody is asked without a pause, and at most an
/// hour, so that a mistake of a proxy does not stop a device for days.
func boundedWait(_ seconds: Double) -> Double { seconds.isNaN ? 1 : min(max(seconds, 1), 3600) }

/// For `Task.sleep`: what is no number, or is longer than 30 years, is none that it can take.
@usableFromInline func nanoseconds(_ seconds: Double) -> UInt64 { UInt64((seconds > 0 ? min(seconds, 1e9) : 0) * 1e9) }
