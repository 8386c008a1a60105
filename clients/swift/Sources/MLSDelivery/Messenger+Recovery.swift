import Foundation

/// How far the recovery after a loss goes: docs/RECOVERY.md.
public enum RecoveryPhase: Int, Comparable, CaseIterable, Sendable {
    /// Send again what belongs to the epoch that the server is in.
    case messages
    /// Also the commit that ends this epoch.
    case commits
    /// Do not wait for lost commits any more: a device that is ahead enters the group again.
    case enterAgain
    /// Encrypt again what no longer fits.
    case writeAnew

    public static func < (a: Self, b: Self) -> Bool { a.rawValue < b.rawValue }

    /// Seconds after the log has stopped growing. Devices enter again at random times.
    func wait(_ random: Double) -> Double {
        switch self {
        case .messages: 0
        case .commits: 10
        case .enterAgain: 600 + 300 * random
        case .writeAnew: 300
        }
    }
}

extension Messenger {
    /// What one step of the recovery did.
    struct Regained: Equatable {
        var progress = false
        /// Whether it waits for other devices, or for a later phase.
        var waiting = false
    }

    /// Makes good what the server has lost of a convo, and then lets its lane go on. It takes up to 20
    /// minutes if other devices' commits are lost, and otherwise seconds.
    public func makeGood(_ convo: String) async throws {
        if let running = recovering[convo] { return try await running.value }
        let task = Task { try await self.goThroughPhases(convo) }
        recovering[convo] = task
        defer { recovering[convo] = nil }
        try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() }
    }

    private func goThroughPhases(_ convo: String) async throws {
        do { try await makeGoodInPhases(convo) } catch {
            if !(error is CancellationError) { await outbox.recovered(convo) }
            throw error
        }
        await outbox.recovered(convo)
    }

    private func makeGoodInPhases(_ convo: String) async throws {
        if try await services.of(convo) == nil { try await makeGoodPackages() } // they are at the home
        for phase in RecoveryPhase.allCases {
            let random = surroundings.random()
            var step = Regained()
            repeat {
                if phase > .messages { try await surroundings.sleep(phase.wait(random)) }
                step = try await makeGood(convo, phase)
            } while step.progress && step.waiting
            if !step.waiting { break }
        }
    }

    /// One step. The log is read before and after it.
    func makeGood(_ convo: String, _ phase: RecoveryPhase) async throws -> Regained {
        var step = Regained()
        // What is accepted from here on is not lost, although the log was perhaps read before it.
        let kept = await outbox.keptWrites(lane: convo)
        do {
            try await readToItsEnd(convo)
            try await resend(convo, lostWrites(convo, among: kept), phase, &step)
            try await readToItsEnd(convo)
        } catch MessengerError.forked {
            guard phase >= .enterAgain else { return Regained(progress: false, waiting: true) }
            try await rejoin(convo)
            step.progress = true
            try await readToItsEnd(convo)
        } catch let error as ServiceError where error.name == .convoNotFound {
            return Regained(progress: false, waiting: phase < .enterAgain)
        }
        if try await isAhead(convo) {
            guard phase >= .enterAgain, !step.progress else { return Regained(progress: step.progress, waiting: true) }
            try await rejoin(convo)
            step.progress = true
            try await readToItsEnd(convo)
        }
        if phase >= .enterAgain { try await makeAnew(convo, lostWrites(convo, among: kept), phase, &step) }
        return step
    }

    /// Publications of the last days again: what the service has is a duplicate. A commit that comes back needs
    /// the KeyPackages that it used.
    private func makeGoodPackages() async throws {
        for write in await outbox.keptWrites(lane: Self.packagesLane) { _ = try await resendPatiently(write) }
    }

    /// Whether the device's group has left the epoch that the server is in.
    private func isAhead(_ convo: String) async throws -> Bool {
        let server = try await ask(GetEpoch.self, .init(convoId: convo)).currentEpoch
        let own = try await mls.epoch(of: thread(convo).groupId) ?? 0
        return own > server
    }

    /// Those of the kept writes that the log, which has been read to its end, does not have: the device has
    /// never read them there, or has read them before the loss.
    func lostWrites(_ convo: String, among kept: [Write]) async throws -> [Write] {
        guard let thread = try await records.read(Thread.self, Thread.prefix + convo) else { return [] }
        var lost: [Write] = []
        for write in kept where write.retires == nil {
            guard let digest = write.digest, await outbox[write.id] != nil else { continue }
            if !thread.rewound, let epoch = write.epoch, epoch < thread.entered { continue } // not its log then
            let unread = await records.data(Name.own(digest)) != nil
            let loose = await records.data(Name.loose(convo, digest)) != nil
            if unread || loose { lost.append(write) }
        }
        return lost
    }

    private func resend(_ convo: String, _ lost: [Write], _ phase: RecoveryPhase, _ step: inout Regained) async throws {
        if lost.isEmpty { return }
        var epoch = try await ask(GetEpoch.self, .init(convoId: convo)).currentEpoch
        var commits = phase >= .commits
        for write in lost {
            guard !write.forked, write.epoch == epoch, !write.isCommit || commits else {
                step.waiting = true
                continue
            }
            guard try await resendPatiently(write) == nil else {
                step.waiting = true
                continue
            }
            step.progress = true
            if write.isCommit {
                epoch += 1
                commits = false // others can have messages of the epoch that it creates
            }
        }
    }

    private func resendPatiently(_ write: Write) async throws -> ServiceError? {
        try await patiently { _ in try await self.outbox.resend(write) }
    }

    /// Encrypts the lost messages again, and makes lost additions again. Other lost commits only changed keys,
    /// or are made by any member.
    private func makeAnew(_ convo: String, _ lost: [Write], _ phase: RecoveryPhase, _ step: inout Regained) async throws {
        step.waiting = false
        for write in lost {
            let digest = write.digest ?? Data()
            if write.isCommit {
                let plan = write.nsid == AddMembers.nsid ? try JSONDecoder().decode(Plan.self, from: write.note) : Plan()
                try await addAnew(plan.add, convo)
                try await outbox.dismiss([write.id])
                step.progress = true
            } else if phase < .writeAnew {
                step.waiting = true
            } else {
                try await turn.take {
                    let draft = try await self.draftAnew(write, orWait: true)
                    var changes = try await self.changes(for: draft)
                    changes[Name.own(digest)] = .some(nil)
                    changes[Name.loose(convo, digest)] = .some(nil)
                    try await self.outbox.sendAnew(write, draft, with: changes)
                }
                step.progress = true
            }
        }
    }

    private func addAnew(_ members: [DID], _ convo: String) async throws {
        let roster = try await ask(GetConvo.self, .init(convoId: convo)).convo.members.map(\.did)
        let gone = members.filter { !roster.contains($0) }
        if gone.isEmpty { return }
        try await withClaim(gone, convo: convo) { claimed in
            let missing = try await lacking(gone, claimed)
            _ = try await commit(Plan(add: gone.filter(claimed.people.contains), claimed), convo, recovering: true, missing: missing)
            note(missing, in: convo)
        }
    }
}
