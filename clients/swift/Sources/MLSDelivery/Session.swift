import Foundation

/// A session with the service: a bearer that one service-auth token buys, for direct clients. It is in memory
/// only; after a start another one is bought.
public actor Session {
    /// A bearer that ends so soon is renewed first, in seconds.
    private static let margin: TimeInterval = 120

    private let service: Service
    private let device: @Sendable () async throws -> String
    private let surroundings: Surroundings
    private var bearer: (text: String, until: Date)?
    private var refreshToken: String?
    private let turn = Turn()

    /// `token` gives a service-auth token for a method, as ``Route/direct(_:token:)`` takes it. `device` gives the
    /// device's id.
    public init(
        _ base: URL, transport: any Transport = URLSessionTransport(), surroundings: Surroundings = .init(),
        device: @escaping @Sendable () async throws -> String, token: @escaping @Sendable (_ nsid: String) async throws -> String
    ) {
        service = Service(.direct(base, token: token), transport: transport)
        (self.device, self.surroundings) = (device, surroundings)
    }

    /// The way to the service with this session. What a session may not do has a service-auth token.
    public nonisolated var route: Route {
        let direct = service.route
        return Route(base: direct.base, renew: { await self.forget() }) { nsid in
            if nsid == CreateSession.nsid || nsid == EraseMyAccount.nsid { return try await direct.headers(nsid) }
            return ["Authorization": "Bearer " + (try await self.current())]
        }
    }

    /// Ends the session on the service.
    public func end() async throws {
        guard bearer != nil else { return }
        _ = try await Service(route, transport: service.transport).call(DeleteSession.self, .init())
        (bearer, refreshToken) = (nil, nil)
    }

    private func forget() { bearer = nil }

    private func current() async throws -> String {
        try await turn.take { try await self.bought() }
    }

    private func bought() async throws -> String {
        if let bearer, bearer.until > surroundings.now().addingTimeInterval(Self.margin) { return bearer.text }
        if let bearer, let token = refreshToken, bearer.until > surroundings.now() {
            do {
                let next = try await refreshing(bearer.text).call(RefreshSession.self, .init(refreshToken: token))
                return keep(next.session, next.expiresAt, next.refreshToken)
            } catch is ServiceError {} // ended: a service-auth token buys another
        }
        let new = try await service.call(CreateSession.self, .init(deviceId: device()))
        return keep(new.session, new.expiresAt, new.refreshToken)
    }

    /// The service, authorized by the session that is to be refreshed.
    private func refreshing(_ bearer: String) -> Service {
        Service(Route(base: service.route.base) { _ in ["Authorization": "Bearer " + bearer] }, transport: service.transport)
    }

    private func keep(_ session: String, _ until: Timestamp, _ refresh: String) -> String {
        bearer = (session, until.date ?? surroundings.now())
        refreshToken = refresh
        return session
    }
}
