import Foundation

/// What a messenger knows of a device, which is a signature key in an account's name.
public struct Device: Codable, Hashable, Sendable {
    public enum State: String, Codable, Sendable {
        /// The account lists it.
        case listed
        /// The account does not list it, or could not be asked, and the app has accepted it.
        case accepted
        /// The account could not be asked yet.
        case waiting
        /// The account does not list it.
        case unlisted
    }

    public var account: DID
    public var key: Data
    public var state: State
    /// When the account has answered last.
    var askedAt: Date?

    /// Whether messages may be encrypted for it.
    public var isKnown: Bool { state == .listed || state == .accepted }

    static func name(_ account: DID, _ key: Data) -> String { "device/" + account.rawValue + "/" + hexadecimal(key) }
    var name: String { Self.name(account, key) }
}

/// A device about which the app can decide, or a person.
public struct Doubt: Hashable, Sendable {
    public enum Why: String, Sendable {
        /// Nothing is encrypted for the device.
        case waiting, unlisted, uninvited
        /// Only the service says that the person has left.
        case left
    }

    public var convoId: String
    public var account: DID
    /// The device's signature key. nil for a person who has left.
    public var key: Data?
    public var why: Why
}

/// Nothing is encrypted for devices whose accounts cannot be asked now, or do not list them.
public struct UnknownDevices: Error, Hashable, Sendable, CustomStringConvertible {
    public var devices: [Device]
    public var description: String {
        devices.map { "\($0.account) has a device that " + ($0.state == .unlisted ? "it does not list" : "waits to be checked") }.joined(separator: "; ")
    }
}

/// A message that was read, and whose sender's device is not known.
struct Withheld: Codable {
    var entry: Entry
    var leaf: Leaf

    static func folder(_ convo: String) -> String { "withheld/" + convo + "/" }
    static func name(_ convo: String, _ seq: Int) -> String { folder(convo) + ordered(seq) }
    var name: String { Self.name(entry.convoId, entry.seq) }
}

/// Whose key a leaf has: the account says it, in its own repository. Messages wait until everybody in their group is
/// known.
extension Messenger {
    /// So long an answer counts before the account is asked again, in seconds.
    private static let freshFor: TimeInterval = 24 * 3600
    /// So long it takes until it is asked again for a device that is not listed.
    private static let askAgainAfter: TimeInterval = 60
    /// So many questions of a group are under way at once.
    private static let mostAtOnce = 8

    /// What is known of a leaf's device. It asks nobody.
    func device(_ leaf: Leaf) async throws -> Device {
        let known = try await records.read(Device.self, Device.name(leaf.account, leaf.signatureKey))
        if let known { return known }
        let isOwn = try await isOwn(leaf)
        return Device(account: leaf.account, key: leaf.signatureKey, state: isOwn ? .listed : .waiting)
    }

    func isOwn(_ leaf: Leaf) async throws -> Bool {
        let key = try await mls.signatureKey
        return leaf.account == account && leaf.signatureKey == key
    }

    /// Asks the accounts of devices that are not known, or not lately. One that was listed stays so while its account
    /// cannot be asked.
    func judge(_ leaves: [Leaf]) async throws -> [Device] {
        try await withThrowingTaskGroup(of: (Int, Device).self) { group in
            var devices: [Int: Device] = [:]
            for (i, leaf) in leaves.enumerated() {
                if i >= Self.mostAtOnce, let (j, device) = try await group.next() { devices[j] = device }
                group.addTask { (i, try await self.judge(leaf)) }
            }
            for try await (i, device) in group { devices[i] = device }
            return leaves.indices.compactMap { devices[$0] }
        }
    }

