import Foundation

/// A message as people see it: docs/clients/CONTENT.md.
public struct ShownMessage: Hashable, Sendable {
    public enum State: String, Hashable, Sendable {
        case shown, deleted
        /// This version cannot show it. Its bytes stay in the store.
        case unsupported
    }

    /// What an edit has changed: when it was last, and the first text.
    public struct Edited: Hashable, Sendable {
        public let at: Timestamp
        public let first: String
    }

    /// Who has reacted with an emoji, the first one first.
    public struct Reaction: Hashable, Sendable {
        public let emoji: String
        public let by: [DID]
    }

    public let seq: Int
    public let name: Content.Name
    public let createdAt: Timestamp
    /// Whose word it is, if history has brought it.
    public let from: DID?
    public internal(set) var state = State.shown
    /// The text, or the file with its caption. An edit has changed it already.
    public internal(set) var body: Content.Body?
    public internal(set) var replyTo: Content.Name?
    public internal(set) var edited: Edited?
    public internal(set) var reactions: [Reaction] = []
}

/// The messages of one convo. Entries come in any order, and again: the result is the same. Whatever changes a message
/// is a fact about it, and of each kind of fact the last one in the log counts.
///
/// What history has brought is somebody's word: it changes nothing that this device has read itself.
public struct Transcript: Sendable {
    /// A message of the log, or of history.
    public struct Item: Hashable, Sendable {
        public let seq: Int
        /// The message's id and who has sent it.
        public let name: Content.Name
        public let createdAt: Timestamp
        /// What it says, or nil if it is no content.
        public let content: Content?
        /// Whose word it is, if history has brought it.
        public let from: DID?

        public init(seq: Int, name: Content.Name, createdAt: Timestamp, content: Content?, from: DID? = nil) {
            (self.seq, self.name, self.createdAt) = (seq, name, createdAt)
            (self.content, self.from) = (content, from)
        }

        /// A message of the inbox, whose plaintext begins with its id; nil for what is none.
        public init?(_ entry: Entry, from: DID? = nil) {
            let plaintext: Data
            switch entry.content {
            case .message(let data), .own(let data): plaintext = data
            default: return nil
            }
            guard plaintext.count >= Self.idBytes, !HistoryMessage.isHistory(plaintext) else { return nil }
            let name = Content.Name(id: hexadecimal(plaintext.prefix(Self.idBytes)), author: entry.sender)
            self.init(seq: entry.seq, name: name, createdAt: entry.createdAt, content: Content(Data(plaintext.dropFirst(Self.idBytes))), from: from)
        }

        private static let idBytes = 16
    }

    /// Up to which seq a person has got and read the log, as its devices say.
    public struct Receipt: Hashable, Sendable {
        public var delivered = 0
        public var read = 0
    }

    private var items: [Int: Item] = [:]
    /// The items that say a message, and those that change one, by its name.
    private var messagesOf: [Content.Name: Set<Int>] = [:]
    private var factsOf: [Content.Name: Set<Int>] = [:]
    private var detailsSeqs: Set<Int> = []
    private var receipts: [DID: Receipt] = [:]

    public init() {}

    /// Takes items. Returns the names of the messages that have changed.
    @discardableResult public mutating func add(_ more: some Sequence<Item>) -> Set<Content.Name> {
        var changed: Set<Content.Name> = []
        for item in more {
            let before = items[item.seq]
            if let before, before.from == nil || item.from != nil { continue }
            if let before { take(before, put: false, &changed) }
            items[item.seq] = item
            take(item, put: true, &changed)
        }
        return changed
    }

    /// The messages in the order of the log: at most `limit`, the last ones before a seq.
    public func messages(limit: Int = .max, before: Int = .max) -> [ShownMessage] {
        messagesOf.keys.compactMap(holder).filter { $0 < before }.sorted().suffix(limit).compactMap { items[$0].map(drawn) }
    }

    /// The message with a name, if this device has it.
    public func find(_ name: Content.Name) -> ShownMessage? { holder(name).flatMap { items[$0] }.map(drawn) }

