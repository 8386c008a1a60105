import Foundation

/// KeyPackages, and receipts of those that other services than the convo's have given.
struct Claimed: Sendable {
    var people: Set<DID> = []
    var packages: [Data] = []
    var receipts: [String]?
    var names: Set<String> = []

    mutating func add(_ kept: [KeptClaim]) {
        for one in kept {
            people.insert(one.account)
            packages += one.packages
            if let more = one.receipts { receipts = (receipts ?? []) + more }
            names.insert(one.name)
        }
    }
}

/// People and convos of other services: docs/NETWORK.md.
extension Messenger {
    /// Says in the person's repository that the KeyPackages are at the home of this messenger, so that people of
    /// other services find them. `pds` is a route to the person's PDS, such as `Route.pds`.
    public func publishProfile(through pds: Route) async throws {
        guard let home = services.home else { throw MessengerError.noWay(account) }
        let (nsid, collection) = ("com.atproto.repo.putRecord", "blue.catbird.mls.profile")
        let formatter = ISO8601DateFormatter()
        formatter.formatOptions = [.withInternetDateTime, .withFractionalSeconds]
        let record = ["$type": collection, "deliveryService": home.rawValue, "createdAt": formatter.string(from: surroundings.now())]
        let body: [String: Any] = ["repo": account.rawValue, "collection": collection, "rkey": "self", "record": record]
        _ = try await Service(pds.toPDS, transport: service.transport).post(nsid, body: JSONSerialization.data(withJSONObject: body))
    }

    // MARK: Inviting

    /// The most accounts of one claim.
    private static let mostClaimed = 100

    /// Claims a KeyPackage of each device of each person, at the person's home, unless an attempt before has done it. If
    /// not `all` are needed, it does not wait for a home that does not answer. Errors: those of the service.
    func claim(_ members: [DID], _ convo: String?, _ all: Bool, _ claimed: inout Claimed) async throws {
        let here = try await services.of(convo ?? "") ?? services.home
        let suite = try await mls.cipherSuite
        for (home, people) in try await homes(of: members, at: here, all: all) {
            let isHere = home == here
            let before = try await kept(people, at: home, withReceipts: !isHere)
            claimed.add(before)
            claiming.formUnion(before.map(\.name))
            let others = people.filter { person in !before.contains { $0.account == person } }
            for first in stride(from: 0, to: others.count, by: Self.mostClaimed) {
                let some = Array(others[first..<min(first + Self.mostClaimed, others.count)])
                let claim = GetKeyPackages.Parameters(
                    dids: some, cipherSuite: suite, convoId: isHere ? convo : nil, receipts: isHere ? nil : true
                )
                let found: [Defs.KeyPackageRef]
                do { found = try await ask(GetKeyPackages.self, claim, at: home, once: !all && !isHere).keyPackages } catch where !all && !isHere { continue }
                let new = try await keep(admitted(found.map(\.keyPackage.data), some, all), found, at: home, withReceipts: !isHere)
                claimed.add(new)
                claiming.formUnion(new.map(\.name))
            }
        }
    }

    /// The KeyPackages of devices that those people list whom this person has asked for: the service has chosen them, and
    /// could have made them itself. If all people are needed, it waits while an account cannot be asked.
    private func admitted(_ packages: [Data], _ people: [DID], _ all: Bool) async throws -> [(package: Data, account: DID)] {
        var asked: [(package: Data, leaf: Leaf)] = []
        for package in packages {
            let leaf = try await mls.leaf(ofKeyPackage: package)
            if people.contains(leaf.account) { asked.append((package, leaf)) }
        }
        var attempts = 0
        while true {
            let devices = try await judge(asked.map { $0.leaf })
            let known = zip(asked, devices).compactMap { $1.isKnown ? (package: $0.package, account: $1.account) : nil }
            let waiting = devices.filter { device in device.state == .waiting && !known.contains { $0.account == device.account } }
            if !all || waiting.isEmpty { return known }
            try await surroundings.sleep(surroundings.backoff(after: attempts, AccountAway(waiting[0].account, "")))
            attempts += 1
        }
    }

    /// Asks the convo's service for the homes of people. Who has named none has the KeyPackages there, if
    /// anywhere.
    private func homes(of members: [DID], at here: DID?, all: Bool) async throws -> [DID?: [DID]] {
        if services.home == nil { return members.isEmpty ? [:] : [nil: members] }
        var homes: [DID?: [DID]] = [:]
        for member in members {
            var home: DID?
            do { home = try await ask(GetDeliveryService.self, .init(did: member), at: here, once: !all).deliveryService } catch where !all {}
            homes[home ?? here, default: []].append(member)
        }
        return homes
    }

    // MARK: Invitations

    /// The invitations of this device to convos of other services, the newest first; after a move those that are
    /// at the old home, too, if it answers.
    func invitations() async throws -> [GetInvitations.Invitation] {
        var all = try await patiently { try await self.invitations($0) }
        for former in try await services.former() { all += (try? await invitations(services.at(former.service))) ?? [] }
        return all
    }

    func invitations(_ service: Service) async throws -> [GetInvitations.Invitation] {
        let device = try await mls.deviceID
        var all: [GetInvitations.Invitation] = []
        var cursor: String?
        repeat {
            let page = try await service.query(GetInvitations.self, .init(cursor: cursor))
            all += page.invitations.filter { $0.deviceId == device }
            cursor = page.cursor
        } while cursor != nil
        return all
    }

