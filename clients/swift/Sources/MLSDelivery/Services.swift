import Foundation

/// How a messenger reaches other services than the person's home: docs/NETWORK.md.
public struct OtherServices: Sendable {
    /// The DID of the person's home, which the messenger's `service` reaches. If it is another one than in an
    /// earlier life, the person has moved: convos stay where they are.
    public let home: DID
    let way: @Sendable (_ service: DID, _ device: String) async throws -> Service

    /// `way` makes a way to another service for the device with this id. It is asked once in a messenger's life
    /// for each service, and again after an error. ``endpoint(of:directory:transport:)`` says where a service is.
    public init(home: DID, way: @escaping @Sendable (_ service: DID, _ device: String) async throws -> Service) {
        (self.home, self.way) = (home, way)
    }

    /// Finds where a service answers, by its DID document. Only `did:web` and `did:plc` are known. `directory` is
    /// the PLC directory.
    public static func endpoint(
        of service: DID, directory: String = "https://plc.directory", transport: any Transport = URLSessionTransport()
    ) async throws -> URL {
        let parts = service.rawValue.split(separator: ":", maxSplits: 2).map(String.init)
        let host = parts.last?.removingPercentEncoding ?? ""
        var text = directory + "/" + service.rawValue
        if parts.dropFirst().first == "web" {
            text = (host.split(separator: ":").first == "localhost" ? "http://" : "https://") + host + "/.well-known/did.json"
        }
        let answer = try await transport.send(Request(method: "GET", url: URL(string: text) ?? URL(fileURLWithPath: "/")))
        let document = try JSONSerialization.jsonObject(with: answer.body) as? [String: Any]
        let entries = document?["service"] as? [[String: Any]] ?? []
        let entry = entries.first { ["", service.rawValue].map { $0 + "#atproto_mls" }.contains($0["id"] as? String) }
        guard answer.status == 200, document?["id"] as? String == service.rawValue,
            let endpoint = (entry?["serviceEndpoint"] as? String).flatMap(URL.init)
        else { throw MessengerError.noWay(service) }
        return endpoint
    }
}

/// Where a convo is that is not at the home.
struct Elsewhere: Codable, Hashable {
    enum Answer: String, Codable { case accepted, declined }

    /// The convo, or the group of one that is being made.
    var convoId: String
    var service: DID
    /// What the person has said to the invitation. A declined one stays until the service knows it.
    var answer: Answer?

    static let prefix = "service/"
    var name: String { Self.prefix + convoId }
}

/// The person's home, and those before it until nothing is left there.
struct Homes: Codable, Hashable {
    struct Former: Codable, Hashable {
        var service: DID
        var since: Date
    }

    var home: DID
    var former: [Former] = []

    static let name = "homes"
}

