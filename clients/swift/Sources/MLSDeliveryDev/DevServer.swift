import Foundation
import MLSDelivery

/// `mlsd-dev`, by its endpoints below /dev: docs/clients/DEV.md.
public struct DevServer: Sendable {
    public let base: URL
    private let transport = URLSessionTransport()
    public init(_ base: URL) { self.base = base }

    /// A made-up person.
    public struct Account: Decodable, Hashable, Sendable {
        public var did: DID
        public var handle: String
        /// The service where the person has its KeyPackages.
        public var deliveryService: DID
    }

    /// A service of a network: `mlsd-dev --services`.
    public struct Neighbor: Decodable, Hashable, Sendable {
        public var did: DID
        public var url: URL
    }

    /// All services of the network; none if there is only one.
    public func services() async throws -> [Neighbor] {
        struct Info: Decodable { var services: [Neighbor]? }
        return try await ask("GET", "", nil, Info.self).services ?? []
    }

    /// Makes an account whose home is this service of the network.
    public func account(at home: Neighbor) async throws -> DID {
        while true { // they live at one service after the other
            let account = try await post("accounts", [:], Accounts.self).accounts[0]
            if account.deliveryService == home.did { return account.did }
        }
    }

    /// Ways to the services of the network for an account.
    public func others(_ account: DID, home: Neighbor) -> OtherServices {
        OtherServices(home: home.did) { service, _ in
            Service(try await route(account, at: Neighbor(did: service, url: OtherServices.endpoint(of: service))))
        }
    }

    /// The way to a service of the network.
    public func route(_ account: DID, at service: Neighbor) -> Route {
        .direct(service.url) { try await token(account, for: $0, aud: service.did) }
    }

    private struct Accounts: Decodable { var accounts: [Account] }

    /// Everybody on the server.
    public func people() async throws -> [Account] { try await ask("GET", "accounts", nil, Accounts.self).accounts }

    /// The account of a person, which is made if there is none.
    public func account(_ name: String) async throws -> DID {
        if let known = try await people().first(where: { $0.handle == name + ".test" }) { return known.did }
        return try await post("accounts", ["handle": name], Accounts.self).accounts[0].did
    }

    /// Makes accounts.
    public func accounts(_ count: Int) async throws -> [DID] {
        try await post("accounts", ["count": count], Accounts.self).accounts.map(\.did)
    }

    /// The way to the service for an account: each call has a new token.
    public func route(_ account: DID) -> Route {
        .direct(base) { try await token(account, for: $0) }
    }

    private func token(_ account: DID, for nsid: String, aud: DID? = nil) async throws -> String {
        struct Token: Decodable { var token: String }
        let body = ["did": account.rawValue, "lxm": nsid, "aud": aud?.rawValue]
        return try await post("token", body.compactMapValues { $0 }, Token.self).token
    }

    /// Lets something happen to requests. `method` and `account` say to which: without them to any.
    /// `times` is how often, 0 for always. `milliseconds` is for delays, `status` for the answer.
    public func addFault(
        _ kind: Fault, method: String? = nil, account: DID? = nil, times: Int = 1, milliseconds: Int? = nil, status: Int? = nil
    ) async throws {
        let all: [String: (any Sendable)?] = [
            "kind": kind.rawValue, "lxm": method, "did": account?.rawValue, "times": times, "ms": milliseconds, "status": status,
        ]
        _ = try await post("faults", all.compactMapValues { $0 }, NoBody.self)
    }

    /// A kind of fault.
    public enum Fault: String, Sendable { case loseAnswer, cut, delay, slow, status }

    public func clearFaults() async throws { _ = try await ask("DELETE", "faults", nil, NoBody.self) }

    /// Forgets everything: accounts, convos, faults.
    public func reset() async throws { _ = try await post("reset", [:], NoBody.self) }

    private func post<T: Decodable>(_ path: String, _ body: [String: any Sendable], _ type: T.Type) async throws -> T {
        try await ask("POST", path, JSONSerialization.data(withJSONObject: body), type)
    }

    private func ask<T: Decodable>(_ method: String, _ path: String, _ body: Data?, _ type: T.Type) async throws -> T {
        let headers = ["Content-Type": "application/json"]
        let request = Request(method: method, url: base.appendingPathComponent(path.isEmpty ? "dev" : "dev/" + path), headers: headers, body: body)
        let answer = try await transport.send(request)
        guard answer.status == 200 else { throw Refused(status: answer.status, text: String(decoding: answer.body, as: UTF8.self)) }
        return try JSONDecoder().decode(type, from: answer.body)
    }

    public struct Refused: Error {
        public var status: Int
        public var text: String
    }
}
