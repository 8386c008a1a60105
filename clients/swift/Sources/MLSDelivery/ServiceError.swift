import Foundation

/// The name of an error on the wire.
public struct ErrorName: OpenEnum {
    public let rawValue: String
    public init(rawValue: String) { self.rawValue = rawValue }

    // Names that every method can answer with. Those of single methods are generated.
    public static let accountInactive = Self(rawValue: "AccountInactive")
    public static let blocked = Self(rawValue: "Blocked")
    public static let invalidToken = Self(rawValue: "InvalidToken")
    public static let quotaExceeded = Self(rawValue: "QuotaExceeded")
    public static let rateLimitExceeded = Self(rawValue: "RateLimitExceeded")
}

/// An answer of the service, or of the PDS in front of it, with an error.
public struct ServiceError: Error, Hashable, Codable, Sendable {
    /// The HTTP status.
    public var status: Int
    public var name: ErrorName
    public var message: String
    /// Seconds after which a repetition makes sense, if the service says so.
    public var retryAfter: Double?

    public init(status: Int, name: ErrorName, message: String, retryAfter: Double? = nil) {
        self.status = status
        self.name = name
        self.message = message
        self.retryAfter = retryAfter
    }

    /// The convo's epoch, of an EpochMismatch. It is read from the message, because a PDS passes on
    /// nothing else.
    public var currentEpoch: Int? { after("currentEpoch=").flatMap { Int($0.prefix { $0.isNumber }) } }

    /// The position of the newest entry of a log that a cursor is ahead of.
    public var lastSeq: Int? { after("lastSeq=").flatMap { Int($0.prefix { $0.isNumber }) } }

    /// When a quota begins anew.
    public var resetsAt: Date? {
        after("resets at ").flatMap { Timestamp.date(of: String($0.prefix { !$0.isWhitespace && $0 != "," && $0 != ";" })) }
    }

    private func after(_ text: String) -> Substring? {
        message.range(of: text).map { message[$0.upperBound...] }
    }

    /// Reads the error of an answer whose status is no 2xx.
    init(_ answer: Answer) {
        struct Body: Decodable {
            var error: String?
            var message: String?
        }
        let body = try? JSONDecoder().decode(Body.self, from: answer.body) // a proxy may answer with other text
        self.init(
            status: answer.status, name: ErrorName(rawValue: body?.error ?? ""), message: body?.message ?? "",
            retryAfter: answer.headers["retry-after"].flatMap(Double.init)
        )
    }
}

/// There was no answer, or none that can be read: the outcome of a write is not known.
public struct NoAnswer: Error, Sendable {
    public var cause: any Error
    public init(_ cause: any Error) { self.cause = cause }
}
