import Foundation

/// What a bundle may hold at most: docs/clients/HISTORY.md. A reader compares them before it allocates,
/// downloads or stores.
public enum HistoryBounds {
    /// Bytes of a history message's content.
    static let message = 256 << 10
    static let parts = 256
    /// Bytes of a part's ciphertext. The longest message of a convo has 10 MiB.
    static let part = 11 << 20
    /// A writer ends a part before its ciphertext has more bytes, unless one entry alone has.
    static let usualPart = 1 << 20
    /// Bytes of all parts.
    public static let bundle = 256 << 20
    static let entries = 1_000_000
}

/// What a member has sent breaks the format or its bounds, or does not exist.
public struct HistoryError: Error, Hashable, Sendable, CustomStringConvertible {
    public var description: String
    init(_ description: String) { self.description = description }
}

/// One message of a bundle.
public struct HistoryEntry: Codable, Hashable, Sendable {
    public var seq: Int
    /// The service's id of the log's entry.
    public var messageId: String
    public var sender: DID
    /// When the service stored it, in milliseconds of Unix time.
    public var createdAt: Int
    /// The SHA-256 of the log's entry.
    public var digest: Data
    /// Set if who gives it was given it.
    public var relayed: Bool
    public var embedUri: String?
    /// The application data, as MLS decrypted it.
    public var plaintext: Data

    public init(
        seq: Int, messageId: String, sender: DID, createdAt: Int, digest: Data, relayed: Bool = false, embedUri: String? = nil, plaintext: Data
    ) {
        (self.seq, self.messageId, self.sender, self.createdAt) = (seq, messageId, sender, createdAt)
        (self.digest, self.relayed, self.embedUri, self.plaintext) = (digest, relayed, embedUri, plaintext)
    }

    /// A message of the inbox; nil for what is none.
    public init?(_ entry: Entry) {
        let plaintext: Data
        switch entry.content {
        case .message(let data), .own(let data): plaintext = data
        default: return nil
        }
        self.init(
            seq: entry.seq, messageId: entry.messageId, sender: entry.sender,
            createdAt: Int(((entry.createdAt.date?.timeIntervalSince1970 ?? 0) * 1000).rounded()), digest: entry.digest, embedUri: entry.embedUri,
            plaintext: plaintext
        )
    }

    private static let longestID = 64
    private static let longestText = 2048
    private static let latest = 253_402_300_799_999 // the end of the year 9999

    /// The entry as a part has it.
    var bytes: Data {
        var out = Data()
        out += bigEndian(seq, 8) + [relayed ? 1 : 0] + bigEndian(createdAt, 8) + digest
        for (size, content) in [(1, Data(messageId.utf8)), (2, Data(sender.rawValue.utf8)), (2, Data((embedUri ?? "").utf8)), (4, plaintext)] {
            out += bigEndian(content.count, size) + content
        }
        return out
    }

    fileprivate init(_ reader: inout Reader) throws {
        seq = try reader.number(8)
        let flags = try reader.number(1)
        createdAt = try reader.number(8)
        digest = try reader.take(32)
        messageId = try reader.text(1)
        sender = DID(try reader.text(2))
        let uri = try reader.text(2)
        plaintext = try reader.take(reader.number(4))
        (relayed, embedUri) = (flags == 1, uri.isEmpty ? nil : uri)
        let isRight = flags <= 1 && createdAt <= Self.latest && messageId.utf16.count <= Self.longestID && uri.utf16.count <= Self.longestText
        guard isRight, (try? sender.check()) != nil else { throw HistoryError("a message is not described") }
    }
}

private func bigEndian(_ value: Int, _ count: Int) -> [UInt8] { (0..<count).map { UInt8(truncatingIfNeeded: value >> (8 * (count - 1 - $0))) } }

private struct Reader {
    private let bytes: Data
    private var at: Data.Index

    init(_ bytes: Data) { (self.bytes, at) = (bytes, bytes.startIndex) }

    var left: Int { bytes.endIndex - at }

    mutating func take(_ count: Int) throws -> Data {
        guard count <= left else { throw HistoryError("the part is cut short") }
        defer { at += count }
        return Data(bytes[at..<(at + count)])
    }

    mutating func number(_ count: Int) throws -> Int {
        guard count <= left else { throw HistoryError("the part is cut short") }
        let value = bytes[at..<(at + count)].reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        at += count
        guard value < 1 << 53 else { throw HistoryError("a number is too large") }
        return Int(value)
    }

    mutating func text(_ size: Int) throws -> String {
        let bytes = try take(number(size))
        guard let text = String(data: bytes, encoding: .utf8) else { throw HistoryError("a text is not UTF-8") }
        return text
    }
}

/// A part of a bundle, as the message that brings the bundle describes it.
struct HistoryPart: Codable, Hashable, Sendable {
    var id: String
    var key: String
    var nonce: String
    var sha256: String
    var size: Int
    var entries: Int
    /// The seq of the first entry and of the last one.
    var from: Int
    var to: Int

    var pointer: FilePointer { FilePointer(id: id, key: key, nonce: nonce, sha256: sha256, size: size) }

    /// The additional data of a part: it opens only as this part of this bundle of this convo.
    static func boundTo(_ convo: String, _ bundle: String, _ part: Int) -> Data {
        Data("mlsd-history \(HistoryMessage.version)\n\(convo)\n\(bundle)\n\(part)".utf8)
    }

    /// What begins the plaintext of a part: a name and the version.
    static let head = Data("MLSH".utf8) + [HistoryMessage.version]

