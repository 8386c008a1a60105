import Foundation

/// What the app is told.
public enum MessengerEvent: Sendable, Hashable {
    /// The convo has new entries: `inbox`.
    case received(convoId: String)
    /// Somebody whom the person shares no convo with, or somebody of another service, has invited the person: the app
    /// asks, and calls `accept` or `decline`. A kill does not lose it: see `news`. `requests` lists what waits.
    case request(ConvoRequest)
    case joined(convoId: String)
    /// Somebody could not be added yet, and is invited later: `missing` lists them.
    case missing(Missing)
    /// The device cannot join, nor come back by itself: a member has to add the account again.
    case needsInvitation(convoId: String)
    case membership(StreamConvoEvents.MembershipEvent)
    /// A member has become an admin, or is one no longer, as the service reports: see `admins`.
    case role(StreamConvoEvents.RoleEvent)
    /// The name or the description of the convo has changed.
    case renamed(convoId: String)
    /// The convo was reset, and goes on under another id: the device is in its successor. Messages that waited go
    /// there. The old convo can be read.
    case moved(convoId: String, successor: String)
    /// The service reports that a person whom the account has added has joined with a device, or could not. That
    /// somebody has joined is sure when they write.
    case arrived(StreamConvoEvents.ArrivalEvent)
    case outbox(OutboxEvent)
    /// A device asks for the history of a convo: the app asks its person, and calls `agree`.
    case historyRequest(HistoryRequest)
    /// Somebody has made a bundle of history, or it was cancelled.
    case historyBundle(HistoryBundle)
    /// The service says what MLS does not show: tell the person. A kill does not lose it: see `news`.
    case finding(Finding)
    /// A device has entered a group, or left it, or its account says otherwise than before. A kill does not lose it.
    case device(DeviceNews)
    /// A person has no device in a convo's group any more, and has not left. Once it has one, `add` brings the person back.
    /// `withoutDevice` lists them. A kill does not lose it.
    case withoutDevice(convoId: String, account: DID)
    /// This device has signed out; or another device of the person has removed it: ask the person, and call `signOut`.
    case signedOut(SignedOut.Why)
    /// The device's clock is ahead of the service's by so many milliseconds, or behind, if it is less than zero: tell the
    /// person. Zero: it is right again. The messenger works with the service's time.
    case clock(aheadMs: Int)
    /// Another event, such as that somebody types.
    case other(StreamConvoEvents.Event)
    /// The work failed and is not tried again by itself.
    case failed(String)
}

public enum MessengerError: Error, Hashable {
    case unknownConvo(String)
    /// The log has another commit in an epoch that this device has left.
    case forked(convoId: String)
    /// The log misses entries: a fault of the service.
    case gap(convoId: String, after: Int)
    /// Neither the Welcome nor a GroupInfo lets the device in.
    case needsInvitation(convoId: String)
    /// The convo was reset before.
    case moved(convoId: String, successor: String)
    /// There is no KeyPackage of the account, or none of a device that it lists, nor of anybody else who was asked for.
    case noKeyPackage(DID)
    /// The convo is at another service than this one.
    case notAt(DID, convoId: String)
    /// The messenger has no way to other services.
    case noWay(DID)
    /// The convo is a request, which its person has not accepted.
    case waitsForAnswer(convoId: String)
    /// MLS cannot read an entry of the log.
    case unreadable(convoId: String, seq: Int, String)
}