    /// Accepts an invitation. When it returns, that is stored, and the person's home knows it. Then the device
    /// joins at the convo's service, also after a kill, and follows its events. Errors: `notAt`, `noWay`, and
    /// those of the service.
    func acceptInvitation(to convo: String, at service: DID) async throws {
        let input = AcceptInvitation.Input(convoId: convo, service: service)
        try input.check()
        try await checkID(convo)
        try await services.place(Elsewhere(convoId: convo, service: service, answer: .accepted))
        try await answer(convo) { _ = try await $0.call(AcceptInvitation.self, input) }
        try await forgetRequest(of: convo)
        later { try await $0.enter(convo, service) }
    }

    /// Declines an invitation. The convo's service is told, too, also after a kill. If the device is in the convo,
    /// it leaves.
    func declineInvitation(to convo: String, at service: DID) async throws {
        let input = DeclineInvitation.Input(convoId: convo, service: service)
        try input.check()
        try await checkID(convo)
        if try await isIn(convo), try await services.of(convo) == service { return _ = try await leave(convo) }
        try await services.place(Elsewhere(convoId: convo, service: service, answer: .declined))
        try await answer(convo) { _ = try await $0.call(DeclineInvitation.self, input) }
        try await forgetRequest(of: convo)
        later { try await $0.refuse(convo) }
    }

    private func isIn(_ convo: String) async throws -> Bool { try await records.read(Thread.self, Thread.prefix + convo) != nil }

    private func isRefusal(_ error: any Error) -> Bool { [.refuse, .recover].contains(RetryRule.verdict(on: error)) }

    /// Tells the home that has the invitation what the person says. It can be one of before.
    private func answer(_ convo: String, _ call: @Sendable (Service) async throws -> Void) async throws {
        var refusal: (any Error)?
        for home in try await [services.home] + services.former().map(\.service) {
            do { return try await patiently(at: home, call) } catch where isRefusal(error) { refusal = refusal ?? error }
        }
        if try await !isIn(convo) {
            try await services.forget(convo)
            try await forgetRequest(of: convo)
        }
        if let refusal { throw refusal }
    }

    private func enter(_ convo: String, _ service: DID) async throws {
        let input = AcceptConvo.Input(convoId: convo)
        do {
            _ = try await patiently(at: service) { try await $0.call(AcceptConvo.self, input) }
            try await joinIfInvited(convo)
        } catch where isRefusal(error) { // the invitation has ended
            if try await !isIn(convo) { try await services.forget(convo) }
            throw error
        }
        try await forgetRequest(of: convo) // a kill has come before that
        listen(to: service)
        try await register(at: service)
    }

    private func refuse(_ convo: String) async throws {
        let input = LeaveConvo.Input(convoId: convo)
        do { _ = try await patiently { try await $0.call(LeaveConvo.self, input) } } catch where isRefusal(error) {} // it has ended
        try await services.forget(convo)
        try await forgetRequest(of: convo)
    }

    /// Goes on with what an earlier life has not finished.
    func resumeServices() async throws {
        for entry in try await records.list(Elsewhere.self, Elsewhere.prefix) {
            switch entry.answer {
            case .declined: later { try await $0.refuse(entry.convoId) }
            case .accepted where try await !isIn(entry.convoId): later { try await $0.enter(entry.convoId, entry.service) }
            default: break
            }
        }
        for former in try await services.former() { later { try await $0.leaveHome(former) } }
    }

    // MARK: Pushes

    /// Registers where the device gets its pushes: at the home, and at each other service where it has convos,
    /// now and later. Call it at each start. It returns the home's answer.
    @discardableResult
    public func registerPushTarget(_ target: RegisterPushTarget.Input) async throws -> RegisterPushTarget.Output {
        try target.check()
        try await records.write([Name.pushTarget: encoded(target)])
        for case let service? in try await services.all() where service != services.home { later { try await $0.register(at: service) } }
        let own = target
        return try await patiently { try await $0.call(RegisterPushTarget.self, own) }
    }

    private func register(at service: DID) async throws {
        guard var target = try await records.read(RegisterPushTarget.Input.self, Name.pushTarget) else { return }
        target.idempotencyKey = newIdempotencyKey() // registered before, and unregistered since
        let input = target
        _ = try await patiently(at: service) { try await $0.call(RegisterPushTarget.self, input) }
    }

    // MARK: Moving

    /// How long services remember what a person's record has named, in seconds. So long people get KeyPackages at
    /// the old home.
    static let remembered: TimeInterval = 3600
    /// How long after a move an invitation can arrive at the old home, in seconds: docs/NETWORK.md.
    static let arriving: TimeInterval = 8 * 24 * 3600

    /// Withdraws the KeyPackages at a home of before, and looks there until all invitations are answered.
    private func leaveHome(_ former: Homes.Former) async throws {
        let (device, home) = (try await mls.deviceID, former.service)
        try await sleep(until: former.since.addingTimeInterval(Self.remembered))
        let stock = try await keyPackages(of: device, at: home).filter { [.available, .orphaned].contains($0.state) }
        try await withdraw(stock.map(\.keyPackageRef), of: device, at: home)
        try await sleep(until: former.since.addingTimeInterval(Self.arriving))
        while try await patiently(at: home, { try await self.invitations($0) }).contains(where: { $0.state == .open }) {
            try await surroundings.sleep(Self.remembered)
        }
        try await services.forget(former: home)
    }

    private func sleep(until time: Date) async throws {
        let seconds = time.timeIntervalSince(surroundings.now())
        if seconds > 0 { try await surroundings.sleep(seconds) }
    }
}

extension GetInvitations.Invitation {
    init(_ event: StreamConvoEvents.InvitationEvent) {
        self.init(
            convoId: event.convoId, createdAt: event.createdAt, deviceId: event.deviceId, epoch: event.epoch, inviter: event.inviter,
            keyPackageRef: event.keyPackageRef, service: event.service, state: event.state.map { State(rawValue: $0.rawValue) } ?? .open,
            request: event.request
        )
    }
}