    static func plaintext(_ entries: [Data]) -> Data { entries.reduce(into: head) { $0 += $1 } }

    /// Decodes the plaintext. Error: ``HistoryError``; nothing of the part is used then.
    func decode(_ bytes: Data) throws -> [HistoryEntry] {
        var reader = Reader(bytes)
        guard bytes.count >= Self.head.count, try reader.take(4) == Self.head.prefix(4) else { throw HistoryError("this is no part of a bundle") }
        let version = try reader.number(1)
        guard version == HistoryMessage.version else { throw HistoryError("version \(version)") }
        var all: [HistoryEntry] = []
        while reader.left > 0 {
            let entry = try HistoryEntry(&reader)
            guard entry.seq > all.last?.seq ?? from - 1, entry.seq <= to, all.count < entries else {
                throw HistoryError("a message is not in its place")
            }
            all.append(entry)
        }
        guard all.count == entries, all.first?.seq == from, all.last?.seq == to else { throw HistoryError("messages are missing") }
        return all
    }
}

/// What devices say to each other about history, as application messages of the convo.
struct HistoryMessage: Codable, Hashable, Sendable {
    static let version: UInt8 = 1
    private static let magic = Data([0]) + Data("mlsd-history".utf8)
    /// Before the content of a plaintext stands the message's id, of so many bytes.
    private static let idBytes = 16

    var type: String
    var id: String
    var request: String?
    var device: String?
    var before: Int?
    var entries: Int?
    var parts: [HistoryPart]?

    static func request(id: String, device: String, before: Int) -> Self { Self(type: "request", id: id, device: device, before: before) }
    static func agree(id: String, request: String) -> Self { Self(type: "agree", id: id, request: request) }
    static func bundle(id: String, request: String, parts: [HistoryPart]) -> Self {
        Self(type: "bundle", id: id, request: request, entries: parts.reduce(0) { $0 + $1.entries }, parts: parts)
    }
    static func file(id: String) -> Self { Self(type: "file", id: id) }
    static func cancel(id: String) -> Self { Self(type: "cancel", id: id) }

    static func newID() -> String { hexadecimal(FileCipher.random(idBytes)) }

    /// The plaintext of an application message: an id of its own, and the content.
    func plaintext() throws -> Data {
        let content = Self.magic + [Self.version] + (try encoded(self))
        guard content.count <= HistoryBounds.message else { throw HistoryError("the message is too long") }
        return FileCipher.random(Self.idBytes) + content
    }

    /// Whether a plaintext is about history, in whatever version.
    static func isHistory(_ plaintext: Data) -> Bool { plaintext.dropFirst(idBytes).starts(with: magic) }

    /// Reads a plaintext. One of another version or type, or a broken one, is nil.
    init?(plaintext: Data) {
        let content = plaintext.dropFirst(Self.idBytes)
        guard Self.isHistory(plaintext), content.count <= HistoryBounds.message, content.dropFirst(Self.magic.count).first == Self.version,
            let message = try? JSONDecoder().decode(Self.self, from: Data(content.dropFirst(Self.magic.count + 1))), message.isWhole
        else { return nil }
        self = message
    }

    private init(
        type: String, id: String, request: String? = nil, device: String? = nil, before: Int? = nil, entries: Int? = nil, parts: [HistoryPart]? = nil
    ) {
        (self.type, self.id, self.request, self.device) = (type, id, request, device)
        (self.before, self.entries, self.parts) = (before, entries, parts)
    }

    private static func isHexadecimal(_ text: String?, _ count: Int) -> Bool {
        guard let text, text.utf8.count == count else { return false }
        return text.utf8.allSatisfy { (48...57).contains($0) || (97...102).contains($0) }
    }

    private var isWhole: Bool {
        guard Self.isHexadecimal(id, 32) else { return false }
        switch type {
        case "request": return Self.isHexadecimal(device, 64) && before ?? 0 > 0
        case "agree": return Self.isHexadecimal(request, 32)
        case "bundle":
            return Self.isHexadecimal(request, 32) && entries ?? 0 > 0
                && (parts ?? []).allSatisfy { part in
                    Self.isHexadecimal(part.sha256, 64) && (1...64).contains(part.id.utf16.count) && (1...43).contains(part.key.utf16.count)
                        && (1...16).contains(part.nonce.utf16.count)
                        && [part.size, part.entries, part.from, part.to].allSatisfy { $0 > 0 && $0 < 1 << 53 }
                }
        case "file", "cancel": return true
        default: return false
        }
    }

    /// Compares a bundle with the bounds. `seq` is the place of the message in the log: a bundle holds what is
    /// before it. Error: ``HistoryError``.
    static func check(_ parts: [HistoryPart], entries: Int, seq: Int, mostBytes: Int) throws {
        guard (1...HistoryBounds.parts).contains(parts.count) else { throw HistoryError("\(parts.count) parts") }
        // Each number is less than 2^53, and there are 256 at most: the sums do not overflow.
        guard parts.reduce(0, { $0 + $1.entries }) == entries, entries <= HistoryBounds.entries else { throw HistoryError("\(entries) messages") }
        guard parts.reduce(0, { $0 + $1.size }) <= min(mostBytes, HistoryBounds.bundle) else { throw HistoryError("the bundle is too large") }
        var last = 0
        for part in parts {
            guard part.size <= HistoryBounds.part else { throw HistoryError("a part is too large") }
            guard part.from > last, part.to >= part.from, part.to < seq, part.entries <= part.to - part.from + 1 else {
                throw HistoryError("the parts are not in their order")
            }
            last = part.to
        }
    }
}
