import Foundation

/// A device of this person.
public struct OwnDevice: Hashable, Sendable, Identifiable {
    /// The SHA-256 of its signature key, in lower-case hexadecimal: the service names devices so.
    public var deviceId: String
    /// Its signature key. nil if only the service has something of the device.
    public var key: Data?
    /// Its name in its record.
    public var name: String?
    /// Whether it is the device that asks.
    public var isOwn = false
    /// Whether the account lists it.
    public var isListed = false
    /// How many of its KeyPackages others can claim at the service.
    public var keyPackages = 0
    /// The convos in which it has a leaf, of those that this device is in.
    public var convos: [String] = []

    public var id: String { deviceId }
    fileprivate var isThere: Bool { isOwn || isListed || keyPackages > 0 || !convos.isEmpty }
}

/// What is asked for would be done to this device, or to its person: the sentence says which call does it.
public struct OwnDeviceError: Error, Hashable, Sendable, CustomStringConvertible {
    public var description: String
}

/// This device signs out, or its account does not list it any more.
public struct SignedOut: Error, Hashable, Sendable {
    public enum Why: String, Sendable {
        /// The device has signed out, and its storage is empty.
        case done
        /// Another device of the person has removed it. It enters no convo, and nobody encrypts for it: ask the person, and
        /// call ``Messenger/signOut()``.
        case removed
    }

    public var why: Why
    public init(_ why: Why) { self.why = why }
}

/// A device that is taken out. It is stored until all is done.
private struct Removal: Codable {
    var deviceId: String
    /// Its signature key, once it is known.
    var key: Data?

    static let prefix = "removal/"
    static func name(_ deviceId: String) -> String { prefix + deviceId }
    var name: String { Self.name(deviceId) }
}

/// The devices of this person: docs/clients/DEVICES.md. A new one enters the person's convos, and a dead one is taken out
/// of everything.
///
/// A device enters by an external commit of its own: that needs no other device which is switched on, and uses up no
/// KeyPackage. The members judge the new leaf by the record of its account.
extension Messenger {
    /// A random part of this is waited before a convo is entered, in seconds.
    private static let mostWait = 2.0
    /// So long a leaving device waits for what need not be, in seconds: proposals, and services that are not the home.
    private static let longestGoodbye = 10.0

    // MARK: Entering

    /// Enters a convo of this person at its home after a random wait: with its Welcome, or else by an external commit, if
    /// another listed device of the person is in the group. With `again` also if this device was removed from it.
    func enterLater(_ convo: String, again: Bool = false) {
        guard entering.insert(convo).inserted else { return }
        later { try await $0.enterByItself(convo, again: again) }
    }

    private func enterByItself(_ convo: String, again: Bool) async throws {
        defer { entering.remove(convo) }
        if try await isEntered(convo, again) { return }
        try await joinIfInvited(convo, .withWelcome)
        // One after the other: a person with many convos does not use up its quota at once.
        try await entryTurn.take { try await self.surroundings.sleep(self.surroundings.random() * Self.mostWait) }
        for write in await outbox.pending where [CreateConvo.nsid, ResetConvo.nsid].contains(write.nsid) {
            _ = try await outbox.finished(write.id) // it can be this convo that the device is making
        }
        var attempts = 0
        while try await !isEntered(convo, again) {
            do { return try await join(convo, .byItself) } catch let error as UnknownDevices {
                try await surroundings.sleep(surroundings.backoff(after: attempts, error))
                attempts += 1
            } catch MessengerError.needsInvitation {
                return // the app has been told
            } catch let error as ServiceError where error.name == .convoClosed {
                return
            }
        }
    }

    private func isEntered(_ convo: String, _ again: Bool) async throws -> Bool {
        if try await services.of(convo) != nil { return true } // another service's convos are entered by invitation
        guard let thread = try await records.read(Thread.self, Thread.prefix + convo) else { return false }
        return !(again && thread.left == true)
    }

