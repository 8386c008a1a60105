import Foundation

/// What a message says: docs/clients/CONTENT.md. Apps that follow it can read each other.
public struct Content: Hashable, Sendable {
    public var body: Body
    /// The message that this one answers.
    public var replyTo: Name?
    /// Whether an app that does not know the body shows nothing.
    public var silent: Bool

    public init(_ body: Body, replyTo: Name? = nil, silent: Bool = false) {
        (self.body, self.replyTo, self.silent) = (body, replyTo, silent)
    }

    public enum Body: Hashable, Sendable {
        case text(Text)
        case attachment(Attachment)
        case reaction(Reaction)
        case edit(Edit)
        case deletion(Deletion)
        case details(Details)
        case receipt(Receipt)
        /// What devices say to each other about history. It is not shown.
        case history(Other)
        /// A body that this version does not know.
        case other(Other)
    }

    /// Names a message of the same convo: its id, as 32 hexadecimal digits, and who has sent it.
    public struct Name: Codable, Hashable, Sendable {
        public var id: String
        public var author: DID
        public init(id: String, author: DID) { (self.id, self.author) = (id, author) }
    }

    public struct Text: Codable, Hashable, Sendable {
        public var text: String
        public var facets: [Facet]?
        public var langs: [String]?
        public init(_ text: String, facets: [Facet]? = nil, langs: [String]? = nil) { (self.text, self.facets, self.langs) = (text, facets, langs) }
    }

    /// What a part of a text is, in the form of app.bsky.richtext.facet.
    public struct Facet: Codable, Hashable, Sendable {
        public struct Index: Codable, Hashable, Sendable {
            public var byteStart: Int
            public var byteEnd: Int
            public init(byteStart: Int, byteEnd: Int) { (self.byteStart, self.byteEnd) = (byteStart, byteEnd) }
        }
        public var index: Index
        public var features: [Feature]
        public init(_ index: Index, _ features: [Feature]) { (self.index, self.features) = (index, features) }
    }

    /// An object of app.bsky.richtext.facet.
    public struct Feature: Codable, Hashable, Sendable {
        let node: Node
        /// A feature of one field: `Feature("app.bsky.richtext.facet#link", "uri", "https://…")`.
        public init(_ type: String, _ field: String, _ value: String) { node = .map(["$type": .text(type), field: .text(value)]) }
        public init(from decoder: any Decoder) throws { node = try Node(from: decoder) }
        public func encode(to encoder: any Encoder) throws { try node.encode(to: encoder) }
        /// A field that is text.
        public subscript(field: String) -> String? {
            guard case .map(let fields) = node, case .text(let text)? = fields[field] else { return nil }
            return text
        }
        public var type: String? { self["$type"] }
    }

    /// An encrypted file, which the convo's members can fetch.
    public struct File: Codable, Hashable, Sendable {
        public var id: String
        public var uri: String
        public var key: String
        public var nonce: String
        public var sha256: String
        public var size: Int
        public init(_ pointer: FilePointer) {
            (id, uri, key, nonce) = (pointer.id, pointer.uri, pointer.key, pointer.nonce)
            (sha256, size) = (pointer.sha256, pointer.size)
        }
        public var pointer: FilePointer { FilePointer(id: id, key: key, nonce: nonce, sha256: sha256, size: size) }
    }

    public struct Attachment: Codable, Hashable, Sendable {
        public var file: File
        /// The type of the plaintext. Do not trust it.
        public var mimeType: String
        /// Bytes of the plaintext.
        public var size: Int
        public var name: String?
        public var alt: String?
        /// Pixels.
        public var width: Int?
        public var height: Int?
        /// Milliseconds.
        public var duration: Int?
        public var caption: Text?
        public var preview: Bytes?
        public init(_ file: FilePointer, mimeType: String, size: Int) { (self.file, self.mimeType, self.size) = (File(file), mimeType, size) }
    }

    public struct Reaction: Codable, Hashable, Sendable {
        public var message: Name
        public var emoji: String
        public var removed: Bool?
        public init(_ emoji: String, to message: Name, removed: Bool? = nil) { (self.emoji, self.message, self.removed) = (emoji, message, removed) }
    }

