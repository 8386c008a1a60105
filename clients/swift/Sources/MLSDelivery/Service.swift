import Foundation

/// The way to the service: an address, and what authorizes a call of a method.
public struct Route: Sendable {
    /// Where `/xrpc/…` is.
    public var base: URL
    /// The headers that authorize one call of the method with the NSID. It is asked for each attempt,
    /// because a token of a procedure is used up by it.
    public var headers: @Sendable (_ nsid: String) async throws -> [String: String]
    /// What is done after a 401, before the one attempt with new headers. nil: there is no such attempt.
    public var renew: (@Sendable () async -> Void)?

    /// Makes the DPoP proof of each request (RFC 9449). nil: tokens are bearers.
    var proofs: Proofs?

    public init(
        base: URL, renew: (@Sendable () async -> Void)? = nil,
        headers: @escaping @Sendable (_ nsid: String) async throws -> [String: String]
    ) {
        (self.base, self.renew, self.headers) = (base, renew, headers)
    }

    /// Through the user's PDS, which signs each call. `service` is the service's DID with the id of
    /// its entry, such as `did:web:mls.example.com#atproto_mls`. `access` gives the token of the
    /// user's session at the PDS. Streams do not pass a PDS.
    public static func pds(
        _ base: URL, service: String, access: @escaping @Sendable () async throws -> String
    ) -> Route {
        Route(base: base) { _ in ["Authorization": "Bearer " + (try await access()), "atproto-proxy": service] }
    }

    /// Through the user's PDS, with the tokens of OAuth, which are bound to a key: `access` gives the access token, and
    /// `proof` makes the DPoP proof of one request, a signed JWT with `htm`, `htu`, `ath` of this token, and the `nonce`
    /// if there is one. The PDS gives nonces: they are kept, and a request that lacks a fresh one is made once more.
    public static func pds(
        _ base: URL, service: String, access: @escaping @Sendable () async throws -> String, proof: @escaping Proofs.Make
    ) -> Route {
        var route = Route(base: base, renew: {}) { _ in ["Authorization": "DPoP " + (try await access()), "atproto-proxy": service] }
        route.proofs = Proofs(proof)
        return route
    }

    /// Directly. `token` gives a new service-auth token for the method: from the PDS by
    /// `com.atproto.server.getServiceAuth`.
    public static func direct(_ base: URL, token: @escaping @Sendable (_ nsid: String) async throws -> String) -> Route {
        Route(base: base) { nsid in ["Authorization": "Bearer " + (try await token(nsid))] }
    }
}

/// Makes DPoP proofs, with the newest nonce of the PDS.
public final class Proofs: @unchecked Sendable {
    /// `url` has no query.
    public typealias Make = @Sendable (_ method: String, _ url: URL, _ token: String, _ nonce: String?) async throws -> String

    private let make: Make
    private let lock = NSLock() // guards nonce
    private var nonce: String?

    init(_ make: @escaping Make) { self.make = make }

    func sign(_ request: inout Request) async throws {
        guard var parts = URLComponents(url: request.url, resolvingAgainstBaseURL: false) else { return }
        parts.query = nil
        let token = String(request.headers["Authorization"]?.dropFirst("DPoP ".count) ?? "")
        request.headers["DPoP"] = try await make(request.method, parts.url ?? request.url, token, lock.withLock { nonce })
    }

    func take(_ answer: Answer) {
        if let fresh = answer.headers["dpop-nonce"] { lock.withLock { nonce = fresh } }
    }
}

/// The service, as typed calls. One call is one attempt: ``Outbox`` repeats what must not be lost.
public struct Service: Sendable {
    public var route: Route
    public var transport: any Transport
    /// Finds the service for a call about a convo, or about the group of a convo that is being made. nil: this one.
    var finder: (@Sendable (_ convo: String?) async throws -> Service)?

    public init(_ route: Route, transport: any Transport = URLSessionTransport()) {
        self.route = route
        self.transport = transport
    }

    /// Calls a query. Errors: ``ServiceError``, ``NoAnswer``, ``InvalidInput``.
    public func query<Q: Query>(_ method: Q.Type, _ parameters: Q.Parameters) async throws -> Q.Output {
        try parameters.check()
        return try Self.read(Q.Output.self, try await get(Q.nsid, items: parameters.items))
    }