    /// What the group is called and looks like, and who has said so.
    public var details: (details: Content.Details, by: DID)? {
        let own = detailsSeqs.filter { items[$0]?.from == nil }
        guard let seq = (own.isEmpty ? detailsSeqs : own).max(), let item = items[seq], case .details(let details)? = item.content?.body else { return nil }
        return (details, item.name.author)
    }

    /// Up to where a person has got and read the log.
    public func receipt(of did: DID) -> Receipt { receipts[did] ?? Receipt() }

    // MARK: Facts

    private mutating func take(_ item: Item, put: Bool, _ changed: inout Set<Content.Name>) {
        func note(_ map: inout [Content.Name: Set<Int>], _ name: Content.Name) {
            if put { map[name, default: []].insert(item.seq) } else { map[name]?.remove(item.seq) }
            changed.insert(name)
        }
        let author = item.name.author
        switch item.content?.body {
        case .edit(let edit): note(&factsOf, Content.Name(id: edit.id, author: author))
        case .deletion(let deletion): note(&factsOf, Content.Name(id: deletion.id, author: author))
        case .reaction(let reaction): note(&factsOf, reaction.message)
        case .details: if put { detailsSeqs.insert(item.seq) } else { detailsSeqs.remove(item.seq) }
        case .receipt(let receipt):
            if item.from != nil { return }
            let (got, seen, before) = (receipt.delivered ?? 0, receipt.read ?? 0, self.receipt(of: author))
            receipts[author] = Receipt(delivered: max(before.delivered, got, seen), read: max(before.read, seen))
        case .history: return
        case .other where item.content?.silent == true: return
        case .text, .attachment, .other, nil: note(&messagesOf, item.name)
        }
    }

    /// The item that a name stands for: the first one that this device has read, or else the first one.
    private func holder(_ name: Content.Name) -> Int? {
        let seqs = messagesOf[name] ?? []
        return seqs.filter { items[$0]?.from == nil }.min() ?? seqs.min()
    }

    private func drawn(_ item: Item) -> ShownMessage {
        let facts = (factsOf[item.name] ?? []).sorted().compactMap { items[$0] }.filter { $0.from == nil || item.from != nil }
        var message = ShownMessage(seq: item.seq, name: item.name, createdAt: item.createdAt, from: item.from)
        if facts.contains(where: { if case .deletion = $0.content?.body { true } else { false } }) {
            message.state = .deleted
            return message
        }
        message.replyTo = item.content?.replyTo
        message.reactions = Self.reactions(facts)
        let edit = facts.last { if case .edit = $0.content?.body { true } else { false } }
        switch item.content?.body {
        case .text(let text): (message.body, message.edited) = Self.edited(text.text, edit) { .text($0 ?? text) }
        case .attachment(var file):
            (message.body, message.edited) = Self.edited(file.caption?.text ?? "", edit) { caption in
                if let caption { file.caption = caption }
                return .attachment(file)
            }
        default: message.state = .unsupported
        }
        return message
    }

    private static func edited(_ first: String, _ edit: Item?, _ body: (Content.Text?) -> Content.Body) -> (Content.Body, ShownMessage.Edited?) {
        guard let edit, case .edit(let last)? = edit.content?.body else { return (body(nil), nil) }
        return (body(last.now), ShownMessage.Edited(at: edit.createdAt, first: first))
    }

    /// Of facts in the order of the log.
    private static func reactions(_ facts: [Item]) -> [ShownMessage.Reaction] {
        var (order, by): ([String], [String: [DID]]) = ([], [:])
        for fact in facts {
            guard case .reaction(let reaction)? = fact.content?.body else { continue }
            if by[reaction.emoji] == nil { order.append(reaction.emoji) }
            var people = by[reaction.emoji] ?? []
            if reaction.removed == true { people.removeAll { $0 == fact.name.author } }
            if reaction.removed != true, !people.contains(fact.name.author) { people.append(fact.name.author) }
            by[reaction.emoji] = people
        }
        return order.compactMap { emoji in by[emoji].flatMap { $0.isEmpty ? nil : .init(emoji: emoji, by: $0) } }
    }
}
