import Foundation

/// How a device may enter a convo.
enum JoinWay: Sendable {
    /// The person or the app wants it: with a Welcome, or by external commit.
    case asked
    /// With a Welcome alone, or by external commit if that is of no use.
    case withWelcome
    /// As `withWelcome`; without one by external commit, if another listed device of the person is in the group.
    case byItself
}

extension Messenger {
    /// The service keeps 1,024 bytes of details of a failed join.
    private static let mostDetails = 200

    /// Enters a convo that the account was added to: fetch, store, join, confirm, read. A Welcome
    /// that is stored needs no service: then the device has joined when this returns, and confirms
    /// as soon as it can. If joining fails, it says so to the service, keeps the bytes, and fetches
    /// once more. If that fails too, it comes back by an external commit. It can be called again
    /// after a kill at any point. A Welcome for another group than the convo's, or for one that the device has, is
    /// refused. Errors: `needsInvitation`, `unknownConvo`, `waitsForAnswer`, ``ContraryGroup``; and ``NoAnswer`` if it needs
    /// the service, and that cannot be reached.
    public func join(_ convo: String) async throws { try await join(convo, .asked, isPatient: false) }

    func join(_ convo: String, _ way: JoinWay, isPatient: Bool = true) async throws {
        try await checkID(convo)
        if try await waits(convo) { throw MessengerError.waitsForAnswer(convoId: convo) }
        if let running = joining[convo] {
            if !isPatient { try await reach(convo) }
            return try await running.value
        }
        let task = Task { try await self.joinNow(convo, way, isPatient) }
        joining[convo] = task
        defer { joining[convo] = nil }
        try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() }
        for old in try await records.list(Thread.self, Thread.prefix) where old.resetTo == convo && old.successor == nil {
            goOnLater(old.convoId, convo)
        }
    }

    private func joinNow(_ convo: String, _ way: JoinWay, _ isPatient: Bool) async throws {
        var stored = try await records.read(KeptWelcome.self, KeptWelcome.prefix + convo)
        var isInvited = stored != nil
        if stored == nil, !isPatient { try await reach(convo) }
        if stored == nil { try await readIfIn(convo) }
        var isSuperseded = false
        for _ in 0..<2 {
            guard let found = if let stored { stored } else { try await fetchWelcome(convo, &isInvited) } else {
                if let thread = try await records.read(Thread.self, Thread.prefix + convo), thread.left != true { return } // it has joined
                break
            }
            isInvited = true
            stored = nil
            let kept = isSuperseded ? found.replacing : found
            guard try await joinedPatiently(kept, isPatient) else { continue }
            changed(convo)
            let isNewest: Bool
            do { isNewest = try await confirm(kept) { [service] in try await service.call(ConfirmWelcome.self, $0) } } catch {
                guard RetryRule.verdict(on: error) == .again else { throw error }
                tell(.joined(convoId: convo))
                return later { try await $0.confirmLater(kept) }
            }
            if isNewest {
                tell(.joined(convoId: convo))
                return try await sync(convo)
            }
            isSuperseded = true
        }
        if way == .withWelcome, !isInvited { return }
        do { try await rejoin(convo, byItself: way == .byItself && !isInvited) } catch let error as ServiceError where error.name == .groupInfoNotFound {
            try await restock(atLeast: 1)
            tell(.needsInvitation(convoId: convo))
            throw MessengerError.needsInvitation(convoId: convo)
        }
        tell(.joined(convoId: convo))
        try await sync(convo)
    }

    /// How often a service is asked for a sign of life.
    private static let attempts = 3

    /// Error: ``NoAnswer`` if the convo's service cannot be reached.
    private func reach(_ convo: String) async throws {
        for attempt in 0..<Self.attempts {
            do { return _ = try await ask(GetEpoch.self, .init(convoId: convo), once: true) } catch is ServiceError { return } catch let error as NoAnswer {
                if attempt == Self.attempts - 1 { throw error }
                try await surroundings.sleep(surroundings.backoff(after: attempt, error))
            }
        }
    }

    /// Reads the log of a group that this device has: a commit can have removed the device from it.
    private func readIfIn(_ convo: String) async throws {
        guard let thread = try await records.read(Thread.self, Thread.prefix + convo), thread.left != true else { return }
        do { try await readToItsEnd(convo) } catch is MessengerError {} catch let error as ServiceError {
            if RetryRule.verdict(on: error) == .again { throw error }
        }
    }

    /// Waits while the accounts of the group's devices cannot be asked, if they must be before the device enters.
    private func joinedPatiently(_ kept: KeptWelcome, _ isPatient: Bool) async throws -> Bool {
        var attempts = 0
        while true {
            do { return try await joined(kept, isPatient) } catch let error as UnknownDevices {
                try await surroundings.sleep(surroundings.backoff(after: attempts, error))
                attempts += 1
            }
        }
    }

    /// What the service has. nil if it is gone.
    private func fetchWelcome(_ convo: String, _ isInvited: inout Bool) async throws -> KeptWelcome? {
        do {
            let device = try await mls.deviceID
            let fetched = try await ask(GetWelcome.self, .init(convoId: convo, deviceId: device))
            let kept = KeptWelcome(convoId: convo, welcome: fetched.welcome.data, keyPackageRef: fetched.keyPackageRef)
            try await records.write([kept.name: try encoded(kept)])
            return kept
        } catch let error as ServiceError where error.name == .welcomeConsumed || error.name == .welcomeNotFound {
            if error.name == .welcomeConsumed { isInvited = true }
            return nil
        }
    }

    /// Joins and stores that, in one write with the MLS state. A failure is reported, and false.
    private func joined(_ kept: KeptWelcome, _ isPatient: Bool) async throws -> Bool {
        if kept.joined { return true }
        let (convo, replaces) = (kept.convoId, kept.replaces == true)
        let failure: (any Error)? = try await turn.take {
            let state: GroupState
            do {
                state = try await self.mls.join(welcome: kept.welcome) { try await self.mustFit(.welcome, convo, $0, replaces: replaces) }
            } catch {
                try await self.records.write(self.mls.takeChanges())
                return error
            }
            var done = kept
            done.joined = true
            var changes = try await self.mls.takeChanges()
            var thread = Thread(convoId: kept.convoId, groupId: state.groupID, entered: state.epoch)
            thread.expected = try await self.expected(in: convo)
            changes[thread.name] = try encoded(thread)
            changes[kept.name] = try encoded(done)
            for name in await self.records.names(ReadMark.folder(kept.convoId)) { changes[name] = .some(nil) }
            try await self.records.write(changes)
            return nil
        }
        guard let failure else { return true }
        if failure is UnknownDevices || failure is CancellationError { throw failure }
        if !isPatient { try await reach(kept.convoId) }
        let details = String(decoding: String(describing: failure).utf8.prefix(Self.mostDetails), as: UTF8.self)
        let input = ConfirmWelcome.Input(convoId: kept.convoId, success: false, errorDetails: details, keyPackageRef: kept.keyPackageRef)
        _ = try await patiently { try await $0.call(ConfirmWelcome.self, input) }
        if failure is ContraryGroup {
            try await records.write([kept.name: nil])
            throw failure
        }
        return false
    }

    /// Says that the device has joined. It returns false if a newer Welcome has taken the place of
    /// this one.
    private func confirm(
        _ kept: KeptWelcome, by call: (ConfirmWelcome.Input) async throws -> ConfirmWelcome.Output
    ) async throws -> Bool {
        let answer = try await call(.init(convoId: kept.convoId, success: true, keyPackageRef: kept.keyPackageRef))
        try await records.write([kept.name: nil])
        return answer.state != .superseded
    }

    private func confirmLater(_ kept: KeptWelcome) async throws {
        let isNewest = try await confirm(kept) { input in try await patiently { try await $0.call(ConfirmWelcome.self, input) } }
        if isNewest { try await sync(kept.convoId) } else { try await join(kept.convoId) }
    }

    // MARK: KeyPackages

    /// How many KeyPackages are published at once.
    public static let stock = 100
    static let packagesLane = "keypackages"

    /// Lists this device in its account, and publishes KeyPackages if the service has too few of this device, and a last-resort one if it has none.
    /// Through the outbox: a lost answer costs nothing. The first time it also withdraws those whose private
    /// halves the device has lost.
    public func restock(atLeast: Int = 0) async throws {
        try await listDevice()
        let device = try await mls.deviceID
        try await withdrawLost(of: device)
        let stats = try await ask(GetKeyPackageStats.self, .init(deviceId: device))
        let own = stats.byDevice.first { $0.deviceId == device }
        let low = own?.needsReplenish ?? true
        let count = low ? Self.stock - min(Self.stock, own?.available ?? 0) : atLeast
        try await publish(count, lastResort: (own?.lastResort ?? 0) == 0)
    }

    /// The most KeyPackages in one list, or in one withdrawal.
    private static let page = 250

    /// Withdraws the KeyPackages whose private halves the device has lost, as with an older copy of its
    /// storage: nobody could welcome it by them.
    private func withdrawLost(of device: String) async throws {
        guard !compared else { return }
        let known = try await keyPackages(of: device, at: services.home).filter { [.available, .claimed, .orphaned].contains($0.state) }
        // Private halves are stored before their KeyPackages are sent: the device has those of all by now.
        let held = try await turn.take { try await self.mls.keyPackageRefs() }
        try await withdraw(known.map(\.keyPackageRef).filter { !held.contains($0) }, of: device, at: services.home)
        compared = true
    }

    /// The device's KeyPackages that a service has.
    func keyPackages(of device: String, at service: DID?) async throws -> [GetOwnKeyPackages.OwnKeyPackage] {
        var all: [GetOwnKeyPackages.OwnKeyPackage] = []
        var cursor: String?
        repeat {
            let list = try await ask(GetOwnKeyPackages.self, .init(cursor: cursor, deviceId: device, limit: Self.page), at: service)
            all += list.keyPackages
            cursor = list.cursor
        } while cursor != nil
        return all
    }

    func withdraw(_ refs: [String], of device: String, at service: DID?) async throws {
        for first in stride(from: 0, to: refs.count, by: Self.page) {
            let some = Array(refs[first..<min(first + Self.page, refs.count)])
            let input = WithdrawKeyPackages.Input(deviceId: device, keyPackageRefs: some)
            _ = try await patiently(at: service) { try await $0.call(WithdrawKeyPackages.self, input) }
        }
    }

    private func publish(_ count: Int, lastResort: Bool) async throws {
        let lane = Self.packagesLane
        guard count > 0 || lastResort, await !outbox.pending.contains(where: { $0.lane == lane }) else { return }
        madeWithOffset = clock.offset
        try await turn.take {
            let now = self.surroundings.now()
            var packages = try await self.mls.makeKeyPackages(count, lastResort: false, at: now)
            if lastResort { packages += try await self.mls.makeKeyPackages(1, lastResort: true, at: now) }
            let suite = try await self.mls.cipherSuite
            var changes = try await self.mls.takeChanges()
            // A batch has at most 100. The changes go with the first.
            for first in stride(from: 0, to: packages.count, by: Self.stock) {
                let items = packages[first..<min(first + Self.stock, packages.count)].map {
                    PublishKeyPackages.Item(cipherSuite: suite, keyPackage: Base64Text($0))
                }
                let draft = try Draft(
                    PublishKeyPackages.self, .init(keyPackages: items), lane: lane
                )
                try await self.outbox.add(draft, with: changes)
                changes = [:]
            }
        }
    }
}
