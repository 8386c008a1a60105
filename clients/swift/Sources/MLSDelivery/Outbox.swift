import Foundation

/// Who makes the writes, and what becomes of them.
public protocol Author: Sendable {
    /// The epoch of the write is over, or its branch of the group (then there is no error). Bring
    /// the group up to date, and make the write anew in the present epoch under a new key. A
    /// ``ServiceError`` counts as the answer to the write; any other error is taken for a passing
    /// one.
    func rewrite(_ write: Write, because error: ServiceError?) async throws -> Rewrite
    /// The write was accepted: a commit is applied now. Only then is the answer stored, so after a kill it
    /// is called again for the same write.
    func accepted(_ write: Write, answer: Data) async throws
    /// The write was refused for good: a staged commit is discarded now. As `accepted`.
    func refused(_ write: Write, because error: ServiceError) async throws
}

/// What is sent in the place of a write.
public enum Rewrite: Sendable {
    case anew(Draft)
    /// The same bytes: they are in the log, and their answer is still to be had.
    case asItIs
    /// Nothing: the write is refused, with this reason.
    case never(String)
}

/// What happens in an outbox.
public enum OutboxEvent: Sendable, Hashable {
    case accepted(Write)
    case refused(Write)
    /// The lane waits for a time, because of the last attempt's outcome.
    case waiting(lane: String, until: Date, Verdict)
    /// The lane waits for `resume`.
    case held(lane: String, Verdict, ServiceError)
    /// The storage failed: nothing is sent until the app has been started again.
    case storageFailed(String)
}

