import Foundation

/// An argument that the service would refuse, by its lexicon. Nothing is stored, and nothing is
/// sent.
public struct InvalidInput: Error, Hashable, Sendable, CustomStringConvertible {
    /// The field, such as `metadata.name`.
    public var field: String
    /// What was got, and what is wanted.
    public var reason: String

    public var description: String { field + " " + reason }
}

/// What can be compared with its lexicon.
public protocol Checked {
    /// Throws ``InvalidInput`` for the first field that the lexicon does not allow.
    func check() throws
}

extension Checked {
    public func check() throws {}
}

extension DID: Checked {
    public func check() throws {
        guard rawValue.utf8.count <= 2048, matches(rawValue, "did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]") else {
            throw InvalidInput(field: "", reason: "is \(shown(rawValue)), and must be a DID, such as did:plc:…")
        }
    }
}

extension NoBody: Checked {}

/// A field of an input, by its name.
struct Field {
    private let name: String
    init(_ name: String) { self.name = name }

    func check(_ value: (some Checked)?) throws {
        do { try value?.check() } catch let error as InvalidInput {
            throw InvalidInput(field: error.field.isEmpty ? name : name + "." + error.field, reason: error.reason)
        }
    }

    func check(_ values: [some Checked]?, count: ClosedRange<Int> = 0...Int.max) throws {
        try check(values?.count, count, "elements")
        for (i, value) in (values ?? []).enumerated() { try Field("\(name)[\(i)]").check(value) }
    }

    func check(_ values: [String]?, bytes: ClosedRange<Int>, count: ClosedRange<Int> = 0...Int.max) throws {
        try check(values?.count, count, "elements")
        for (i, value) in (values ?? []).enumerated() { try Field("\(name)[\(i)]").check(value, bytes: bytes) }
    }

    func check(_ text: String?, bytes: ClosedRange<Int> = 0...Int.max, isURI: Bool = false) throws {
        try check(text?.utf8.count, bytes, "bytes of UTF-8")
        if isURI, let text, text.utf8.count > 8192 || !matches(text, "[a-z][a-z.-]{0,80}:[!-~]+") {
            throw InvalidInput(field: name, reason: "is \(shown(text)), and must be a URI")
        }
    }

    func check(_ value: Bytes?, bytes: ClosedRange<Int>) throws { try check(value?.data.count, bytes, "bytes") }

    /// Of a text in base64, the limit counts characters.
    func check(_ value: Base64Text?, bytes: ClosedRange<Int>) throws {
        try check(value.map { ($0.data.count + 2) / 3 * 4 }, bytes, "characters of base64")
    }

    func check(_ number: Int?, in range: ClosedRange<Int>) throws { try check(number, range, "") }

    func check(_ number: Int?, _ range: ClosedRange<Int>, _ unit: String) throws {
        guard let number, !range.contains(number) else { return }
        let wanted = number < range.lowerBound ? "at least \(range.lowerBound)" : "at most \(range.upperBound)"
        throw InvalidInput(field: name, reason: unit.isEmpty ? "is \(number), and must be \(wanted)" : "has \(number) \(unit), and must have \(wanted)")
    }
}

/// Whether the whole text matches.
private func matches(_ text: String, _ pattern: String) -> Bool {
    text.range(of: pattern, options: [.regularExpression, .anchored]) == text.startIndex..<text.endIndex
}

/// A text for a message, cut if it is long.
private func shown(_ text: String) -> String { "\"" + text.prefix(60) + (text.count > 60 ? "…" : "") + "\"" }