    /// Another text for a text, or another caption for a file, of the same sender.
    public struct Edit: Codable, Hashable, Sendable {
        public var id: String
        public var text: String
        public var facets: [Facet]?
        public var langs: [String]?
        public init(_ id: String, _ text: Text) { (self.id, self.text, facets, langs) = (id, text.text, text.facets, text.langs) }
        public var now: Text { Text(text, facets: facets, langs: langs) }
    }

    public struct Deletion: Codable, Hashable, Sendable {
        public var id: String
        public init(_ id: String) { self.id = id }
    }

    public struct Details: Codable, Hashable, Sendable {
        public var name: String?
        public var description: String?
        public var avatar: Attachment?
        public init(name: String? = nil, description: String? = nil, avatar: Attachment? = nil) {
            (self.name, self.description, self.avatar) = (name, description, avatar)
        }
    }

    public struct Receipt: Codable, Hashable, Sendable {
        public var delivered: Int?
        public var read: Int?
        public init(delivered: Int? = nil, read: Int? = nil) { (self.delivered, self.read) = (delivered, read) }
    }

    /// A body as it came.
    public struct Other: Hashable, Sendable {
        let node: Node
        public let type: String
    }
}

// MARK: Bytes

extension Content {
    private static let nsid = "blue.catbird.mls.content"
    private static let mostBytes = 1 << 20
    private static let idBytes = 16
    private static let typeKey = "$type"

    /// Encodes the content. Errors: ``InvalidInput``.
    public func encoded() throws -> Data {
        try check()
        var fields: [String: Node] = [Self.typeKey: .text(Self.nsid), "body": try bodyNode()]
        if let replyTo { fields["replyTo"] = try Node(replyTo) }
        if silent { fields["silent"] = .bool(true) }
        return Node.map(fields).cbor
    }

    /// The application data of a message: its id, 16 random bytes, and the content. Errors: ``InvalidInput``.
    public func message(id: Data) throws -> Data {
        if id.count != Self.idBytes { throw InvalidInput(field: "id", reason: "has \(id.count) bytes, and must have \(Self.idBytes)") }
        return try id + encoded()
    }

    /// Reads what another member has written, which can be anything. Plain text without NUL is a text. What is no content
    /// is nil: keep it, and show that there is something that this version does not support.
    public init?(_ bytes: Data) {
        guard bytes.count <= Self.mostBytes, let first = bytes.first, let content = first >> 5 == 5 ? Self.read(bytes) : Self.plain(bytes) else { return nil }
        self = content
    }

    private static func plain(_ bytes: Data) -> Content? {
        guard !bytes.contains(0), let text = String(data: bytes, encoding: .utf8) else { return nil }
        let content = Content(.text(Text(text)))
        return (try? content.check()) == nil ? nil : content
    }

    private static func read(_ bytes: Data) -> Content? {
        guard case .map(let fields)? = try? Node(cbor: bytes), fields[typeKey].map({ $0 == .text(nsid) }) ?? true,
            let node = fields["body"], case .map(let inBody) = node, case .text(let type)? = inBody[typeKey],
            let body = try? body(type, node)
        else { return nil }
        var content = Content(body)
        if let node = fields["replyTo"] {
            guard let name = try? node.decoded(Name.self) else { return nil }
            content.replyTo = name
        }
        if let node = fields["silent"] {
            guard case .bool(let silent) = node else { return nil }
            content.silent = silent
        }
        return (try? content.check()) == nil ? nil : content
    }

    private static func body(_ type: String, _ node: Node) throws -> Body {
        let parts = type.split(separator: "#", omittingEmptySubsequences: false)
        switch parts.first.map(String.init) == nsid && parts.count == 2 ? String(parts[1]) : "" {
        case "text": return .text(try node.decoded(Text.self))
        case "attachment": return .attachment(try node.decoded(Attachment.self))
        case "reaction": return .reaction(try node.decoded(Reaction.self))
        case "edit": return .edit(try node.decoded(Edit.self))
        case "deletion": return .deletion(try node.decoded(Deletion.self))
        case "details": return .details(try node.decoded(Details.self))
        case "receipt": return .receipt(try node.decoded(Receipt.self))
        case let kind where kind.hasPrefix("history"): return .history(Other(node: node, type: type))
        default: return .other(Other(node: node, type: type))
        }
    }

