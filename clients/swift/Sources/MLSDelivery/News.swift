import Foundation

/// The service says of a convo what MLS does not show, or shows otherwise. The messenger has not done what it asks
/// for: tell the person.
public struct Finding: Codable, Hashable, Sendable {
    public enum What: String, Codable, Sendable {
        /// A name of a sender.
        case sender
        /// A Welcome, a GroupInfo, the successor of a reset.
        case welcome, groupInfo, successor
        /// That somebody has left.
        case removal
    }

    public var convoId: String
    /// What was not believed.
    public var what: What
    public var sentence: String
}

/// What has become of a device in a convo.
public struct DeviceNews: Codable, Hashable, Sendable {
    public enum Change: String, Codable, Sendable {
        /// MLS shows it.
        case entered, left, keyChanged
        /// A person who was added has written for the first time.
        case joined
        /// Its account says it, or could not be asked yet.
        case listed, unlisted, waiting
        /// Its person was not in the group, and nobody in it has added the person.
        case uninvited
    }

    public var convoId: String
    public var change: Change
    public var account: DID
    /// The signature key.
    public var key: Data
}

/// What the person must hear, also if the app is killed first.
public struct News: Codable, Hashable, Sendable, Identifiable {
    public enum Content: Codable, Hashable, Sendable {
        case device(DeviceNews)
        case finding(Finding)
        case request(ConvoRequest)
        case without(convoId: String, account: DID)
    }

    /// Ascending.
    public var id: Int
    public var content: Content

    /// So many are kept: the newest ones.
    static let most = 1000
    static let prefix = "news/"
    static func name(_ id: Int) -> String { prefix + ordered(id) }
    var name: String { Self.name(id) }
    var event: MessengerEvent {
        switch content {
        case .device(let news): .device(news)
        case .finding(let finding): .finding(finding)
        case .request(let request): .request(request)
        case .without(let convo, let account): .withoutDevice(convoId: convo, account: account)
        }
    }
}

extension Messenger {
    /// What the app has not called `heard` for, the oldest first. Each comes as an event at once, and again after each
    /// start.
    public func news() async throws -> [News] { try await records.list(News.self, News.prefix) }

    /// The person has heard it, or the app has stored it.
    public func heard(_ news: [News]) async throws {
        try await records.write(Dictionary(news.map { ($0.name, nil) }) { first, _ in first })
    }

    /// Stores news, in one write with other changes, and then tells the app.
    func write(_ changes: Changes, telling contents: [News.Content]) async throws {
        if contents.isEmpty { return try await records.write(changes) }
        var all = changes
        var fresh: [News] = []
        for content in contents {
            lastNews = max(lastNews + 1, Int(surroundings.now().timeIntervalSince1970 * 1000))
            let news = News(id: lastNews, content: content)
            all[news.name] = try encoded(news)
            fresh.append(news)
        }
        for name in await records.names(News.prefix).dropLast(News.most) { all[name] = .some(nil) }
        try await records.write(all)
        for news in fresh { tell(news.event) }
    }

    /// Tells what an earlier life has not been heard for.
    func tellAgain() async throws {
        for news in try await news() {
            lastNews = max(lastNews, news.id)
            tell(news.event)
        }
    }
}
