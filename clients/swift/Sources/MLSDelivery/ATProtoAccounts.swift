import Foundation

/// Accounts of the AT Protocol: it asks a person's own PDS, which the DID document names, over TLS.
///
/// It believes the PDS, and checks no proof of the repository's signed commit. It need not: a PDS has the account's
/// signing key and could prove what it likes. People catch a PDS that lies by comparing safety numbers. A DID
/// document is kept for an hour to find a listed device, and for five minutes for any other answer.
public actor ATProtoAccounts: Accounts {
    private struct Document {
        var pds: URL
        var read: Date
    }

    /// The DID is a tombstone.
    private struct Ended: Error {}

    private static let hour: TimeInterval = 3600
    private static let fiveMinutes: TimeInterval = 300
    private static let mostDocuments = 10_000
    /// The most bytes of an answer. A DID document has some hundred.
    private static let mostBytes = 1 << 20
    private static let mostDevices = 100
    private static let collection = "blue.catbird.mls.device"

    private let account: DID
    private let pds: Service
    private let transport: any Transport
    private let directory: URL
    private let timeout: TimeInterval
    private let surroundings: Surroundings
    private var documents: [DID: Document] = [:]

    /// `account` is the own one, and `pds` a route to its PDS, such as `Route.pds`. `directory` is the PLC directory.
    /// If it is at http, as in tests, PDSes at http://localhost and http://127.0.0.1 are asked too. `timeout` is for
    /// one question with all its requests, in seconds.
    public init(
        _ account: DID, pds route: Route, directory: URL = URL(string: "https://plc.directory")!, timeout: TimeInterval = 10,
        transport: any Transport = URLSessionTransport(), surroundings: Surroundings = .init()
    ) {
        (self.account, self.directory, self.timeout) = (account, directory, timeout)
        (self.transport, self.surroundings) = (transport, surroundings)
        pds = Service(route.toPDS, transport: transport)
    }

    public func lists(_ key: Data, of account: DID) async throws -> Bool {
        try await question(account) { try await $0.find(key, account) }
    }

    public func devices(of account: DID) async throws -> [ListedDevice] {
        try await question(account) { try await $0.all(account) }
    }

    public func hasEnded(_ account: DID) async throws -> Bool {
        try await question(account) {
            do { return try await $0.isDeleted(account) } catch is Ended { return true }
        }
    }

    public func list(_ device: ListedDevice) async throws {
        let rkey = recordKey(of: device.key)
        let before = try await own(rkey)
        if let before, before.signatureKey.data == device.key, before.cipherSuite == device.cipherSuite,
            device.name == nil || device.name == before.name
        { return }
        let formatter = ISO8601DateFormatter()
        formatter.formatOptions = [.withInternetDateTime, .withFractionalSeconds]
        let record = Record(
            type: Self.collection, signatureKey: Bytes(device.key), cipherSuite: device.cipherSuite, name: device.name ?? before?.name,
            createdAt: before?.createdAt ?? formatter.string(from: surroundings.now())
        )
        let input = PutRecord(repo: account, collection: Self.collection, rkey: rkey, record: record)
        _ = try await inTime { try await $0.pds.post("com.atproto.repo.putRecord", body: encoded(input)) }
    }

    public func unlist(_ key: Data) async throws {
        let input = PutRecord(repo: account, collection: Self.collection, rkey: recordKey(of: key))
        _ = try await inTime { try await $0.pds.post("com.atproto.repo.deleteRecord", body: encoded(input)) }
    }

    private struct Record: Codable, Sendable {
        var type: String
        var signatureKey: Bytes
        var cipherSuite: String
        var name: String?
        var createdAt: String
        enum CodingKeys: String, CodingKey {
            case type = "$type"
            case signatureKey, cipherSuite, name, createdAt
        }
    }

    private struct PutRecord: Encodable, Sendable {
        var repo: DID
        var collection: String
        var rkey: String
        var record: Record?
    }

    private struct GotRecord: Decodable {
        var uri: String
        var value: Record
    }

    // MARK: Asking

    /// A record as it is now. Only one that is there may be found by an older document: before the answer is no, or
    /// that the PDS is away, it looks whether the account has moved.
    private func find(_ key: Data, _ account: DID) async throws -> Bool {
        let before = try await document(account, within: Self.hour)
        var failed: (any Error)?
        do { if try await record(key, account, before) { return true } } catch { failed = error }
        let now = try await document(account, within: failed == nil ? Self.fiveMinutes : 0)
        if now != before { return try await record(key, account, now) }
        if let failed { throw failed }
        return false
    }

    private func record(_ key: Data, _ account: DID, _ pds: URL) async throws -> Bool {
        let rkey = recordKey(of: key)
        let items = [("repo", account.rawValue), ("collection", Self.collection), ("rkey", rkey)]
        do {
            let got = try await ask(pds, "com.atproto.repo.getRecord", items, GotRecord.self)
            return got.uri == "at://\(account)/\(Self.collection)/\(rkey)" && got.value.type == Self.collection && got.value.signatureKey.data == key
        } catch let error as ServiceError where error.name.rawValue == "RecordNotFound" { return false }
    }

    private func all(_ account: DID) async throws -> [ListedDevice] {
        struct Page: Decodable {
            struct Entry: Decodable {
                var uri: String
                var value: Record
            }
            var records: [Entry]
            var cursor: String?
        }
        let pds = try await document(account, within: Self.fiveMinutes)
        var (devices, cursor, count): ([String: ListedDevice], String?, Int) = ([:], nil, 0)
        repeat {
            var items = [("repo", account.rawValue), ("collection", Self.collection), ("limit", String(Self.mostDevices))]
            if let cursor { items.append(("cursor", cursor)) }
            let page = try await ask(pds, "com.atproto.repo.listRecords", items, Page.self)
            for entry in page.records where entry.uri.hasSuffix("/" + recordKey(of: entry.value.signatureKey.data)) {
                let (key, suite, name) = (entry.value.signatureKey.data, entry.value.cipherSuite, entry.value.name)
                devices[recordKey(of: key)] = ListedDevice(key: key, cipherSuite: suite, name: name)
            }
            count += page.records.count
            if count > Self.mostDevices { throw AccountAway(account, "it lists more than \(Self.mostDevices) devices") }
            cursor = page.records.isEmpty ? nil : page.cursor
        } while cursor != nil
        return devices.keys.sorted().compactMap { devices[$0] }
    }

    /// It reads the document now: who has ended is removed.
    private func isDeleted(_ account: DID) async throws -> Bool {
        struct Status: Decodable {
            var did: DID
            var active: Bool
            var status: String?
        }
        let pds = try await document(account, within: 0)
        do {
            let answer = try await ask(pds, "com.atproto.sync.getRepoStatus", [("did", account.rawValue)], Status.self)
            if answer.did != account { throw AccountAway(account, "its PDS answers for another account") }
            return !answer.active && answer.status == "deleted"
        } catch let error as ServiceError where error.name.rawValue == "RepoNotFound" { return true }
    }

    private func own(_ rkey: String) async throws -> Record? {
        let items = [URLQueryItem(name: "repo", value: account.rawValue), .init(name: "collection", value: Self.collection), .init(name: "rkey", value: rkey)]
        do {
            let body = try await inTime { try await $0.pds.get("com.atproto.repo.getRecord", items: items) }
            return try? JSONDecoder().decode(GotRecord.self, from: body).value // another thing is written over
        } catch let error as ServiceError where error.name.rawValue == "RecordNotFound" { return nil }
    }

    // MARK: Hosts

    /// Where the account's PDS is, by its DID document, unless that was read so lately.
    private func document(_ account: DID, within age: TimeInterval) async throws -> URL {
        let now = surroundings.now()
        if let known = documents[account], case let old = now.timeIntervalSince(known.read), old >= 0, old < age { return known.pds }
        struct Content: Decodable {
            struct Entry: Decodable {
                var id: String
                var serviceEndpoint: String?
            }
            var id: DID
            var service: [Entry]?
        }
        documents[account] = nil
        let answer = try await get(documentURL(account))
        if answer.status == 410 { throw Ended() }
        guard answer.status == 200, let document = try? JSONDecoder().decode(Content.self, from: answer.body), document.id == account else {
            throw AccountAway(account, "there is no DID document of it, and status \(answer.status)")
        }
        let entry = document.service?.first { ["#atproto_pds", account.rawValue + "#atproto_pds"].contains($0.id) }
        guard let pds = entry?.serviceEndpoint.flatMap(URL.init), isSafe(pds) else { throw AccountAway(account, "its DID document names no PDS at https") }
        if documents.count >= Self.mostDocuments { documents = [:] }
        documents[account] = Document(pds: pds, read: now)
        return pds
    }

    private func documentURL(_ account: DID) throws -> URL {
        let parts = account.rawValue.split(separator: ":", omittingEmptySubsequences: false).map(String.init)
        var url: URL?
        if parts.count == 3, parts[1] == "plc" { url = URL(string: "\(directory)/\(account)") }
        if parts.count == 3, parts[1] == "web", let host = parts[2].removingPercentEncoding {
            url = URL(string: "https://\(host)/.well-known/did.json")
            if let plain = URL(string: "http://\(host)/.well-known/did.json"), isSafe(plain) { url = plain }
        }
        guard let url else { throw AccountAway(account, "nobody knows how to find its DID document") }
        return url
    }

    private func isSafe(_ url: URL) -> Bool {
        if url.scheme == "https" { return url.host != nil }
        return url.scheme == "http" && directory.scheme == "http" && ["localhost", "127.0.0.1"].contains(url.host)
    }

    private func ask<Output: Decodable>(_ pds: URL, _ method: String, _ items: [(String, String)], _ type: Output.Type) async throws -> Output {
        let url = pds.appendingPathComponent("xrpc/" + method)
        guard var parts = URLComponents(url: url, resolvingAgainstBaseURL: false) else { throw NoAnswer(URLError(.badURL)) }
        parts.queryItems = items.map { URLQueryItem(name: $0, value: $1) }
        parts.percentEncodedQuery = parts.percentEncodedQuery?.replacingOccurrences(of: "+", with: "%2B") // a space in a query
        let answer = try await get(parts.url ?? url)
        guard answer.status == 200 else { throw ServiceError(answer) }
        return try JSONDecoder().decode(type, from: answer.body)
    }

    /// A host that other people name learns nothing of this person, and its answer is bounded.
    private func get(_ url: URL) async throws -> Answer {
        var (answer, pieces) = try await transport.open(Request(method: "GET", url: url))
        if !(200..<300).contains(answer.status) { return answer }
        for try await piece in pieces {
            answer.body += piece
            if answer.body.count > Self.mostBytes { throw NoAnswer(URLError(.dataLengthExceedsMaximum)) }
        }
        return answer
    }

    /// Any failure means that nobody can say now.
    private func question<Output: Sendable>(_ did: DID, _ work: @escaping @Sendable (ATProtoAccounts) async throws -> Output) async throws -> Output {
        do { return try await inTime(work) } catch let error as AccountAway { throw error } catch is CancellationError {
            throw CancellationError()
        } catch { throw AccountAway(did, String(describing: error)) }
    }

    /// Ends work that takes longer than the timeout.
    private nonisolated func inTime<Output: Sendable>(_ work: @escaping @Sendable (ATProtoAccounts) async throws -> Output) async throws -> Output {
        try await withThrowingTaskGroup(of: Output?.self) { group in
            group.addTask { try await work(self) }
            group.addTask { [surroundings, timeout] in
                try await surroundings.sleep(timeout)
                return nil
            }
            guard let first = try await group.next(), let done = first else { throw NoAnswer(URLError(.timedOut)) }
            group.cancelAll() // an error does so too
            return done
        }
    }
}

extension Route {
    /// The same way, for a call that the PDS itself is to take.
    var toPDS: Route {
        var route = Route(base: base, renew: renew) { nsid in try await headers(nsid).filter { $0.key.lowercased() != "atproto-proxy" } }
        route.proofs = proofs
        return route
    }
}