/// Writes that must take effect exactly once.
///
/// A write is in the storage, with its key and its bytes, before the first attempt. Each attempt sends
/// the same bytes, until the service says what became of them: ``RetryRule``. The writes of a lane
/// take effect in their order. Accepted writes are kept for a while, in case that the server loses
/// them.
public actor Outbox {
    /// How many accepted writes are kept, and how long, in seconds: docs/RECOVERY.md.
    public static let keptWrites = 200
    public static let keptFor: TimeInterval = 7 * 24 * 3600
    /// A quota begins anew within so many seconds.
    private static let longestQuota: TimeInterval = 24 * 3600

    private struct Lane {
        var worker: Task<Void, Never>?
        var sleep: Task<Void, any Error>?
        /// Whether it waits because there was no answer.
        var isUnanswered = false
        var held: Verdict?
        /// Writes up to this id have been through a recovery: what the service says of them now is
        /// final.
        var recovered = 0
        /// Whether the worker stays away, because its write is discarded now.
        var paused = false
    }

    private let service: Service
    private let storage: any Storage
    private let author: any Author
    private let surroundings: Surroundings
    private var writes: [Int: Write] = [:]
    private var queues: [String: [Int]] = [:] // ids of pending writes, by lane
    private var lanes: [String: Lane] = [:]
    private var stored: Set<Int> = [] // ids of writes that are in the storage: no other one is sent
    private var kept: [Int] = [] // ids of accepted writes, ascending: the device's clock can be set back
    private var nextID = 1
    private var running = false
    private var listeners: [UUID: AsyncStream<OutboxEvent>.Continuation] = [:]

    /// `values` is what the storage has loaded.
    public init(
        service: Service, storage: any Storage, values: [String: Data], author: any Author, surroundings: Surroundings = .init()
    ) throws {
        (self.service, self.storage, self.author, self.surroundings) = (service, storage, author, surroundings)
        for (name, value) in values where name.hasPrefix(Write.prefix) {
            let write = try JSONDecoder().decode(Write.self, from: value)
            writes[write.id] = write
            stored.insert(write.id)
            nextID = max(nextID, write.id + 1)
            switch write.state {
            case .pending: queues[write.lane, default: []].append(write.id)
            case .accepted: kept.append(write.id)
            case .refused: break
            }
        }
        for lane in queues.keys { queues[lane] = Self.sorted(queues[lane] ?? [], writes) }
        kept.sort()
    }

    /// What happens from now on.
    public func events() -> AsyncStream<OutboxEvent> {
        let (stream, continuation) = AsyncStream<OutboxEvent>.makeStream()
        let id = UUID()
        listeners[id] = continuation
        continuation.onTermination = { [weak self] _ in Task { await self?.forgetListener(id) } }
        return stream
    }

    private func forgetListener(_ id: UUID) { listeners[id] = nil }

    private func tell(_ event: OutboxEvent) {
        for listener in listeners.values { listener.yield(event) }
    }

    /// Stores a write, in one step with other changes: those of the MLS state that made it. When it has
    /// returned, neither a lost answer nor a killed app can lead to a second ciphertext of the same text.
    @discardableResult
    public func add(_ draft: Draft, with changes: Changes = [:]) async throws -> Write {
        let write = Write(id: nextID, draft)
        nextID += 1
        var all = changes
        all[write.name] = try encoded(write)
        writes[write.id] = write // its place in the lane is that of the call
        queues[write.lane, default: []].append(write.id)
        sort(write.lane)
        do { try await storage.write(all) } catch {
            queues[write.lane]?.removeAll { $0 == write.id }
            writes[write.id] = nil
            throw error
        }
        stored.insert(write.id)
        if write.ahead == true { retry(lane: write.lane) }
        wake(write.lane)
        return write
    }

    /// In the order of the calls, behind those that pass the others.
    private static func sorted(_ ids: [Int], _ writes: [Int: Write]) -> [Int] {
        ids.sorted { (writes[$0]?.ahead == true ? 0 : 1, $0) < (writes[$1]?.ahead == true ? 0 : 1, $1) }
    }

    private func sort(_ lane: String) { queues[lane] = Self.sorted(queues[lane] ?? [], writes) }

    // MARK: Running

    /// Sends what is pending, and what comes, until `stop`.
    public func start() {
        running = true
        for lane in queues.keys { wake(lane) }
    }

    /// Ends all attempts, and waits until they have ended. What is pending stays in the storage.
    public func stop() async {
        running = false
        let workers = lanes.values.compactMap(\.worker)
        for worker in workers { worker.cancel() }
        for worker in workers { await worker.value }
    }

    /// Ends the waits for a passing failure: the network is back. Waits that the service asked for end too,
    /// so it is not for a timer.
    public func retryNow() {
        for lane in lanes.values { lane.sleep?.cancel() }
    }

    /// Ends the waits of lanes whose last attempt got no answer.
    func retryUnanswered() {
        for lane in lanes.values where lane.isUnanswered { lane.sleep?.cancel() }
    }

    /// Ends the wait of a lane: what it waited for has perhaps come.
    func retry(lane: String) { lanes[lane]?.sleep?.cancel() }

    /// Goes on with the lanes that are held: with all, or with one.
    public func resume(lane: String? = nil) {
        for name in lane.map({ [$0] }) ?? Array(lanes.keys) {
            lanes[name]?.held = nil
            wake(name)
        }
    }

    /// Goes on with a lane whose losses were made good, as far as they can be.
    func recovered(_ lane: String) {
        if lanes[lane]?.held == .recover { lanes[lane]?.recovered = nextID - 1 }
        resume(lane: lane)
    }

    private func wake(_ lane: String) {
        guard running, lanes[lane]?.worker == nil, lanes[lane]?.held == nil, lanes[lane]?.paused != true, next(lane) != nil else { return }
        lanes[lane, default: Lane()].worker = Task { await self.drain(lane) }
    }

    private func next(_ lane: String) -> Write? {
        guard let id = queues[lane]?.first, let write = writes[id] else { return nil }
        return stored.contains(id) ? write : nil
    }

    /// Sends the lane's writes one after the other.
    private func drain(_ lane: String) async {
        var attempts = 0
        while !Task.isCancelled, running, lanes[lane]?.held == nil, let write = next(lane) {
            do {
                if write.forked || write.unsealed == true {
                    attempts = try await makeAnew(write, because: nil, attempts: attempts) ? attempts + 1 : 0
                    continue
                }
                let answer = try await service.post(write.nsid, body: write.body, checked: procedures[write.nsid])
                try await accept(write, answer)
                attempts = 0
            } catch let error as StorageFailure where !(error.cause is CancellationError) {
                lanes[lane]?.held = .hold
                tell(.storageFailed(String(describing: error.cause)))
            } catch {
                if await handle(error, of: write, attempts: attempts) { attempts += 1 } else { attempts = 0 }
            }
        }
        lanes[lane]?.worker = nil
    }

    /// Follows the retry table. It returns whether the same write is tried again.
    private func handle(_ error: any Error, of write: Write, attempts: Int) async -> Bool {
        let answer = error as? ServiceError ?? ServiceError(status: 0, name: ErrorName(rawValue: ""), message: "\(error)")
        do {
            switch RetryRule.verdict(on: error) {
            case .again:
                await wait(write.lane, surroundings.backoff(after: attempts, error), .again, isUnanswered: error is NoAnswer)
                return true
            case .atReset:
                let reset = answer.resetsAt.map { $0.timeIntervalSince(surroundings.now()) } ?? 0
                await wait(write.lane, max(min(reset, Self.longestQuota), surroundings.backoff(after: attempts, error)), .atReset)
                return true
            case .newEpoch:
                return try await makeAnew(write, because: answer, attempts: attempts)
            case .recover where write.id <= lanes[write.lane]?.recovered ?? 0, .refuse:
                try await refuse(write, because: answer)
            case let verdict:
                lanes[write.lane]?.held = verdict
                tell(.held(lane: write.lane, verdict, answer))
            }
        } catch {
            lanes[write.lane]?.held = .hold
            tell(.storageFailed(String(describing: (error as? StorageFailure)?.cause ?? error)))
        }
        return false
    }

    private func wait(_ lane: String, _ seconds: Double, _ verdict: Verdict, isUnanswered: Bool = false) async {
        tell(.waiting(lane: lane, until: surroundings.now().addingTimeInterval(seconds), verdict))
        let sleep = Task { [surroundings] in try await surroundings.sleep(seconds) }
        lanes[lane]?.sleep = sleep
        lanes[lane]?.isUnanswered = isUnanswered
        await withTaskCancellationHandler { _ = await sleep.result } onCancel: { sleep.cancel() }
        lanes[lane]?.sleep = nil
    }

    /// It returns whether the same write is tried again.
    private func makeAnew(_ write: Write, because error: ServiceError?, attempts: Int) async throws -> Bool {
        let rewrite: Rewrite
        do { rewrite = try await author.rewrite(write, because: error) } catch let error as ServiceError {
            return await handle(error, of: write, attempts: attempts)
        } catch {
            await wait(write.lane, surroundings.backoff(after: attempts, error), .again)
            return true
        }
        var next = write
        next.forked = false
        switch rewrite {
        case .anew(let draft):
            next = Write(id: write.id, draft)
            (next.lane, next.ahead) = (write.lane, write.ahead)
            try await orStorageFailure { try await store(next) }
        case .asItIs: try await orStorageFailure { try await store(next) }
        case .never(let reason):
            let refusal = ServiceError(status: error?.status ?? 0, name: error?.name ?? ErrorName(rawValue: ""), message: reason)
            try await orStorageFailure { try await refuse(write, because: refusal) }
        }
        return false
    }

    private func orStorageFailure(_ work: () async throws -> Void) async throws {
        do { try await work() } catch { throw StorageFailure(cause: error) }
    }

    // MARK: Outcomes

    /// Wraps an error of the storage, or of the author, which must not be taken for one of the service.
    private struct StorageFailure: Error { var cause: any Error }

    private func accept(_ write: Write, _ answer: Data) async throws {
        do {
            try await author.accepted(write, answer: answer)
            var done = write
            done.state = .accepted(answer, at: surroundings.now())
            try await store(done, with: outdated())
            tell(.accepted(done))
        } catch { throw StorageFailure(cause: error) }
    }

    private func refuse(_ write: Write, because error: ServiceError) async throws {
        try await author.refused(write, because: error)
        var done = write
        done.state = .refused(error)
        try await store(done)
        tell(.refused(done))
    }

    /// The removal of accepted writes that need not be kept any more.
    private func outdated() -> Changes {
        var changes: Changes = [:]
        let oldest = surroundings.now().addingTimeInterval(-Self.keptFor)
        while let id = kept.first, case .accepted(_, let at)? = writes[id]?.state, kept.count >= Self.keptWrites || at < oldest {
            changes[Write.name(id)] = .some(nil)
            writes[id] = nil
            kept.removeFirst()
        }
        return changes
    }

    /// Stores a new form of a write, and puts it where its state belongs.
    private func store(_ write: Write, with changes: Changes = [:]) async throws {
        var changes = changes
        changes[write.name] = try encoded(write)
        try await storage.write(changes)
        writes[write.id] = write
        stored.insert(write.id)
        kept.removeAll { $0 == write.id }
        if case .pending = write.state {
            if queues[write.lane]?.contains(write.id) != true {
                queues[write.lane, default: []].append(write.id)
                sort(write.lane)
            }
            return
        }
        queues[write.lane]?.removeAll { $0 == write.id }
        if case .accepted = write.state {
            kept.append(write.id)
            kept.sort()
        }
    }

    // MARK: What there is

    /// Writes without a final answer, in the order in which they will be sent.
    public var pending: [Write] { queues.keys.sorted().flatMap { queues[$0] ?? [] }.compactMap { writes[$0] } }

    /// Writes that were refused, until `dismiss`.
    public var refused: [Write] {
        writes.values.filter { if case .refused = $0.state { true } else { false } }.sorted { $0.id < $1.id }
    }

    /// Accepted writes of a lane that are still kept, in the order in which they took effect.
    public func keptWrites(lane: String) -> [Write] { kept.compactMap { writes[$0] }.filter { $0.lane == lane } }

    public subscript(id: Int) -> Write? { writes[id] }

    /// Waits until the write is accepted or refused. It throws if its task is cancelled, or if the write is not
    /// there.
    public func finished(_ id: Int) async throws -> Write {
        let events = events()
        if let write = writes[id], write.state != .pending { return write }
        for await _ in events {
            guard let write = writes[id] else { break }
            if write.state != .pending { return write }
        }
        throw CancellationError()
    }

    /// Gives up a pending write: it becomes refused, and those behind it go on. An attempt whose
    /// answer did not come may have taken effect: then the log shows it. It returns the write as it
    /// is after that: accepted, if the answer came meanwhile.
    @discardableResult
    public func discard(_ id: Int) async throws -> Write? {
        guard let lane = writes[id]?.lane, stored.contains(id) else { return nil }
        if lanes[lane]?.worker != nil || queues[lane]?.first == id {
            lanes[lane, default: Lane()].paused = true
            lanes[lane]?.worker?.cancel()
            await lanes[lane]?.worker?.value
            lanes[lane]?.paused = false
        }
        defer { wake(lane) }
        guard var write = writes[id], write.state == .pending else { return writes[id] }
        queues[lane]?.removeAll { $0 == id } // not to be sent while it is stored
        write.state = .refused(ServiceError(status: 0, name: ErrorName(rawValue: ""), message: "discarded by the app"))
        do { try await store(write) } catch {
            queues[lane, default: []].append(id)
            sort(lane)
            throw error
        }
        tell(.refused(write))
        return write
    }

    /// Forgets writes that were refused or accepted.
    public func dismiss(_ ids: [Int]) async throws {
        let gone = ids.filter { id in
            if case .pending? = writes[id]?.state { return false }
            return writes[id] != nil
        }
        try await storage.write(Dictionary(uniqueKeysWithValues: gone.map { (Write.name($0), nil) }))
        for id in gone {
            writes[id] = nil
            kept.removeAll { $0 == id }
        }
    }

    // MARK: After the server has lost writes

    /// Sends a kept write again, the same bytes under the same key. It returns the error of a refusal.
    /// Errors that pass are thrown.
    func resend(_ write: Write) async throws -> ServiceError? {
        do {
            let answer = try await service.post(write.nsid, body: write.body, checked: procedures[write.nsid])
            var again = write
            again.state = .accepted(answer, at: surroundings.now())
            try await store(again)
            return nil
        } catch let error as ServiceError {
            switch RetryRule.verdict(on: error) {
            case .again, .atReset, .hold: throw error
            case .newEpoch, .recover, .refuse: return error
            }
        }
    }

    /// Makes a kept write pending again, with the bytes of the draft, behind what its lane holds.
    func sendAnew(_ write: Write, _ draft: Draft, with changes: Changes = [:]) async throws {
        try await dismiss([write.id])
        try await add(draft, with: changes)
    }

    /// Puts a draft into the outbox in the place of a refused write, in one step.
    func move(_ write: Write, _ draft: Draft, with changes: Changes = [:]) async throws {
        var changes = changes
        changes[write.name] = .some(nil)
        try await add(draft, with: changes)
        writes[write.id] = nil
    }

    /// Marks kept writes as those of a branch that the device has left.
    func markForked(_ ids: [Int]) async throws {
        for id in ids {
            guard var write = writes[id] else { continue }
            write.forked = true
            try await store(write)
        }
    }
}