/// A device of an account: its convos, its outbox, its stock of KeyPackages, its events.
///
/// Nothing that the service has acknowledged or delivered is lost when the app is killed, at any moment.
/// The app takes plaintexts from the `inbox` and says when it has stored them.
public actor Messenger {
    public nonisolated let account: DID
    public nonisolated let outbox: Outbox

    /// The way to the services: a call about a convo goes to the service that keeps it, and any other one to the
    /// home. For `Attachments`, and for calls of the app.
    public nonisolated let service: Service
    let services: Services
    let accounts: any Accounts
    private let deviceName: String?
    /// Whether this device enters the convos of its person by itself.
    let admitsOwn: Bool
    /// Whether a device is used of which the account does not say that it is its own: by default not.
    let decide: @Sendable (Doubt) async -> Bool
    var madeWithOffset: TimeInterval = 0 // of the clock, when KeyPackages were made last
    private var listed: Task<Void, any Error>?
    private var isRemoved = false // its account does not list this device any more
    var leaving: Task<Void, any Error>? // the sign-out
    var entering: Set<String> = [] // convos that the device enters by itself now
    let entryTurn = Turn()
    var ending: [String: Task<Void, any Error>] = [:] // devices that are taken out now, by id
    let mls: any MLSDevice
    let records: Records
    private let storage: any Storage
    private let owner: StorageOwner
    let surroundings: Surroundings
    /// One operation on the MLS state at a time, with the write of its changes: an older state never follows a
    /// newer one into the storage.
    let turn = Turn()
    /// The service's time.
    let clock: ServiceClock
    /// Waits that a sign of life ends.
    let waits: Waits
    /// One batch of imported messages at a time: two bundles do not bring the same message.
    let importTurn = Turn()
    var busyWithHistory: Set<String> = [] // bundles that are made or imported now
    private let author: AuthorOfMessenger
    private var tasks: [UUID: Task<Void, Never>] = [:]
    var lastNews = 0 // its id
    var asking: [String: Task<Device, any Error>] = [:] // accounts that are asked now, by the device
    var settling: [String: Task<[Device], any Error>] = [:] // groups that are judged now, by convo and version
    var watching: Set<String> = [] // groups that are judged again until all devices are known, by convo and version
    var versions: [String: Int] = [:] // of the groups of convos: how often their members have changed
    var clear: Set<String> = [] // convos whose devices are all known
    var removing: Set<String> = [] // devices that were taken out, by convo, version and key
    var following: [String: String?] = [:] // convos whose successors are entered now; a successor: once more
    var inviting = false // who is missing is invited now
    var claiming: Set<String> = [] // claims of KeyPackages that calls use now
    var away: Set<String> = [] // listed devices whose accounts should be asked afresh, and could not be
    var told: Set<String> = [] // news of devices that the app has had in this life
    var compared = false // the KeyPackages that the service has with those of the device
    var joining: [String: Task<Void, any Error>] = [:] // convos that are joined now
    var recovering: [String: Task<Void, any Error>] = [:] // convos whose losses are made good now
    var isStarted = false
    var listening = false
    var heard: Set<DID?> = [] // services whose events are followed
    private var syncing: [String: Bool] = [:] // convos that are read now; true: read once more
    private var listeners: [UUID: AsyncStream<MessengerEvent>.Continuation] = [:]

    /// The storage is this messenger's until `stop`. Error: ``StoreOpenError`` if another one has it.
    ///
    /// `service` is the person's home. Without `others` it is the only service. `accounts` say whose key a device has:
    /// ``ATProtoAccounts``. `deviceName` is the device's name in its account's record, which everybody can read.
    /// `decide` is asked about a device for which nothing is encrypted, because its account does not list it, or could
    /// not be asked yet, or because its person was not in the group. To return true is to use it from now on: ask the
    /// person, who compares safety numbers. It is also asked whether somebody has left of whom only the service says so.
    /// Without `admitOwnDevices` this device does not enter the convos of its person by itself.
    /// `load` makes the MLS device from its stored state, the values whose names begin with `mls/`.
    public init(
        account: DID, service home: Service, others: OtherServices? = nil, accounts: any Accounts, deviceName: String? = nil,
        decide: @escaping @Sendable (Doubt) async -> Bool = { _ in false }, admitOwnDevices: Bool = true, storage: any Storage, surroundings: Surroundings = .init(),
        load: @Sendable ([String: Data]) async throws -> any MLSDevice
    ) async throws {
        let owner = StorageOwner()
        try await storage.acquire(for: owner)
        var values = try await storage.load()
        if let others, case let moved = try Services.move(to: others.home, values, at: surroundings.now()), !moved.isEmpty {
            try await storage.write(moved)
            for (name, value) in moved { values[name] = value }
        }
        self.account = account
        (self.accounts, self.deviceName, self.decide, admitsOwn) = (accounts, deviceName, decide, admitOwnDevices)
        let clock = ServiceClock(surroundings)
        (self.clock, self.surroundings, waits) = (clock, clock.surroundings, Waits(clock.surroundings))
        (self.storage, self.owner) = (storage, owner)
        records = Records(storage, values)
        mls = try await load(values.filter { $0.key.hasPrefix("mls/") })
        services = Services(home.watched(by: clock), others, records) { [mls] in try await mls.deviceID }
        service = services.routed
        author = AuthorOfMessenger()
        outbox = try Outbox(service: service, storage: RecordsStorage(records), values: values, author: author, surroundings: clock.surroundings)
        author.messenger = self
        clock.onChange { [weak self] ahead in Task { await self?.clockChanged(ahead) } }
    }

    /// What happens from now on.
    public func events() -> AsyncStream<MessengerEvent> {
        let (stream, continuation) = AsyncStream<MessengerEvent>.makeStream()
        let id = UUID()
        listeners[id] = continuation
        continuation.onTermination = { [weak self] _ in Task { await self?.forgetListener(id) } }
        return stream
    }

    private func forgetListener(_ id: UUID) { listeners[id] = nil }

    func tell(_ event: MessengerEvent) {
        for listener in listeners.values { listener.yield(event) }
    }

    /// Sends, listens and keeps the stock until `stop`. Work that a kill has interrupted goes on. `listening` is
    /// false in a background task, which only sends and reads. A sign-out that was interrupted goes on instead.
    public func start(listening: Bool = true) async throws {
        try await storage.acquire(for: owner)
        if await records.data(Name.signingOut) != nil { return signOutAgain() }
        let outboxEvents = await outbox.events()
        tasks[UUID()] = Task { for await event in outboxEvents { await self.follow(event) } }
        try await tellAgain()
        try await dismissUnasked(outbox.refused)
        await outbox.start()
        isStarted = true
        try await goOn(listening: listening)
    }

    /// Takes up what an earlier life, or a refusal, has interrupted.
    func goOn(listening: Bool) async throws {
        later { try await $0.listDevice() }
        for thread in try await records.list(Thread.self, Thread.prefix) {
            let withholds = await !records.names(Withheld.folder(thread.convoId)).isEmpty
            if thread.successor == nil || withholds { changed(thread.convoId) }
        }
        try await goOnAgain()
        try await removeAgain()
        for kept in try await records.list(KeptWelcome.self, KeptWelcome.prefix) { later { try await $0.join(kept.convoId) } }
        try await resumeServices()
        try await enterAgain()
        if await !records.names(Missing.prefix).isEmpty { inviteLater() }
        self.listening = listening
        for service in try await services.all() { listen(to: service) }
    }

    /// Ends all work, and waits until it has ended.
    public func stop() async {
        if let leaving {
            leaving.cancel()
            _ = await leaving.result
        }
        await endWork()
        await close()
    }

    func endWork() async {
        let running = Array(tasks.values)
        for task in running { task.cancel() }
        await outbox.stop()
        for task in running { await task.value }
        (tasks, isStarted, listening, heard) = ([:], false, false, [])
    }

    func close() async { await storage.release(by: owner) }

    /// Runs in the background what the app need not wait for.
    func later(_ work: @escaping @Sendable (Messenger) async throws -> Void) {
        let id = UUID()
        tasks[id] = Task {
            do { try await work(self) } catch is CancellationError {} catch is SignedOut {} catch { // of a sign-out the app has heard
                self.tell(.failed(String(describing: error)))
            }
            self.tasks[id] = nil
        }
    }

    private func follow(_ event: OutboxEvent) async {
        tell(.outbox(event))
        if case .refused(let write) = event {
            follow(refused: write)
            later { try await $0.dismissUnasked([write]) }
            if write.retires != nil { later { try await $0.outbox.dismiss([write.id]) } } // the others ask the account
        }
        guard case .held(let lane, .recover, _) = event else { return }
        later { messenger in
            // What the device was never in cannot be lost.
            if try await messenger.records.read(Thread.self, Thread.prefix + lane) == nil {
                await messenger.outbox.recovered(lane)
            } else {
                try await messenger.makeGood(lane)
            }
        }
    }

    /// Calls a query until it has an answer, or once: at a service, or at that of the convo. Errors:
    /// ``ServiceError`` that do not pass.
    func ask<Q: Query>(_ method: Q.Type, _ parameters: Q.Parameters, at service: DID? = nil, once: Bool = false) async throws -> Q.Output {
        if once { return try await services.at(service).query(method, parameters) }
        return try await patiently(at: service) { try await $0.query(method, parameters) }
    }

    /// Repeats a call while it fails in a way that passes. The call must not have an effect twice.
    func patiently<Output: Sendable>(at did: DID? = nil, _ call: @Sendable (Service) async throws -> Output) async throws -> Output {
        let service = did.map(services.at) ?? self.service
        var attempts = 0
        while true {
            do { return try await call(service) } catch {
                guard RetryRule.verdict(on: error) == .again else { throw error }
                try await waits.pause(surroundings.backoff(after: attempts, error), after: error)
                attempts += 1
            }
        }
    }

    // MARK: The own device

    /// Lists this device in its account's repository, once in a life of the messenger: others use no device without
    /// that. A device that was listed before goes on while the PDS is away. Errors: those of ``Accounts/list(_:)``, and
    /// ``SignedOut``.
    func listDevice() async throws {
        if let listed { return try await listed.value }
        let task = Task { try await self.listNow() }
        listed = task
        do { try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() } } catch {
            listed = nil
            throw error
        }
    }

    /// Asks the account about this device, which a commit has removed: its record can be gone.
    func listAgain() async throws {
        listed = nil
        try await listDevice()
    }

    private func listNow() async throws {
        if await records.data(Name.signingOut) != nil { throw SignedOut(.done) }
        let isListed = await records.data(Name.listed) != nil
        do {
            if isListed, try await !accounts.lists(mls.signatureKey, of: account) {
                if !isRemoved { tell(.signedOut(.removed)) }
                isRemoved = true
                throw SignedOut(.removed)
            }
            try await accounts.list(ListedDevice(key: mls.signatureKey, cipherSuite: mls.cipherSuite, name: deviceName))
            if !isListed { try await records.write([Name.listed: Data()]) }
        } catch where isListed && !(error is CancellationError || error is SignedOut) && RetryRule.verdict(on: error) == .again {}
    }

    // MARK: Convos

    /// The convos that the device has joined.
    public func convos() async throws -> [String] {
        try await records.list(Thread.self, Thread.prefix).map(\.convoId)
    }

    func thread(_ convo: String) async throws -> Thread {
        guard let thread = try await records.read(Thread.self, Thread.prefix + convo) else { throw MessengerError.unknownConvo(convo) }
        return thread
    }

    /// The code of a convo's group at the epoch that this device is in. Members compare it:
    /// docs/clients/RECIPES.md. Errors: `unknownConvo`.
    public func groupCode(of convo: String) async throws -> GroupCode {
        let group = try await thread(convo).groupId
        return try await turn.take { // both of one epoch
            guard let epoch = try await self.mls.epoch(of: group) else { throw MessengerError.unknownConvo(convo) }
            return try GroupCode(epoch: epoch, authenticator: await self.mls.epochAuthenticator(of: group))
        }
    }

    /// Throws if the text cannot be the id of a convo. Whether there is one that the device has not
    /// joined, such as a request, only the service knows.
    func checkID(_ convo: String) async throws {
        if try await records.read(Thread.self, Thread.prefix + convo) == nil, UUID(uuidString: convo) == nil {
            throw MessengerError.unknownConvo(convo)
        }
    }

    /// Encrypts a message and puts it into the outbox. When it has returned, the message is sent,
    /// whatever happens to the app. `message` should carry an id of its own: docs/RECOVERY.md.
    /// `changes` are values of the app, with names that begin with `app/`, which are stored in the
    /// same write: for example that this message is in the outbox. Errors: ``InvalidInput``,
    /// `unknownConvo`, and those of the storage and of MLS; then nothing is stored. It is encrypted when all
    /// devices of its group are known: until then it waits in the outbox.
    @discardableResult
    public func send(
        _ message: Data, to convo: String, embedType: String? = nil, embedUri: String? = nil, with changes: Changes = [:]
    ) async throws -> Write {
        try await turn.take {
            let draft = try await self.draftOrWait(message, convo, embedType, embedUri)
            let all = try await self.changes(for: draft).merging(changes) { _, new in new }
            return try await self.outbox.add(draft, with: all)
        }
    }

    /// The value of the app under a name.
    public func value(_ name: String) async -> Data? { await records.data(name) }

    /// A message that is encrypted now, or once all devices of its group are known. The caller has the turn.
    func draftOrWait(_ message: Data, _ convo: String, _ embedType: String?, _ embedUri: String?) async throws -> Draft {
        do { return try await draftMessage(message, convo, embedType, embedUri) } catch is UnknownDevices {
            let input = SendMessage.Input(
                ciphertext: Bytes(Data()), convoId: convo, epoch: 0, senderDid: account, embedType: embedType, embedUri: embedUri
            )
            watchLater(convo)
            return try Draft(SendMessage.self, input, lane: convo, note: message, isSealed: false)
        }
    }

    /// Error: ``UnknownDevices``. The caller has the turn.
    func draftMessage(_ message: Data, _ convo: String, _ embedType: String?, _ embedUri: String?) async throws -> Draft {
        let thread = try await thread(convo)
        guard let epoch = try await mls.epoch(of: thread.groupId) else { throw MessengerError.unknownConvo(convo) }
        var input = SendMessage.Input(
            ciphertext: Bytes(Data()), convoId: convo, epoch: epoch, senderDid: account, embedType: embedType, embedUri: embedUri
        )
        try input.check() // a refused call uses up no key
        let unknown = try await unknown(in: thread)
        if !unknown.isEmpty { throw UnknownDevices(devices: unknown) }
        input.ciphertext = Bytes(try await mls.encrypt(message, in: thread.groupId))
        return try Draft(SendMessage.self, input, lane: convo, epoch: epoch, object: input.ciphertext.data, note: message)
    }

    /// The message of a write, encrypted again. The caller has the turn.
    func draftAnew(_ write: Write, orWait mayWait: Bool) async throws -> Draft {
        let before = try JSONDecoder().decode(SendMessage.Input.self, from: write.body)
        if mayWait { return try await draftOrWait(write.note, write.lane, before.embedType, before.embedUri) }
        return try await draftMessage(write.note, write.lane, before.embedType, before.embedUri)
    }

    /// Creates a convo with the members, of each of whom it claims KeyPackages: for that it waits
    /// until their homes answer. Who has none is invited later: `missing`. The answer of the write names the convo.
    /// Error: `noKeyPackage` if nobody of them has any.
    @discardableResult
    public func create(with members: [DID], metadata: Defs.ConvoMetadata? = nil) async throws -> Write {
        try CreateConvo.Input(cipherSuite: "", groupId: "", initialMembers: members, metadata: metadata).check()
        try await listDevice()
        return try await withClaim(members, convo: nil) { claimed in
            let missing = try await lacking(members, claimed)
            return try await turn.take { try await self.addConvo(members.filter(claimed.people.contains), claimed, missing, metadata) }
        }
    }

    /// The caller has the turn.
    private func addConvo(_ members: [DID], _ claimed: Claimed, _ missing: [Missing], _ metadata: Defs.ConvoMetadata?) async throws -> Write {
        let group = try await startGroup(claimed.packages)
        let name = hexadecimal(group.id)
        let draft = try await Draft(
            CreateConvo.self,
            .init(
                cipherSuite: mls.cipherSuite, groupId: name, currentEpoch: group.epoch, groupInfo: Bytes(group.info), initialMembers: members,
                metadata: metadata, receipts: claimed.receipts, welcomeMessage: group.welcome.map(Base64Text.init)
            ),
            lane: "create/" + name, note: group.id // no convo waits for another
        )
        var changes = try await mls.takeChanges()
        changes.merge(try await using(claimed.packages, by: name)) { $1 }
        changes.merge(try stored(missing, in: name)) { $1 }
        return try await outbox.add(draft, with: changes)
    }

    /// Starts a group with the devices of the KeyPackages: `confirm` puts the device into the epoch that has
    /// them. The caller has the turn.
    func startGroup(_ packages: [Data], inPlaceOf old: Data? = nil) async throws -> (id: Data, epoch: Int, info: Data, welcome: Data?) {
        let random = Data((0..<16).map { _ in UInt8.random(in: 0...255) })
        let id = old.map { successorID(of: $0, random: random) } ?? random
        try await mls.create(groupID: id)
        guard !packages.isEmpty, let staged = try await mls.stage(GroupChange(add: packages), in: id) else {
            return (id, 0, try await mls.groupInfo(of: id), nil)
        }
        return (id, staged.epoch, staged.groupInfo, staged.welcome)
    }

    /// Adds accounts. Who has no KeyPackages is invited later: `missing`. Errors: `unknownConvo`, and `noKeyPackage` if
    /// nobody of them has any; ``OwnDeviceError`` for the own account.
    @discardableResult
    public func add(_ members: [DID], to convo: String) async throws -> Write? {
        try AddMembers.Input(convoId: convo, didList: members).check()
        if members.contains(account) {
            throw OwnDeviceError(description: "another device of this person enters by itself: call start() or catchUp() on it")
        }
        _ = try await thread(convo)
        return try await withClaim(members, convo: convo) { claimed in
            let missing = try await lacking(members, claimed)
            let write = try await commit(Plan(add: members.filter(claimed.people.contains), claimed), convo, missing: missing)
            note(missing, in: convo)
            return write
        }
    }

    /// The admins of a convo, as its service reports. They remove people, and name the convo.
    public func admins(_ convo: String) async throws -> [DID] {
        try await ask(GetConvo.self, .init(convoId: convo)).convo.members.filter { $0.isAdmin == true }.map(\.did)
    }

    /// Makes a member an admin. Only admins may.
    @discardableResult
    public func promoteAdmin(_ convo: String, _ member: DID) async throws -> Write {
        try await checkID(convo)
        return try await outbox.add(Draft(PromoteAdmin.self, .init(convoId: convo, did: member), lane: convo))
    }

    /// Makes an admin a member again. An admin may do it to itself, unless it is the last one.
    @discardableResult
    public func demoteAdmin(_ convo: String, _ member: DID) async throws -> Write {
        try await checkID(convo)
        return try await outbox.add(Draft(DemoteAdmin.self, .init(convoId: convo, did: member), lane: convo))
    }

    /// Changes the name or the description, which the service can read. What is nil stays, and an empty text
    /// removes it. Only admins may.
    @discardableResult
    public func updateConvo(_ convo: String, name: String? = nil, description: String? = nil) async throws -> Write {
        try await checkID(convo)
        let metadata = Defs.ConvoMetadata(description: description, name: name)
        return try await outbox.add(Draft(UpdateConvo.self, .init(convoId: convo, metadata: metadata), lane: convo))
    }

    /// Removes accounts: a right of the convo's admins, and everybody's once they have left. Error: ``OwnDeviceError`` for
    /// the own account.
    @discardableResult
    public func remove(_ member: DID, from convo: String) async throws -> Write? {
        try LeaveConvo.Input(convoId: convo, targetDid: member).check()
        if member == account { throw OwnDeviceError(description: "call leave(), or removeDevice() for one device of this person") }
        return try await commit(Plan(remove: member), convo)
    }

    /// Changes the keys of the device.
    @discardableResult
    public func rotate(_ convo: String) async throws -> Write? { try await commit(Plan(), convo) }

    /// Leaves the convo. It proposes first to remove the leaves of this person, so that the others see it by MLS.
    @discardableResult
    public func leave(_ convo: String) async throws -> Write {
        try await checkID(convo)
        try await retire(convo)
        return try await outbox.add(Draft(LeaveConvo.self, .init(convoId: convo), lane: convo))
    }

    /// Says whether the Welcomes that this person has sent have arrived: one for each device that it has
    /// added, the oldest first. `consumed` means that the device has joined, as the service reports.
    public func invited(to convo: String) async throws -> [GetWelcomeStatus.WelcomeStatus] {
        try await checkID(convo)
        var all: [GetWelcomeStatus.WelcomeStatus] = []
        var cursor: String?
        repeat {
            let page = try await ask(GetWelcomeStatus.self, .init(convoId: convo, cursor: cursor))
            all += page.welcomes
            cursor = page.cursor
        } while cursor != nil
        return all
    }

    // MARK: The inbox

    /// Entries that the app has not taken yet, in the order of the log.
    public func inbox(_ convo: String) async throws -> [Entry] {
        try await records.list(Entry.self, Entry.prefix + convo + "/")
    }

    /// The app has stored these entries: they leave the inbox.
    public func taken(_ entries: [Entry]) async throws {
        try await records.write(Dictionary(entries.map { ($0.name, nil) }) { first, _ in first })
    }

    /// Reads the convo's log to its end, and asks the accounts of devices that are new in it. Calls during a run lead
    /// to one more run.
    public func sync(_ convo: String) async throws {
        try await readToItsEnd(convo)
        try await settled(convo)
    }

    func readToItsEnd(_ convo: String) async throws {
        _ = try await thread(convo) // an unknown convo is refused, also while another call is about to be
        if syncing[convo] != nil {
            syncing[convo] = true
            return
        }
        repeat {
            syncing[convo] = false
            do { try await read(convo) } catch {
                syncing[convo] = nil
                throw error
            }
        } while syncing[convo] == true
        syncing[convo] = nil
    }
}