    /// Enters a convo of which an event tells, and that another device of the person has made or was added to.
    func enterOwn(_ event: StreamConvoEvents.Event) async throws {
        let named: (convo: String, request: Bool?)? = switch event {
        case .messageEvent(let event): (event.message.convoId, event.request)
        case .commitEvent(let event): (event.convoId, event.request)
        case .membershipEvent(let event) where event.change == .joined: (event.convoId, event.request)
        default: nil
        }
        guard admitsOwn, let named, named.request != true else { return }
        if try await records.read(Thread.self, Thread.prefix + named.convo) == nil, try await request(of: named.convo) == nil {
            enterLater(named.convo)
        }
    }

    /// Checks that a listed device of this person is in a group that this device enters by itself.
    func mustHaveOwn(_ convo: String, _ offered: GroupState) async throws {
        let key = try await mls.signatureKey
        let devices = try await judge(offered.members.filter { $0.account == account && $0.signatureKey != key })
        if devices.contains(where: \.isKnown) { return }
        let waiting = devices.filter { $0.state == .waiting }
        if !waiting.isEmpty { throw UnknownDevices(devices: waiting) }
        throw ContraryGroup(what: .groupInfo, description: "no listed device of this person is in the group of convo \(convo)")
    }

    // MARK: Listing

    /// The devices of this person: those that its account lists, those that have KeyPackages at its home, and those with a
    /// leaf in a convo of this device. Errors: ``AccountAway``, and those of the service.
    public func devices() async throws -> [OwnDevice] {
        let own = try await (id: mls.deviceID, key: mls.signatureKey)
        var devices = [own.id: OwnDevice(deviceId: own.id, key: own.key, isOwn: true)]
        func set(_ id: String, _ change: (inout OwnDevice) -> Void) { change(&devices[id, default: OwnDevice(deviceId: id)]) }
        for record in try await accounts.devices(of: account) {
            set(try await deviceID(of: record.key)) { ($0.key, $0.name, $0.isListed) = (record.key, record.name, true) }
        }
        for stats in try await ask(GetKeyPackageStats.self, .init(), at: services.home).byDevice {
            set(stats.deviceId) { $0.keyPackages = stats.available + stats.lastResort }
        }
        for (convo, leaf) in try await ownLeaves() {
            set(try await deviceID(of: leaf.signatureKey)) { $0.key = leaf.signatureKey; $0.convos.append(convo) }
        }
        return devices.values.filter(\.isThere).sorted { $0.deviceId < $1.deviceId }
    }

    private func deviceID(of key: Data) async throws -> String {
        let own = try await mls.signatureKey
        return key == own ? try await mls.deviceID : hexadecimal(sha256(key))
    }

    /// The leaves of this person in the groups that this device is in.
    private func ownLeaves() async throws -> [(convo: String, leaf: Leaf)] {
        var all: [(convo: String, leaf: Leaf)] = []
        for thread in try await records.list(Thread.self, Thread.prefix) where thread.left != true && thread.successor == nil {
            for leaf in try await presentMembers(of: thread) ?? [] where leaf.account == account { all.append((thread.convoId, leaf)) }
        }
        return all
    }

    // MARK: Removing

    /// Takes another device of this person out of everything: its record, its leaves in the groups that this device is in,
    /// its KeyPackages, push targets and sessions. When it returns, all is done. A later life of the messenger goes on with
    /// it, and it can be repeated. Error: ``OwnDeviceError`` if it is this device.
    public func removeDevice(_ deviceId: String) async throws {
        if try await deviceId == mls.deviceID { throw OwnDeviceError(description: "this is the device itself: call signOut()") }
        if await records.data(Removal.name(deviceId)) == nil {
            let removal = Removal(deviceId: deviceId)
            try await records.write([removal.name: encoded(removal)])
        }
        try await finishRemoval(of: deviceId)
    }