    /// Calls a procedure. Errors: ``ServiceError``, ``NoAnswer``, ``InvalidInput``.
    public func call<P: Procedure>(_ method: P.Type, _ input: P.Input) async throws -> P.Output {
        try input.check()
        return try Self.read(P.Output.self, try await post(P.nsid, body: encoded(input)))
    }

    /// Sends a procedure's body as it is, and returns the body of the 2xx. `checked` is the procedure
    /// whose answer it must be: a captive portal answers 200 too.
    func post(_ nsid: String, body: Data, checked: (any Procedure.Type)? = nil) async throws -> Data {
        let answer = try await renewing(finder.flatMap { _ in convo(of: body) }) {
            var request = try await $0.request("POST", nsid)
            request.headers["Content-Type"] = "application/json"
            request.body = body
            return try await $0.send(request)
        }
        if let checked { try Self.check(checked, answer) }
        return answer
    }

    /// Sends bytes to a procedure that takes them as they are. Errors: ``ServiceError``, ``NoAnswer``.
    func put(_ nsid: String, items: [URLQueryItem], bytes: Data) async throws {
        let answer = try await renewing(convo(of: items)) {
            var request = try await $0.request("POST", nsid, items: items)
            request.headers["Content-Type"] = "application/octet-stream"
            request.body = bytes
            return try await $0.send(request)
        }
        do { _ = try JSONSerialization.jsonObject(with: answer) } catch { throw NoAnswer(error) } // a captive portal
    }

    /// Calls a query whose answer is bytes. Errors: ``ServiceError``, ``NoAnswer``.
    func get(_ nsid: String, items: [URLQueryItem]) async throws -> Data {
        try await renewing(convo(of: items)) { try await $0.send($0.request("GET", nsid, items: items)) }
    }

    private static func check<P: Procedure>(_ procedure: P.Type, _ answer: Data) throws {
        _ = try read(P.Output.self, answer)
    }

    /// Opens a stream of events, from its parameters. `last` is the id of the last event.
    func open<E: EventQuery>(
        _ method: E.Type, _ parameters: E.Parameters
    ) async throws -> AsyncThrowingStream<Data, any Error> {
        try await renewing(convo(of: parameters.items)) {
            var request = try await $0.request("GET", E.nsid, items: parameters.items)
            request.headers["Accept"] = "text/event-stream"
            let (answer, pieces): (Answer, AsyncThrowingStream<Data, any Error>)
            do { (answer, pieces) = try await $0.transport.open(request) } catch { throw NoAnswer(error) }
            guard (200..<300).contains(answer.status) else { throw ServiceError(answer) }
            return pieces
        }
    }

    /// Makes an attempt at the service of the convo, and a second one if the first one's authorization can be
    /// renewed.
    private func renewing<Output>(_ convo: String?, _ attempt: (Service) async throws -> Output) async throws -> Output {
        let service: Service
        do { service = try await finder?(convo) ?? self } catch { throw error is ServiceError ? error : NoAnswer(error) }
        do { return try await attempt(service) } catch let error as ServiceError where error.status == 401 {
            guard let renew = service.route.renew else { throw error }
            await renew()
            return try await attempt(service)
        }
    }

    private func request(_ method: String, _ nsid: String, items: [URLQueryItem] = []) async throws -> Request {
        var url = route.base.appendingPathComponent("xrpc").appendingPathComponent(nsid)
        if !items.isEmpty, var parts = URLComponents(url: url, resolvingAgainstBaseURL: false) {
            parts.queryItems = items
            // A plus sign means a space in a query.
            parts.percentEncodedQuery = parts.percentEncodedQuery?.replacingOccurrences(of: "+", with: "%2B")
            url = parts.url ?? url
        }
        do {
            var request = Request(method: method, url: url, headers: try await route.headers(nsid))
            try await route.proofs?.sign(&request)
            return request
        } catch {
            if error is ServiceError { throw error }
            throw NoAnswer(error)
        }
    }

    private func send(_ request: Request) async throws -> Data {
        let answer: Answer
        do { answer = try await transport.send(request) } catch { throw NoAnswer(error) }
        route.proofs?.take(answer)
        guard (200..<300).contains(answer.status) else { throw ServiceError(answer) }
        return answer.body
    }

    static func read<Output: Decodable>(_ type: Output.Type, _ body: Data) throws -> Output {
        if let none = NoBody() as? Output { return none }
        do { return try JSONDecoder().decode(Output.self, from: body) } catch { throw NoAnswer(error) }
    }
}