    private func bodyNode() throws -> Node {
        func typed(_ kind: String, _ value: some Encodable) throws -> Node {
            guard case .map(var fields) = try Node(value) else { throw Node.Malformed() }
            fields[Self.typeKey] = .text(Self.nsid + "#" + kind)
            return .map(fields)
        }
        switch body {
        case .text(let value): return try typed("text", value)
        case .attachment(let value): return try typed("attachment", value)
        case .reaction(let value): return try typed("reaction", value)
        case .edit(let value): return try typed("edit", value)
        case .deletion(let value): return try typed("deletion", value)
        case .details(let value): return try typed("details", value)
        case .receipt(let value): return try typed("receipt", value)
        case .history(let value), .other(let value): return value.node
        }
    }
}

// MARK: Limits of the lexicon

extension Content: Checked {
    public func check() throws {
        try Field("replyTo").check(replyTo)
        let body = Field("body")
        switch self.body {
        case .text(let value): try body.check(value)
        case .attachment(let value): try body.check(value)
        case .reaction(let value): try body.check(value)
        case .edit(let value): try body.check(value)
        case .deletion(let value): try body.check(value)
        case .details(let value): try body.check(value)
        case .receipt(let value): try body.check(value)
        case .history, .other: break
        }
    }
}

private let idLength = 32...32

extension Field {
    /// A text of so many characters at most.
    fileprivate func check(_ text: String?, bytes: ClosedRange<Int>, characters: Int) throws {
        try check(text, bytes: bytes)
        try check(text?.count, 0...characters, "characters")
    }
}

extension Content.Name: Checked {
    public func check() throws {
        try Field("id").check(id, bytes: idLength)
        try Field("author").check(author)
    }
}

extension Content.Facet: Checked {
    public func check() throws {
        try Field("index.byteStart").check(index.byteStart, in: 0...Int.max)
        try Field("index.byteEnd").check(index.byteEnd, in: 0...Int.max)
        try Field("features").check(features.count, 0...4, "elements")
    }
}

extension Content.Text: Checked {
    public func check() throws {
        try Field("text").check(text, bytes: 1...60000, characters: 20000)
        try Field("facets").check(facets, count: 0...200)
        try Field("langs").check(langs, bytes: 2...64, count: 0...3)
    }
}

extension Content.Edit: Checked {
    public func check() throws {
        try Field("id").check(id, bytes: idLength)
        try now.check()
    }
}

extension Content.File: Checked {
    public func check() throws {
        try Field("id").check(id, bytes: 1...64)
        try Field("uri").check(uri, isURI: true)
        try Field("key").check(key, bytes: 43...43)
        try Field("nonce").check(nonce, bytes: 16...16)
        try Field("sha256").check(sha256, bytes: 64...64)
        try Field("size").check(size, in: 1...Int.max)
    }
}

extension Content.Attachment: Checked {
    public func check() throws {
        try Field("file").check(file)
        try Field("mimeType").check(mimeType, bytes: 0...128)
        try Field("size").check(size, in: 0...Int.max)
        try Field("name").check(name, bytes: 0...2560, characters: 256)
        try Field("alt").check(alt, bytes: 0...20000, characters: 2000)
        for (field, value) in [("width", width), ("height", height), ("duration", duration)] { try Field(field).check(value, in: 1...Int.max) }
        try Field("caption").check(caption)
        try Field("preview").check(preview?.data.count, 0...8192, "bytes")
    }
}

extension Content.Reaction: Checked {
    public func check() throws {
        try Field("message").check(message)
        try Field("emoji").check(emoji, bytes: 1...64, characters: 1)
    }
}

extension Content.Deletion: Checked {
    public func check() throws { try Field("id").check(id, bytes: idLength) }
}

extension Content.Details: Checked {
    public func check() throws {
        try Field("name").check(name, bytes: 0...1280, characters: 128)
        try Field("description").check(description, bytes: 0...20000, characters: 2000)
        try Field("avatar").check(avatar)
    }
}

extension Content.Receipt: Checked {
    public func check() throws {
        try Field("delivered").check(delivered, in: 1...Int.max)
        try Field("read").check(read, in: 1...Int.max)
    }
}