    /// Goes on with what an earlier life has not finished.
    func removeAgain() async throws {
        for removal in try await records.list(Removal.self, Removal.prefix) { later { try await $0.finishRemoval(of: removal.deviceId) } }
    }

    private func finishRemoval(of deviceId: String) async throws {
        if let running = ending[deviceId] { return try await running.value }
        let task = Task { try await self.endDevice(deviceId) }
        ending[deviceId] = task
        defer { ending[deviceId] = nil }
        try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() }
    }

    private func endDevice(_ deviceId: String) async throws {
        if let key = try await key(of: deviceId) {
            try await untilAnswered { try await self.accounts.unlist(key) }
            let device = Device(account: account, key: key, state: .unlisted, askedAt: surroundings.now())
            try await records.write([device.name: encoded(device)])
            for (convo, leaf) in try await ownLeaves() where leaf.signatureKey == key { try await takeOut(leaf, of: convo) }
        }
        try await endAtServices(deviceId)
        try await records.write([Removal.name(deviceId): nil])
    }

    /// The signature key of a device. It is remembered: nothing else does that when the record is gone.
    private func key(of deviceId: String) async throws -> Data? {
        guard var removal = try await records.read(Removal.self, Removal.name(deviceId)) else { return nil }
        if let key = removal.key { return key }
        let own = account
        let leaves = try await ownLeaves().map(\.leaf.signatureKey)
        let listed = try await untilAnswered { try await self.accounts.devices(of: own).map(\.key) }
        guard let key = (leaves + listed).first(where: { hexadecimal(sha256($0)) == deviceId }) else { return nil }
        removal.key = key
        try await records.write([removal.name: encoded(removal)])
        return key
    }

    /// Removes a leaf. Another device can be faster, or the person not be in the convo any more: then nothing is left to do.
    private func takeOut(_ leaf: Leaf, of convo: String) async throws {
        do {
            guard let write = try await commit(Plan(removeDevice: leaf).unasked, convo) else { return }
            _ = try await outbox.finished(write.id)
        } catch let error as ServiceError where [.refuse, .recover].contains(RetryRule.verdict(on: error)) {
        } catch is CancellationError where !Task.isCancelled {} // it was refused, and dismissed
    }

    /// Takes the KeyPackages, the push targets and the sessions of a device from the services.
    private func endAtServices(_ deviceId: String) async throws {
        let homes = try await [services.home] + services.former().map(\.service)
        for home in homes {
            let input = WithdrawKeyPackages.Input(deviceId: deviceId)
            _ = try await patiently(at: home) { try await $0.call(WithdrawKeyPackages.self, input) }
            try await end(deviceId, at: home)
        }
        let others = try await services.all().subtracting(homes)
        await atMost(Self.longestGoodbye) { for service in others { try? await self.end(deviceId, at: service) } }
    }

    private func end(_ deviceId: String, at service: DID?) async throws {
        try await ifKnown {
            let input = UnregisterPushTarget.Input(deviceId: deviceId)
            _ = try await self.patiently(at: service) { try await $0.call(UnregisterPushTarget.self, input) }
        }
        try await ifKnown { _ = try await self.patiently(at: service) { try await $0.call(DeleteSession.self, .init(deviceId: deviceId)) } }
    }

    /// A service can lack a method: it has nothing of the kind then.
    private func ifKnown(_ call: () async throws -> Void) async throws {
        do { try await call() } catch let error as ServiceError where error.status == 501 {}
    }

    // MARK: Signing out

    /// Signs this device out: it proposes to remove its leaves, which other devices of the person commit, or other members;
    /// and its account, the services and the storage have nothing of it any more. What waits in the outbox is lost. When it
    /// returns, the messenger has stopped, and the storage is empty. A later life of the messenger goes on with it.
    public func signOut() async throws {
        if let leaving { return try await leaving.value }
        let task = Task { try await self.signOutNow() }
        leaving = task
        do { try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() } } catch {
            leaving = nil
            throw error
        }
    }

    /// Goes on with a sign-out of an earlier life.
    func signOutAgain() {
        Task {
            do { try await self.signOut() } catch is CancellationError {} catch { self.tell(.failed(String(describing: error))) }
        }
    }

    private func signOutNow() async throws {
        try await records.write([Name.signingOut: Data()])
        await outbox.start()
        let (leaves, key, device) = try await (ownLeaves(), mls.signatureKey, mls.deviceID)
        await atMost(Self.longestGoodbye) { // if it fails, the others ask the account
            var proposed: [Write] = []
            for (convo, leaf) in leaves where leaf.signatureKey == key {
                if let write = try? await self.retire(leaf, from: convo) { proposed.append(write) }
            }
            for write in proposed { _ = try? await self.outbox.finished(write.id) }
        }
        try await untilAnswered { try await self.accounts.unlist(key) }
        try await endAtServices(device)
        await endWork()
        try await records.write(Dictionary(await records.names("").map { ($0, nil) }) { first, _ in first })
        await close()
        tell(.signedOut(.done))
    }

    private func retire(_ leaf: Leaf, from convo: String) async throws -> Write? {
        try await turn.take {
            guard let draft = try await self.draftRetirement(leaf, convo) else { return nil }
            return try await self.outbox.add(draft, with: self.changes(for: draft))
        }
    }

    /// Does what need not succeed, and not for longer than so many seconds.
    private func atMost(_ seconds: Double, _ work: @escaping @Sendable () async -> Void) async {
        await withTaskGroup(of: Void.self) { group in
            group.addTask { await work() }
            group.addTask { [surroundings] in try? await surroundings.sleep(seconds) }
            await group.next()
            group.cancelAll()
        }
    }

    /// Repeats what only fails because nobody answers.
    private func untilAnswered<Result: Sendable>(_ step: @Sendable () async throws -> Result) async throws -> Result {
        var attempts = 0
        while true {
            do { return try await step() } catch {
                guard error is NoAnswer || error is AccountAway else { throw error }
                try await waits.pause(surroundings.backoff(after: attempts, error), after: error)
                attempts += 1
            }
        }
    }

    // MARK: People without a device

    /// The people of a convo who have no device in its group, and have not left. Once somebody has a device, ``add(_:to:)``
    /// brings them back.
    public func withoutDevice(_ convo: String) async throws -> [DID] {
        let thread = try await thread(convo)
        let people = try await Set((mls.members(of: thread.groupId) ?? []).map(\.account))
        let away = try await ask(GetConvo.self, .init(convoId: convo)).convo.members.map(\.did).filter { !people.contains($0) }
        return Set((thread.withoutDevice ?? []) + away).sorted { $0.rawValue < $1.rawValue }
    }

    /// Tells the app of them, after a reset.
    func tellWithoutDevice(_ convo: String) async throws {
        try await write([:], telling: withoutDevice(convo).map { .without(convoId: convo, account: $0) })
    }

    /// Notes who has no device in a group any more, and has not left: a commit has taken out the last one because its account
    /// does not list it.
    func strand(_ change: CommitChange, _ thread: inout Thread) async throws -> [News.Content] {
        var stranded: [DID] = []
        for person in change.removed {
            for one in change.devices where one.change == .left && one.device.account == person && !stranded.contains(person) {
                let known = try await records.read(Device.self, Device.name(person, one.device.key))
                if known?.state == .unlisted { stranded.append(person) }
            }
        }
        let still = (thread.withoutDevice ?? []).filter { !change.added.contains($0) }
        if !stranded.isEmpty || still.count < thread.withoutDevice?.count ?? 0 { thread.withoutDevice = still + stranded }
        let convo = thread.convoId
        return stranded.map { .without(convoId: convo, account: $0) }
    }
}
