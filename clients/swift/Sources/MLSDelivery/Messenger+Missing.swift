import Foundation

/// Somebody who could not be added to a convo yet: a person without KeyPackages, or one device of a person.
public struct Missing: Codable, Hashable, Sendable {
    public var convoId: String
    public var account: DID
    /// The signature key of a device whose person is in the convo. A device enters by itself once it is in use again.
    public var key: Data?

    static let prefix = "missing/"
    static func folder(_ convo: String) -> String { prefix + convo + "/" }
    var name: String { Self.folder(convoId) + account.rawValue + (key.map { "/" + hexadecimal($0) } ?? "") }
}

/// Somebody who is missing, and when they were asked for last.
private struct SavedMissing: Codable {
    var missing: Missing
    var triedAt: Date
    var attempts = 0

    /// In seconds: the first wait, which doubles, and the longest one.
    private static let waits = (first: 600.0, most: 86400.0)
    var dueAt: Date { triedAt + min(Self.waits.first * pow(2, Double(min(attempts, 10))), Self.waits.most) }
}

/// KeyPackages of a person that were claimed, until a write with them is accepted. What a failed attempt has claimed is
/// used by the next one: each claim takes from the other person's stock.
struct KeptClaim: Codable {
    var account: DID
    /// Where they were claimed.
    var service: DID?
    var packages: [Data]
    /// Of a home that is not the convo's service.
    var receipts: [String]?
    var at: Date
    /// The write that uses them: the group that it makes, or the id of its plan.
    var usedBy: String?

    /// In seconds. The service ends a claim after half an hour: docs/KEYPACKAGES.md.
    private static let lifetime: TimeInterval = 25 * 60
    static let prefix = "claimed/"
    var name: String { Self.prefix + account.rawValue + "/" + (service?.rawValue ?? "") }
    func isFresh(_ now: Date) -> Bool { abs(now.timeIntervalSince(at)) < Self.lifetime }
}

/// Who can be added is added. The others are named, and are added later.
extension Messenger {
    /// The people and devices that could not be added to a convo yet. People are invited by themselves once they have
    /// KeyPackages, as long as the messenger runs; devices enter by themselves. Errors: `unknownConvo`.
    public func missing(_ convo: String) async throws -> [Missing] {
        let thread = try await thread(convo)
        let members = try await mls.members(of: thread.groupId) ?? []
        return try await records.list(SavedMissing.self, Missing.folder(convo)).map(\.missing).filter { !$0.isIn(members) }
    }

    /// Who was asked for and is not among the claimed KeyPackages. Their convo is not set.
    func lacking(_ people: [DID], _ claimed: Claimed) async throws -> [Missing] {
        var missing = people.filter { !claimed.people.contains($0) }.map { Missing(convoId: "", account: $0) }
        var leaves: [Leaf] = []
        for package in claimed.packages { leaves.append(try await mls.leaf(ofKeyPackage: package)) }
        for person in claimed.people where person != account {
            let listed: [Data]
            do { listed = try await accounts.keys(of: person) } catch is AccountAway { continue } // nobody can say which devices there are
            for key in listed where !leaves.contains(where: { $0.signatureKey == key }) {
                missing.append(Missing(convoId: "", account: person, key: key))
            }
        }
        return missing
    }

    /// What is stored of who is missing in a convo, or in the group of one that is being made.
    func stored(_ missing: [Missing], in convo: String) throws -> Changes {
        var changes: Changes = [:]
        for var one in missing {
            one.convoId = convo
            changes[one.name] = try encoded(SavedMissing(missing: one, triedAt: surroundings.now()))
        }
        return changes
    }

    /// The convo of a group was made: who is missing in it is known by its id now.
    func missing(inGroup group: String, of convo: String) async throws -> (changes: Changes, missing: [Missing]) {
        var (changes, all): (Changes, [Missing]) = ([:], [])
        for var saved in try await records.list(SavedMissing.self, Missing.folder(group)) {
            changes[saved.missing.name] = .some(nil)
            saved.missing.convoId = convo
            changes[saved.missing.name] = try encoded(saved)
            all.append(saved.missing)
        }
        return (changes, all)
    }

    /// Tells the app who is missing in a convo, and invites them later.
    func note(_ missing: [Missing], in convo: String) {
        for var one in missing {
            one.convoId = convo
            tell(.missing(one))
        }
        if !missing.isEmpty { inviteLater() }
    }

    /// Goes on with who is missing, also in the next life.
    func inviteLater() {
        guard !inviting else { return }
        inviting = true
        later { try await $0.inviteAll() }
    }

    private func inviteAll() async throws {
        defer { inviting = false }
        while let next = try await nextMissing() {
            let wait = next.dueAt.timeIntervalSince(surroundings.now())
            if wait > 0 { try await surroundings.sleep(wait) }
            do { try await invite(next) } catch let error as ServiceError where RetryRule.verdict(on: error) != .again {} // the next attempt
        }
    }

