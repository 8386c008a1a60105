/// How many entries of a convo the app has not taken.
public struct Counts: Hashable, Sendable {
    public var items: Int
    /// Messages of others among them.
    public var unread: Int
}

/// The inbox of a convo in pages.
extension Messenger {
    /// Entries that the app has not taken, in the order of the log: at most `limit` of them, behind the entry with the
    /// seq `after`, or before that of `before`. Without `after` they are the newest ones. Only those of the page are
    /// decoded.
    public func items(_ convo: String, limit: Int, before: Int? = nil, after: Int? = nil) async throws -> [Entry] {
        if limit < 1 { throw InvalidInput(field: "limit", reason: "is \(limit), and must be at least 1") }
        let folder = Entry.prefix + convo + "/"
        let names = await records.names(folder).filter { name in
            (after.map { name > folder + ordered($0) } ?? true) && (before.map { name < folder + ordered($0) } ?? true)
        }
        var page: [Entry] = []
        for name in after == nil ? names.suffix(limit) : names.prefix(limit) {
            if let entry = try await records.read(Entry.self, name) { page.append(entry) } // taken meanwhile
        }
        return page
    }

    public func counts(_ convo: String) async throws -> Counts {
        let entries = try await inbox(convo)
        let unread = entries.filter { if case .message = $0.content { $0.sender != account } else { false } }
        return Counts(items: entries.count, unread: unread.count)
    }
}
