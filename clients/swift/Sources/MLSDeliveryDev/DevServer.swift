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
        .direct(base) { nsid in
            struct Token: Decodable { var token: String }
            return try await self.post("token", ["did": account.rawValue, "lxm": nsid], Token.self).token
        }
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
        let request = Request(method: method, url: base.appendingPathComponent("dev/" + path), headers: headers, body: body)
        let answer = try await transport.send(request)
        guard answer.status == 200 else { throw Refused(status: answer.status, text: String(decoding: answer.body, as: UTF8.self)) }
        return try JSONDecoder().decode(type, from: answer.body)
    }

    public struct Refused: Error {
        public var status: Int
        public var text: String
    }
}
