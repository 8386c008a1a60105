import Foundation

/// A value of the AT Protocol's data model without links. In JSON, bytes are `{"$bytes": …}`.
indirect enum Node: Hashable, Sendable {
    case null
    case bool(Bool)
    case integer(Int64)
    case text(String)
    case bytes(Data)
    case array([Node])
    case map([String: Node])
}

extension Node: Codable {
    private static let bytesKey = "$bytes"

    init(from decoder: any Decoder) throws {
        let container = try decoder.singleValueContainer()
        if container.decodeNil() {
            self = .null
        } else if let value = try? container.decode(Bool.self) {
            self = .bool(value)
        } else if let value = try? container.decode(Int64.self) {
            self = .integer(value)
        } else if let value = try? container.decode(String.self) {
            self = .text(value)
        } else if let values = try? container.decode([Node].self) {
            self = .array(values)
        } else {
            let fields = try container.decode([String: Node].self)
            if fields.count == 1, fields[Self.bytesKey] != nil {
                self = .bytes(try container.decode(Bytes.self).data)
            } else {
                self = .map(fields)
            }
        }
    }

    func encode(to encoder: any Encoder) throws {
        var container = encoder.singleValueContainer()
        switch self {
        case .null: try container.encodeNil()
        case .bool(let value): try container.encode(value)
        case .integer(let value): try container.encode(value)
        case .text(let value): try container.encode(value)
        case .bytes(let value): try container.encode(Bytes(value))
        case .array(let values): try container.encode(values)
        case .map(let fields): try container.encode(fields)
        }
    }

    /// The value as a type of its own reads it.
    func decoded<Value: Decodable>(_ type: Value.Type) throws -> Value { try JSONDecoder().decode(type, from: JSONEncoder().encode(self)) }

    /// A value of a type of its own.
    init(_ value: some Encodable) throws { self = try JSONDecoder().decode(Node.self, from: JSONEncoder().encode(value)) }
}

/// DAG-CBOR: https://ipld.io/specs/codecs/dag-cbor/spec/. There is one encoding of each value, and only that is read.
extension Node {
    struct Malformed: Error {}

    private enum Major { static let integer: UInt8 = 0, negative: UInt8 = 1, bytes: UInt8 = 2, text: UInt8 = 3, array: UInt8 = 4, map: UInt8 = 5 }
    private static let (no, yes, nothing): (UInt8, UInt8, UInt8) = (0xf4, 0xf5, 0xf6)
    private static let deepest = 64

    var cbor: Data {
        switch self {
        case .null: return Data([Self.nothing])
        case .bool(let value): return Data([value ? Self.yes : Self.no])
        case .integer(let value): return value >= 0 ? Self.head(Major.integer, UInt64(value)) : Self.head(Major.negative, UInt64(-1 - value))
        case .text(let value): return Self.head(Major.text, UInt64(value.utf8.count)) + Data(value.utf8)
        case .bytes(let value): return Self.head(Major.bytes, UInt64(value.count)) + value
        case .array(let values): return values.reduce(Self.head(Major.array, UInt64(values.count))) { $0 + $1.cbor }
        case .map(let fields):
            let sorted = fields.map { (Data($0.key.utf8), $0.value) }.sorted { Self.precedes($0.0, $1.0) }
            return sorted.reduce(Self.head(Major.map, UInt64(fields.count))) { $0 + Self.head(Major.text, UInt64($1.0.count)) + $1.0 + $1.1.cbor }
        }
    }

    /// The order of keys: the shorter one first.
    private static func precedes(_ a: Data, _ b: Data) -> Bool { a.count != b.count ? a.count < b.count : a.lexicographicallyPrecedes(b) }

    private static func head(_ major: UInt8, _ value: UInt64) -> Data {
        let size = value < 24 ? 0 : value < 1 << 8 ? 1 : value < 1 << 16 ? 2 : value < 1 << 32 ? 4 : 8
        if size == 0 { return Data([major << 5 | UInt8(value)]) }
        let kind: UInt8 = size == 1 ? 24 : size == 2 ? 25 : size == 4 ? 26 : 27
        return Data([major << 5 | kind]) + (0..<size).map { UInt8(truncatingIfNeeded: value >> (8 * (size - 1 - $0))) }
    }

    /// Reads one value. Throws ``Malformed``.
    init(cbor: Data) throws {
        var rest = Data(cbor)[...]
        self = try Self.read(&rest, depth: 0)
        if !rest.isEmpty { throw Malformed() }
    }

    private static func read(_ rest: inout Data.SubSequence, depth: Int) throws -> Node {
        guard depth < deepest, let first = rest.first else { throw Malformed() }
        if [no, yes, nothing].contains(first) {
            rest = rest.dropFirst()
            return first == nothing ? .null : .bool(first == yes)
        }
        let (major, value) = try readHead(&rest)
        switch major {
        case Major.integer, Major.negative:
            guard let number = Int64(exactly: value) else { throw Malformed() }
            return .integer(major == Major.integer ? number : -1 - number)
        case Major.bytes: return .bytes(try take(&rest, value))
        case Major.text: return .text(try readText(&rest, value))
        case Major.array: return .array(try (0..<readCount(rest, value)).map { _ in try read(&rest, depth: depth + 1) })
        case Major.map:
            var (fields, last): ([String: Node], Data?) = ([:], nil)
            for _ in 0..<(try readCount(rest, value)) {
                let (kind, length) = try readHead(&rest)
                let key = kind == Major.text ? try readText(&rest, length) : ""
                let bytes = Data(key.utf8)
                if kind != Major.text { throw Malformed() }
                if let last, !precedes(last, bytes) { throw Malformed() }
                last = bytes
                fields[key] = try read(&rest, depth: depth + 1)
            }
            return .map(fields)
        default: throw Malformed()
        }
    }

    private static func readHead(_ rest: inout Data.SubSequence) throws -> (major: UInt8, value: UInt64) {
        guard let first = rest.popFirst() else { throw Malformed() }
        let kind = first & 31
        if kind < 24 { return (first >> 5, UInt64(kind)) }
        guard kind < 28 else { throw Malformed() }
        let value = try take(&rest, 1 << (kind - 24)).reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        if head(first >> 5, value).count != 1 + 1 << Int(kind - 24) { throw Malformed() } // a shorter form exists
        return (first >> 5, value)
    }

    /// A count of elements, each of which takes a byte at least.
    private static func readCount(_ rest: Data.SubSequence, _ value: UInt64) throws -> Int {
        if value > UInt64(rest.count) { throw Malformed() }
        return Int(value)
    }

    private static func take(_ rest: inout Data.SubSequence, _ count: UInt64) throws -> Data {
        if count > UInt64(rest.count) { throw Malformed() }
        defer { rest = rest.dropFirst(Int(count)) }
        return Data(rest.prefix(Int(count)))
    }

    private static func readText(_ rest: inout Data.SubSequence, _ count: UInt64) throws -> String {
        guard let text = String(data: try take(&rest, count), encoding: .utf8) else { throw Malformed() }
        return text
    }
}