/// What a commit is to do, as its write's note: from it, a commit that lost its epoch is made again.
struct Plan: Codable {
    /// Of an addition: by it the claims of its KeyPackages name it.
    var id: String?
    var add: [DID] = []
    var packages: [Data] = []
    var receipts: [String]?
    var remove: DID?
    /// The one device that is removed.
    var removeDevice: Leaf?
    var external = false
    /// Whether the messenger does it by itself: all members try it, and the app does not hear of a refusal.
    var isUnasked: Bool?

    init(remove: DID? = nil, removeDevice: Leaf? = nil) { (self.remove, self.removeDevice) = (remove, removeDevice) }

    init(add: [DID], _ claimed: Claimed) {
        (id, self.add, packages, receipts) = (UUID().uuidString, add, claimed.packages, claimed.receipts)
    }

    var unasked: Plan {
        var plan = self
        plan.isUnasked = true
        return plan
    }

    var change: GroupChange {
        GroupChange(add: packages, remove: remove.map { [$0] } ?? [], removeDevices: removeDevice.map { [$0] } ?? [])
    }

    /// Whether it passes messages that wait, perhaps for this.
    var isRemoval: Bool { remove != nil || removeDevice != nil }
}

/// The outbox's storage: the messenger's own, so that all writes go through one place.
private struct RecordsStorage: Storage {
    let records: Records
    init(_ records: Records) { self.records = records }
    func load() async throws -> [String: Data] { [:] } // the outbox is given its values
    func write(_ changes: Changes) async throws { try await records.write(changes) }
}

/// Breaks the circle between the messenger and its outbox. `messenger` is set before the outbox starts.
final class AuthorOfMessenger: Author, @unchecked Sendable {
    weak var messenger: Messenger?

    private func owner() throws -> Messenger {
        guard let messenger else { throw CancellationError() }
        return messenger
    }
    func rewrite(_ write: Write, because error: ServiceError?) async throws -> Rewrite {
        try await owner().rewrite(write, because: error)
    }
    func accepted(_ write: Write, answer: Data) async throws { try await owner().accepted(write, answer: answer) }
    func refused(_ write: Write, because error: ServiceError) async throws { try await owner().refused(write, because: error) }
}