    private func judge(_ leaf: Leaf) async throws -> Device {
        let before = try await device(leaf)
        if try await isOwn(leaf) { return before }
        let age = before.askedAt.map { surroundings.now().timeIntervalSince($0) } ?? .infinity
        switch before.state {
        case .accepted: return before
        case .listed where age < Self.freshFor: return before
        case .unlisted where age < Self.askAgainAfter: return before
        default: break
        }
        if let running = asking[before.name] { return try await running.value }
        let task = Task { try await self.ask(before) }
        asking[before.name] = task
        defer { asking[before.name] = nil }
        return try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() }
    }

    private func ask(_ device: Device) async throws -> Device {
        var asked = device
        do {
            asked.state = try await accounts.lists(device.key, of: device.account) ? .listed : .unlisted
        } catch is AccountAway {
            away.insert(device.name)
            return device
        }
        asked.askedAt = surroundings.now()
        let now = try await records.read(Device.self, device.name)
        if let now, now.state == .accepted, asked.state == .unlisted { return now }
        if let now, now.askedAt == nil, device.askedAt != nil { return try await ask(now) } // the question was older
        try await records.write([asked.name: encoded(asked)])
        return asked
    }

    /// Forgets how fresh the answer about a device is, which has entered a group by itself: its key can be stolen, and
    /// its record gone. Its account is asked before the next message. While that is away, a listed device stays so.
    func askAgain(_ leaf: Leaf, _ changes: inout Changes) async throws {
        var old = try await device(leaf)
        guard old.state == .listed, try await !isOwn(leaf) else { return }
        old.askedAt = nil
        away.remove(old.name)
        changes[old.name] = try encoded(old)
    }

    private func mustBeAsked(_ device: Device, _ leaf: Leaf) async throws -> Bool {
        guard device.state == .listed, device.askedAt == nil, !away.contains(device.name) else { return false }
        return try await !isOwn(leaf)
    }

    /// The devices of a convo's group for which nothing may be encrypted. If this device was removed, MLS says so.
    func unknown(in thread: Thread) async throws -> [Device] {
        guard thread.left != true, let members = try await presentMembers(of: thread) else { return [] }
        var unknown: [Device] = []
        for leaf in members {
            let device = try await device(leaf)
            var isUnknown = !device.isKnown || thread.uninvited?.contains(device.account) == true
            if !isUnknown { isUnknown = try await mustBeAsked(device, leaf) }
            if isUnknown { unknown.append(device) }
        }
        return unknown
    }

    /// The members of a convo's group, if this device is one.
    func presentMembers(of thread: Thread) async throws -> [Leaf]? {
        let (members, own) = try await (mls.members(of: thread.groupId), mls.signatureKey)
        return members?.contains { $0.signatureKey == own } == true ? members : nil
    }

    // MARK: Who is in a group

    /// A group has other members: judges them, and again until all are known or gone.
    func changed(_ convo: String) {
        clear.remove(convo)
        versions[convo, default: 0] += 1
        watchLater(convo)
    }

    /// Judges a group until all are known or gone, unless that is under way.
    func watchLater(_ convo: String) {
        let version = versioned(convo)
        if watching.insert(version).inserted { later { try await $0.watch(convo, version) } }
    }

    /// Names a version of a convo's group: what was judged of one before is old.
    private func versioned(_ convo: String) -> String { "\(convo) \(versions[convo] ?? 0)" }

    /// Judges one version of a group. The next one has a watch of its own.
    private func watch(_ convo: String, _ version: String) async throws {
        defer { watching.remove(version) }
        var attempts = 0
        while version == versioned(convo), try await !settle(convo).isEmpty {
            try await surroundings.sleep(surroundings.backoff(after: attempts, CancellationError()))
            attempts += 1
        }
    }

    /// Judges a group's devices, unless they are known.
    func settled(_ convo: String) async throws {
        if !clear.contains(convo) { _ = try await settle(convo) }
    }

    /// Asks about the devices of a convo's group that are not known, and does what follows. It returns those that
    /// stay unknown.
    @discardableResult
    func settle(_ convo: String) async throws -> [Device] {
        let version = versioned(convo)
        if let running = settling[version] { return try await running.value }
        let task = Task { try await self.settleOnce(convo, version) }
        settling[version] = task
        return try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() }
    }

    private func settleOnce(_ convo: String, _ version: String) async throws -> [Device] {
        defer { settling[version] = nil } // before anybody sees its end
        return try await settleNow(convo, version)
    }

    private func settleNow(_ convo: String, _ version: String) async throws -> [Device] {
        guard let thread = try await records.read(Thread.self, Thread.prefix + convo) else { return [] }
        _ = try await judge(records.list(Withheld.self, Withheld.folder(convo)).map(\.leaf)) // also of who has gone since
        guard thread.left != true, let members = try await presentMembers(of: thread) else {
            try await release(convo)
            return []
        }
        try await removeLeavers(members, thread)
        var before: [Device] = []
        for leaf in members { before.append(try await device(leaf)) }
        let after = try await judge(members)
        let changed = zip(before, after).compactMap { $0.state == $1.state ? nil : $1 }
        for device in changed where device.state != .accepted { try await tellOnce(.init(rawValue: device.state.rawValue), device, convo) }
        var unknown: [Device] = []
        for device in try await self.unknown(in: thread) {
            let leaf = members.first { $0.account == device.account && $0.signatureKey == device.key }
            if let leaf, try await !settle(device, leaf, thread) { unknown.append(device) }
        }
        try await release(convo)
        if unknown.isEmpty, version == versioned(convo) { clear.insert(convo) }
        if unknown.isEmpty || !changed.isEmpty { await outbox.retry(lane: convo) }
        return unknown
    }

    /// Asks the app about a device, and takes it out of the group if its account says so. It returns whether the device
    /// is known now.
    private func settle(_ device: Device, _ leaf: Leaf, _ thread: Thread) async throws -> Bool {
        let why: Doubt.Why = device.isKnown ? .uninvited : device.state == .unlisted ? .unlisted : .waiting
        if why != .unlisted { try await tellOnce(.init(rawValue: why.rawValue), device, thread.convoId) }
        if await decide(Doubt(convoId: thread.convoId, account: device.account, key: device.key, why: why)) {
            var accepted = device
            if !device.isKnown { accepted.state = .accepted }
            try await records.write([accepted.name: encoded(accepted)])
            try await change(thread.convoId) { $0.uninvited?.removeAll { $0 == device.account } }
            return true
        }
        if why == .unlisted, thread.resetTo == nil { removeLater(leaf, from: thread.convoId) }
        return false
    }

    /// Takes a device out of a group, once in a life of the messenger and version of the group. The service lets its
    /// own person do it, whoever may remove people, and everybody if it has proposed that itself.
    func removeLater(_ leaf: Leaf, from convo: String) {
        guard removing.insert(versioned(convo) + "/" + hexadecimal(leaf.signatureKey)).inserted else { return }
        later { _ = try await $0.commit(Plan(removeDevice: leaf).unasked, convo) }
    }

    /// Forgets refused removals that the app has not asked for, also those of before a kill: it would not know what they
    /// are.
    func dismissUnasked(_ refused: [Write]) async throws {
        let unasked = refused.filter { $0.isCommit && ((try? JSONDecoder().decode(Plan.self, from: $0.note))?.isUnasked == true || isEntry($0)) }
        if !unasked.isEmpty { try await outbox.dismiss(unasked.map(\.id)) }
    }

    /// Changes what is stored of a convo.
    func change(_ convo: String, _ change: @Sendable (inout Thread) -> Void) async throws {
        try await turn.take {
            guard var thread = try await self.records.read(Thread.self, Thread.prefix + convo) else { return }
            let before = thread
            change(&thread)
            if thread != before { try await self.records.write([thread.name: encoded(thread)]) }
        }
    }

    private func tellOnce(_ change: DeviceNews.Change?, _ device: Device, _ convo: String) async throws {
        guard let change, told.insert([convo, change.rawValue, device.name].joined(separator: " ")).inserted else { return }
        try await write([:], telling: [.device(DeviceNews(convoId: convo, change: change, account: device.account, key: device.key))])
    }

    /// Gives the app the messages of devices that are known by now.
    private func release(_ convo: String) async throws {
        if await records.names(Withheld.folder(convo)).isEmpty { return }
        try await turn.take {
            guard let thread = try await self.records.read(Thread.self, Thread.prefix + convo) else { return }
            var (changes, events): (Changes, [MessengerEvent]) = ([:], [])
            for withheld in try await self.records.list(Withheld.self, Withheld.folder(convo)) where try await self.mayShow(withheld.leaf, thread) {
                var entry = withheld.entry
                entry.content = try await self.hear(entry.content, in: convo, entry.seq, by: entry.sender, &changes, &events)
                changes[entry.name] = try encoded(entry)
                changes[withheld.name] = .some(nil)
            }
            if changes.isEmpty { return }
            try await self.records.write(changes)
            await self.tell(.received(convoId: convo))
            for event in events { await self.tell(event) }
        }
    }

    /// Whether a device's messages may be shown.
    func mayShow(_ leaf: Leaf, _ thread: Thread) async throws -> Bool {
        try await device(leaf).isKnown && thread.uninvited?.contains(leaf.account) != true
    }

    // MARK: What MLS shows

    /// What a commit has changed of a group's members: the thread notes who is new, and the app hears of it.
    func note(_ change: CommitChange, _ thread: inout Thread) async throws -> [News.Content] {
        if !change.added.isEmpty { thread.silent = (thread.silent ?? []) + change.added }
        let convo = thread.convoId
        let devices = change.devices.map { one in
            let what: DeviceNews.Change = switch one.change { case .entered: .entered case .left: .left case .keyChanged: .keyChanged }
            return News.Content.device(DeviceNews(convoId: convo, change: what, account: one.device.account, key: one.device.key))
        }
        return try await devices + strand(change, &thread)
    }
}
