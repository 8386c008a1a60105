import Foundation

/// Bytes of a lexicon field of type `bytes`: `{"$bytes": "<base64>"}` in JSON, padded or not.
public struct Bytes: Codable, Hashable, Sendable {
    public var data: Data

    public init(_ data: Data) { self.data = data }

    private enum CodingKeys: String, CodingKey { case base64 = "$bytes" }

    public init(from decoder: any Decoder) throws {
        let container = try decoder.container(keyedBy: CodingKeys.self)
        data = try dataOfBase64(container.decode(String.self, forKey: .base64), at: container.codingPath)
    }

    public func encode(to encoder: any Encoder) throws {
        var container = encoder.container(keyedBy: CodingKeys.self)
        try container.encode(data.base64EncodedString(), forKey: .base64)
    }
}

/// Bytes of a lexicon field that is base64 text, such as a KeyPackage or a Welcome. Both alphabets
/// are read, padded or not.
public struct Base64Text: Codable, Hashable, Sendable {
    public var data: Data

    public init(_ data: Data) { self.data = data }

    public init(from decoder: any Decoder) throws {
        let container = try decoder.singleValueContainer()
        data = try dataOfBase64(container.decode(String.self), at: container.codingPath)
    }

    public func encode(to encoder: any Encoder) throws {
        var container = encoder.singleValueContainer()
        try container.encode(data.base64EncodedString())
    }
}

private func dataOfBase64(_ text: String, at path: [any CodingKey]) throws -> Data {
    var standard = text.replacingOccurrences(of: "-", with: "+").replacingOccurrences(of: "_", with: "/")
    while standard.utf8.count % 4 != 0 { standard += "=" }
    guard let data = Data(base64Encoded: standard) else {
        throw DecodingError.dataCorrupted(.init(codingPath: path, debugDescription: "not base64"))
    }
    return data
}

/// The permanent id of an account, such as `did:plc:…`.
public struct DID: RawRepresentable, Codable, Hashable, Sendable, CustomStringConvertible {
    public let rawValue: String
    public init(rawValue: String) { self.rawValue = rawValue }
    public init(_ text: String) { rawValue = text }
    public var description: String { rawValue }
}

/// A time as the service writes it: RFC 3339, UTC, milliseconds. The text stays as it came.
public struct Timestamp: RawRepresentable, Codable, Hashable, Sendable {
    public let rawValue: String
    public init(rawValue: String) { self.rawValue = rawValue }

    /// The time, or nil if the text is none.
    public var date: Date? { Self.date(of: rawValue) }

    static func date(of text: String) -> Date? {
        let formatter = ISO8601DateFormatter()
        for options: ISO8601DateFormatter.Options in [[.withInternetDateTime, .withFractionalSeconds], .withInternetDateTime] {
            formatter.formatOptions = options
            if let date = formatter.date(from: text) { return date }
        }
        return nil
    }
}

/// A text with known values. A later version of the service may send others.
public protocol OpenEnum: RawRepresentable, Codable, Hashable, Sendable where RawValue == String {
    init(rawValue: String)
}

/// The body of a method that has none.
public struct NoBody: Codable, Hashable, Sendable {
    public init() {}
    public init(from decoder: any Decoder) throws {}
    public func encode(to encoder: any Encoder) throws {
        _ = encoder.container(keyedBy: NoKeys.self)
    }
}

private enum NoKeys: CodingKey {}

/// An input that may carry an idempotency key. It is made with a new key, so sending the same input
/// again sends the same key.
public protocol Keyed {
    var idempotencyKey: String? { get set }
}

/// A key that was never used.
public func newIdempotencyKey() -> String { UUID().uuidString.lowercased() }

/// The input with its key, or with a new one if it has none. Store what it returns before the first
/// attempt.
public func withIdempotencyKey<Input: Keyed>(_ input: Input) -> Input {
    var keyed = input
    keyed.idempotencyKey = input.idempotencyKey ?? newIdempotencyKey()
    return keyed
}

/// The parameters of a query.
public protocol QueryParameters: Checked, Sendable {
    var items: [URLQueryItem] { get }
}

/// The parameters of a query that has none.
public struct NoParameters: QueryParameters, Hashable {
    public init() {}
    public var items: [URLQueryItem] { [] }
}

/// Collects parameters: what is absent is left out, and an array becomes one item per element.
struct QueryItems {
    private(set) var items: [URLQueryItem] = []

    mutating func add(_ name: String, _ value: String?) {
        if let value { items.append(URLQueryItem(name: name, value: value)) }
    }
    mutating func add(_ name: String, _ value: Int?) { add(name, value.map(String.init)) }
    mutating func add(_ name: String, _ value: Bool?) { add(name, value.map(String.init)) }
    mutating func add(_ name: String, _ value: (some OpenEnum)?) { add(name, value?.rawValue) }
    mutating func add(_ name: String, _ value: DID?) { add(name, value?.rawValue) }
    mutating func add(_ name: String, _ values: [String]?) { values?.forEach { add(name, $0) } }
    mutating func add(_ name: String, _ values: [DID]?) { values?.forEach { add(name, $0) } }
}

/// A method of the lexicons.
public protocol Method: Sendable {
    static var nsid: String { get }
}

/// A method that is called with GET.
public protocol Query: Method {
    associatedtype Parameters: QueryParameters
    associatedtype Output: Decodable & Sendable
}

/// A method that is called with POST.
public protocol Procedure: Method {
    associatedtype Input: Checked & Codable & Hashable & Sendable
    associatedtype Output: Decodable & Sendable
}

/// A query whose answer is a stream of events.
public protocol EventQuery: Method {
    associatedtype Parameters: QueryParameters
    associatedtype Event: Sendable
}

/// The JSON of an input. Equal inputs have equal bytes.
func encoded(_ value: some Encodable) throws -> Data {
    let encoder = JSONEncoder()
    encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
    return try encoder.encode(value)
}