    /// Who is asked for next, of the people who are missing in convos that this device is in.
    private func nextMissing() async throws -> SavedMissing? {
        var people: [SavedMissing] = []
        for saved in try await records.list(SavedMissing.self, Missing.prefix) {
            guard let thread = try await records.read(Thread.self, Thread.prefix + saved.missing.convoId) else { continue } // not made yet
            let members = try await mls.members(of: thread.groupId) ?? []
            if thread.left == true || thread.resetTo != nil || saved.missing.isIn(members) {
                try await records.write([saved.missing.name: nil])
            } else if saved.missing.key == nil {
                people.append(saved)
            }
        }
        return people.min { $0.dueAt < $1.dueAt }
    }

    private func invite(_ saved: SavedMissing) async throws {
        var tried = saved
        (tried.triedAt, tried.attempts) = (surroundings.now(), saved.attempts + 1)
        try await records.write([tried.missing.name: encoded(tried)])
        let (convo, person) = (saved.missing.convoId, saved.missing.account)
        let made: Write?
        do {
            made = try await withClaim([person], convo: convo) { try await commit(Plan(add: [person], $0), convo) }
        } catch MessengerError.noKeyPackage { return }
        guard let write = made else { return }
        if case .refused(let error) = try await outbox.finished(write.id).state {
            try await outbox.dismiss([write.id]) // the app has not asked for it
            if error.name != .alreadyMember { return }
        }
        try await records.write([saved.missing.name: nil])
    }

    // MARK: Claims

    /// Claims KeyPackages for a write, which `use` makes. If it throws, the next attempt uses them.
    func withClaim<Made: Sendable>(_ members: [DID], convo: String?, all: Bool = true, use: (Claimed) async throws -> Made) async throws -> Made {
        var claimed = Claimed()
        defer { claiming.subtract(claimed.names) }
        try await claim(members, convo, all, &claimed)
        if all, let first = members.first, claimed.people.isEmpty { throw MessengerError.noKeyPackage(first) }
        return try await use(claimed)
    }

    /// The KeyPackages of people that an attempt has claimed, and that no write uses.
    func kept(_ people: [DID], at home: DID?, withReceipts: Bool) async throws -> [KeptClaim] {
        let now = surroundings.now()
        return try await records.list(KeptClaim.self, KeptClaim.prefix).filter {
            let fits = people.contains($0.account) && $0.service == home && ($0.receipts != nil) == withReceipts
            return fits && $0.usedBy == nil && $0.isFresh(now) && !claiming.contains($0.name)
        }
    }

    /// Keeps what was claimed until it is used, and forgets what has ended.
    func keep(_ packages: [(package: Data, account: DID)], _ found: [Defs.KeyPackageRef], at home: DID?, withReceipts: Bool) async throws -> [KeptClaim] {
        let now = surroundings.now()
        var changes: Changes = [:]
        for old in try await records.list(KeptClaim.self, KeptClaim.prefix) where !old.isFresh(now) { changes[old.name] = .some(nil) }
        var all: [KeptClaim] = []
        for person in Set(packages.map(\.account)) {
            let receipts = found.filter { $0.did == person }.compactMap(\.receipt)
            let own = packages.filter { $0.account == person }.map(\.package)
            let kept = KeptClaim(account: person, service: home, packages: own, receipts: withReceipts ? receipts : nil, at: now)
            changes[kept.name] = try encoded(kept)
            all.append(kept)
        }
        if !changes.isEmpty { try await records.write(changes) }
        return all
    }

    /// What is stored with a write that uses KeyPackages: no other one uses them.
    func using(_ packages: [Data], by user: String) async throws -> Changes {
        var changes: Changes = [:]
        for var kept in try await records.list(KeptClaim.self, KeptClaim.prefix) where !kept.packages.filter(packages.contains).isEmpty {
            kept.usedBy = user
            changes[kept.name] = try encoded(kept)
        }
        return changes
    }

    /// The write is accepted, or refused: then the next attempt uses what it had, unless the service has not liked it.
    func release(claimsOf write: Write, because error: ServiceError? = nil) async throws {
        guard let user = user(of: write) else { return }
        var changes: Changes = [:]
        for var kept in try await records.list(KeptClaim.self, KeptClaim.prefix) where kept.usedBy == user {
            kept.usedBy = nil
            changes[kept.name] = error == nil || error?.status == 400 ? .some(nil) : try encoded(kept)
        }
        if error != nil, write.nsid == CreateConvo.nsid {
            for name in await records.names(Missing.folder(user)) { changes[name] = .some(nil) }
        }
        if !changes.isEmpty { try await records.write(changes) }
    }

    /// A write of the app's own has a note of the app's own, and no claims.
    private func user(of write: Write) -> String? {
        switch write.nsid {
        case CreateConvo.nsid, ResetConvo.nsid: hexadecimal(write.note)
        case AddMembers.nsid: (try? JSONDecoder().decode(Plan.self, from: write.note))?.id
        default: nil
        }
    }
}

extension Missing {
    fileprivate func isIn(_ members: [Leaf]) -> Bool { members.contains { $0.account == account && (key == nil || $0.signatureKey == key) } }
}