/// The services that a messenger knows, by their DIDs. Without `others` there is one: nil.
actor Services {
    nonisolated let home: DID?
    private let own: Service
    private let others: OtherServices?
    private let records: Records
    private let device: @Sendable () async throws -> String
    private var ways: [DID: Task<Service, any Error>] = [:]

    init(_ own: Service, _ others: OtherServices?, _ records: Records, device: @escaping @Sendable () async throws -> String) {
        (self.own, self.others, self.records, self.device) = (own, others, records, device)
        home = others?.home
    }

    /// Passes each call on to the service of its convo, and any other one to the home.
    nonisolated var routed: Service {
        var service = own
        if others != nil { service.finder = { convo in try await self.way(to: self.of(convo ?? "")) } }
        return service
    }

    /// A service, which is looked for when it is called.
    nonisolated func at(_ did: DID?) -> Service {
        var service = own
        if did != home { service.finder = { _ in try await self.way(to: did) } }
        return service
    }

    private func way(to did: DID?) async throws -> Service {
        guard let did, did != home else { return own }
        guard let others else { throw MessengerError.noWay(did) }
        let way = ways[did] ?? Task { [device] in try await others.way(did, device()) }
        ways[did] = way
        do { return try await way.value } catch {
            ways[did] = nil
            throw error
        }
    }

    /// The service of a convo that is not at the home.
    func of(_ convo: String) async throws -> DID? { try await records.read(Elsewhere.self, Elsewhere.prefix + convo)?.service }

    func isAt(_ service: DID?, _ convo: String) async throws -> Bool { try await of(convo) ?? home == service }

    func former() async throws -> [Homes.Former] { try await records.read(Homes.self, Homes.name)?.former ?? [] }

    /// Whether a service is the person's home, or was.
    func isHome(_ service: DID?) async throws -> Bool {
        if service == home { return true }
        return try await former().contains { $0.service == service }
    }

    /// The homes, and all services that have convos.
    func all() async throws -> Set<DID?> {
        let convos = try await records.list(Elsewhere.self, Elsewhere.prefix).filter { $0.answer != .declined }.map(\.service)
        return try await Set([home] + former().map(\.service) + convos)
    }

    /// Whether a convo is at a service. New ones are those of homes: others are accepted first.
    func speaks(_ service: DID?, for convo: String) async throws -> Bool {
        if try await isAt(service, convo) { return true }
        guard let service, try await isHome(service), try await isNew(convo) else { return false }
        try await place(Elsewhere(convoId: convo, service: service))
        return true
    }

    private func isNew(_ convo: String) async throws -> Bool {
        if try await of(convo) != nil { return false }
        return try await records.read(Thread.self, Thread.prefix + convo) == nil
    }

    /// Remembers where a convo is. Its calls go there from now on. Errors: `notAt`, `noWay`.
    func place(_ entry: Elsewhere) async throws {
        if others == nil { throw MessengerError.noWay(entry.service) }
        var fits = try await isAt(entry.service, entry.convoId)
        if !fits { fits = try await isNew(entry.convoId) }
        guard fits else { throw MessengerError.notAt(entry.service, convoId: entry.convoId) }
        if entry.service != home { try await records.write([entry.name: encoded(entry)]) }
    }

    func forget(_ convo: String) async throws { try await records.write([Elsewhere.prefix + convo: nil]) }

    /// What is stored when a convo goes on as another one, or a group has become a convo: it is at the same
    /// service. Error: `notAt`.
    func succession(of convo: String, to successor: String) async throws -> Changes {
        let service = try await of(convo)
        let isKnown = try await records.read(Thread.self, Thread.prefix + successor) != nil
        let before = try await of(successor)
        if let named = service ?? home, before == nil ? isKnown && service != nil : before != service {
            throw MessengerError.notAt(named, convoId: successor)
        }
        let entry = service.map { Elsewhere(convoId: successor, service: $0) }
        return try entry.map { [$0.name: try encoded($0)] } ?? [:]
    }

    // MARK: Moving

    /// What is stored when the home is another one than before. Convos stay where they are, with what is to be
    /// sent to them. KeyPackages of the old home are not published again: each one is at one service.
    static func move(to home: DID, _ values: [String: Data], at now: Date) throws -> Changes {
        let decoder = JSONDecoder()
        let before = try values[Homes.name].map { try decoder.decode(Homes.self, from: $0) }
        if before?.home == home { return [:] }
        var homes = Homes(home: home, former: before?.former.filter { $0.service != home } ?? [])
        var changes: Changes = [:]
        if let old = before?.home {
            homes.former.append(Homes.Former(service: old, since: now))
            for (name, value) in values {
                var stays: String?
                if name.hasPrefix(Elsewhere.prefix), try decoder.decode(Elsewhere.self, from: value).service == home {
                    changes[name] = .some(nil)
                } else if let prefix = [Thread.prefix, KeptWelcome.prefix].first(where: name.hasPrefix) {
                    stays = String(name.dropFirst(prefix.count))
                } else if name.hasPrefix(Write.prefix) {
                    let write = try decoder.decode(Write.self, from: value)
                    if write.lane == Messenger.packagesLane { changes[name] = .some(nil) }
                    if write.state == .pending { stays = convo(of: write.body) }
                }
                guard let stays, values[Elsewhere.prefix + stays] == nil else { continue }
                changes[Elsewhere.prefix + stays] = try encoded(Elsewhere(convoId: stays, service: old))
            }
        }
        changes[Homes.name] = try encoded(homes)
        return changes
    }

    /// Nothing is left at a home of before.
    func forget(former service: DID) async throws {
        guard var homes = try await records.read(Homes.self, Homes.name) else { return }
        homes.former.removeAll { $0.service == service }
        try await records.write([Homes.name: encoded(homes)])
    }
}

/// The convo of a call, or the group of one that is being made.
func convo(of body: Data) -> String? {
    struct Subject: Decodable { var convoId, groupId: String? }
    let subject = try? JSONDecoder().decode(Subject.self, from: body)
    return subject?.convoId ?? subject?.groupId
}

func convo(of items: [URLQueryItem]) -> String? { items.first { $0.name == "convoId" }?.value }
