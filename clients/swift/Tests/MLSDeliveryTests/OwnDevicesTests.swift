import TestSupport
import XCTest

@testable import MLSDelivery

/// D5: a person's devices: a new one enters, a dead one leaves, and one signs out.
final class OwnDevicesTests: XCTestCase {
    private let convo = WrongCallsTests.convo
    private let group = WrongCallsTests.group(WrongCallsTests.convo)
    private let (alice, bob) = (DevicesTests.alice, DevicesTests.bob)
    private let (phone, tablet) = (FakeMLS.leaf(of: ModelServer.caller, "phone"), FakeMLS.leaf(of: ModelServer.caller, "tablet"))
    private let phoneID = FakeMLS.id(of: "phone")
    private var tabletID: String { hexadecimal(sha256(tablet.signatureKey)) }

    /// Alice's account lists her phone and her tablet.
    private func accounts() async throws -> MemoryAccounts {
        let accounts = MemoryAccounts(alice)
        for (leaf, name) in [(phone, "phone"), (tablet, "tablet")] {
            try await accounts.list(ListedDevice(key: leaf.signatureKey, cipherSuite: "suite", name: name))
        }
        return accounts
    }

    /// A convo with these devices, of which the service has a GroupInfo.
    private func convo(of leaves: [Leaf]) async throws -> ModelServer {
        let server = ModelServer(seed: 1)
        await server.addConvo(convo)
        try await server.setGroupInfo(FakeMLS.state(group, 0, leaves), of: convo)
        return server
    }

    private func open(
        _ server: ModelServer, _ accounts: MemoryAccounts, _ storage: MemoryStorage = MemoryStorage(), device: String = "phone", admitOwnDevices: Bool = true,
        life: Life = Life(seed: 0), seed: UInt64 = 1, surroundings: Surroundings? = nil
    ) async throws -> Messenger {
        let service = Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: MortalTransport(server, life))
        return try await Messenger(
            account: alice, service: service, accounts: accounts, admitOwnDevices: admitOwnDevices, storage: MortalStorage(storage, life),
            surroundings: surroundings ?? simulated(seed: seed, life: life)
        ) { try FakeMLS($0, device: device, seed: seed) }
    }

    private func hears(_ events: AsyncStream<MessengerEvent>, _ wanted: MessengerEvent) async {
        for await event in events {
            if event == wanted { return }
            if case .failed(let text) = event { return XCTFail("\(wanted) has not come: \(text)") }
        }
    }

    /// Does something until it ends, or the app is killed: then what waits has nobody to go on.
    private func unlessKilled(_ life: Life, _ work: @escaping @Sendable () async throws -> Void) async throws {
        let (ends, end) = AsyncStream<Void>.makeStream()
        let task = Task {
            defer { end.finish() }
            try await work()
        }
        let watch = Task {
            while await !life.isOver, !Task.isCancelled { await Task.yield() }
            task.cancel()
        }
        for await _ in ends {}
        watch.cancel()
        do { try await task.value } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
    }

    // MARK: Entering

    /// The tablet is new. It has no Welcome, and enters by itself: the phone is in the group.
    func testD5ANewDeviceEntersItsConvosByItself() async throws {
        let server = try await convo(of: [phone])
        let tablet = try await open(server, accounts(), device: "tablet")
        let events = await tablet.events()
        try await tablet.start(listening: false)
        try await tablet.catchUp()
        await hears(events, .joined(convoId: convo))
        let members = try await tablet.mls.members(of: group)
        XCTAssertEqual(members, [phone, self.tablet])
        let commits = await server.log(convo).map(\.isCommit)
        XCTAssertEqual(commits, [true])
        await tablet.stop()
    }

    /// An event of a convo that another device has made is enough.
    func testD5ANewDeviceEntersAConvoOfWhichAnEventTells() async throws {
        let server = try await convo(of: [phone])
        let tablet = try await open(server, accounts(), device: "tablet")
        let events = await tablet.events()
        try await tablet.start(listening: false)
        let event = StreamConvoEvents.CommitEvent(
            commitData: Bytes(Data()), convoId: convo, createdAt: Timestamp(rawValue: "2026-11-22T09:30:00.123Z"), cursor: "1", epoch: 1, sender: alice, seq: 1
        )
        try await tablet.enterOwn(.commitEvent(event))
        await hears(events, .joined(convoId: convo))
        await tablet.stop()
    }

    func testD5ADeviceThatShallNotEntersNothing() async throws {
        let server = try await convo(of: [phone])
        let tablet = try await open(server, accounts(), device: "tablet", admitOwnDevices: false)
        try await tablet.catchUp()
        await server.reached(GetWelcome.nsid, times: 1)
        await tablet.stop()
        let convos = try await tablet.convos()
        XCTAssertEqual(convos, [])
        let again = try await open(server, accounts(), device: "tablet", admitOwnDevices: false)
        try await again.start(listening: false)
        try await again.join(convo) // the app asks for it
        let joined = try await again.convos()
        XCTAssertEqual(joined, [convo])
        await again.stop()
    }

    /// The service names a convo as Alice's in which none of her devices is.
    func testD5ADeviceEntersNoGroupInWhichNoDeviceOfItsPersonIs() async throws {
        let server = try await convo(of: [DevicesTests.bobsPhone])
        let accounts = try await accounts()
        try await accounts.as(bob).list(ListedDevice(key: DevicesTests.bobsPhone.signatureKey, cipherSuite: "suite"))
        let tablet = try await open(server, accounts, device: "tablet")
        let events = await tablet.events()
        try await tablet.start(listening: false)
        try await tablet.catchUp()
        for await event in events { if case .failed(let text) = event, text.contains("no listed device of this person") { break } }
        let (convos, writes) = try await (tablet.convos(), tablet.outbox.refused)
        XCTAssertEqual(convos, [])
        XCTAssertEqual(writes, [], "the app has not asked for it")
        await tablet.stop()
    }

    /// The app is killed at each step of entering: the device is in the convo once.
    func testD5EnteringKilledAtEachStep() async throws {
        for step in 1... {
            let (server, storage, accounts) = try await (convo(of: [phone]), MemoryStorage(), accounts())
            let life = Life(seed: 0, at: step)
            let first = try await open(server, accounts, storage, device: "tablet", life: life)
            let events = await first.events()
            do {
                try await first.start(listening: false)
                try await first.catchUp()
                for await event in events {
                    if await life.isOver { break }
                    if event == .joined(convoId: convo) { break }
                }
            } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            await first.stop()
            let killed = await life.isOver
            let second = try await open(server, accounts, storage, device: "tablet", seed: 2)
            try await second.start(listening: false)
            try await second.catchUp()
            while try await second.convos().isEmpty { await Task.yield() }
            let members = try await second.mls.members(of: group)
            XCTAssertEqual(members, [phone, tablet], "killed at step \(step)")
            await second.stop()
            if !killed { return XCTAssertGreaterThan(step, 6) }
        }
    }

    /// Somebody has taken the phone out of a group, and its account lists it still: it enters again.
    func testD5AListedDeviceThatWasTakenOutEntersAgain() async throws {
        let (server, storage) = try await WrongCallsTests.begin(with: [tablet])
        try await server.commit(.init(remove: [phone]), to: convo, by: tablet)
        try await server.setGroupInfo(FakeMLS.state(group, 1, [tablet]), of: convo)
        let phone = try await open(server, accounts(), storage)
        try await phone.start(listening: false)
        try await phone.sync(convo)
        let left = try await phone.thread(convo).left
        XCTAssertEqual(left, true)
        let events = await phone.events()
        try await phone.catchUp()
        await hears(events, .joined(convoId: convo))
        let members = try await phone.mls.members(of: group)
        XCTAssertEqual(members, [tablet, self.phone])
        await phone.stop()
    }

    // MARK: Removing

    func testD5ToAddOrRemoveOneselfIsRefusedWithASentence() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        let phone = try await open(server, accounts(), storage)
        let calls: [(String, () async throws -> Void)] = [
            ("start()", { _ = try await phone.add([self.alice], to: self.convo) }), ("removeDevice()", { _ = try await phone.remove(self.alice, from: self.convo) }),
            ("signOut()", { try await phone.removeDevice(self.phoneID) }),
        ]
        for (advice, call) in calls {
            do {
                try await call()
                XCTFail("it was done: \(advice)")
            } catch let error as OwnDeviceError {
                XCTAssertTrue(error.description.contains(advice), error.description)
                XCTAssertEqual(error.code, "OwnDevice")
            }
        }
        let pending = await phone.outbox.pending
        XCTAssertEqual(pending, [])
        await phone.stop()
    }

    func testD5TheDevicesOfAPersonAreListed() async throws {
        let (server, storage) = try await WrongCallsTests.begin(with: [tablet])
        let phone = try await open(server, accounts(), storage)
        try await phone.start(listening: false)
        try await phone.restock()
        try await DevicesTests.sent(phone)
        let devices = try await phone.devices()
        let convos = [convo, WrongCallsTests.other]
        let wanted = [
            OwnDevice(deviceId: phoneID, key: self.phone.signatureKey, name: "phone", isOwn: true, isListed: true, keyPackages: 102, convos: convos),
            OwnDevice(deviceId: tabletID, key: tablet.signatureKey, name: "tablet", isListed: true, convos: convos),
        ]
        XCTAssertEqual(Set(devices), Set(wanted))
        await phone.stop()
    }

    /// A dead device is taken out of everything, also if the app is killed at each step.
    func testD5TheRemovalOfADeviceKilledAtEachStep() async throws {
        for step in 1... {
            let (server, storage) = try await WrongCallsTests.begin(with: [tablet])
            let accounts = try await accounts()
            let life = Life(seed: 0, at: step)
            let first = try await open(server, accounts, storage, life: life)
            let dead = tabletID
            try await unlessKilled(life) {
                try await first.start(listening: false)
                try await first.removeDevice(dead)
            }
            let killed = await life.isOver
            await first.stop()
            let second = try await open(server, accounts, storage, seed: 2)
            try await second.start(listening: false)
            try await second.removeDevice(tabletID)
            for one in [convo, WrongCallsTests.other] {
                let members = try await second.mls.members(of: WrongCallsTests.group(one))
                XCTAssertEqual(members, [phone], "killed at step \(step)")
            }
            let (keys, ended) = try await (accounts.keys(of: alice), server.ended[tabletID])
            XCTAssertEqual(keys, [phone.signatureKey])
            XCTAssertEqual(ended, [WithdrawKeyPackages.nsid, UnregisterPushTarget.nsid, DeleteSession.nsid])
            let (left, refused) = await (second.records.names("removal/"), second.outbox.refused)
            XCTAssertEqual(left, [])
            XCTAssertEqual(refused, [], "the app has not asked for these commits")
            await second.stop()
            if !killed { return XCTAssertGreaterThan(step, 10) }
        }
    }

    /// Another device of the person has removed this one: it hears of it, lists itself not again, and signs out.
    func testD5ARemovedDeviceHearsOfIt() async throws {
        let (server, storage) = try await WrongCallsTests.begin(with: [tablet])
        let accounts = try await accounts()
        let phone = try await open(server, accounts, storage)
        let events = await phone.events()
        try await phone.start(listening: false)
        try await phone.listDevice()
        await accounts.hide(self.phone.signatureKey, of: alice)
        try await server.commit(.init(remove: [self.phone]), to: convo, by: tablet)
        try await phone.sync(convo)
        await hears(events, .signedOut(.removed))
        do {
            try await phone.join(convo)
            XCTFail("it has come back")
        } catch { XCTAssertEqual(error as? SignedOut, SignedOut(.removed)) }
        let keys = try await accounts.keys(of: alice)
        XCTAssertEqual(keys, [tablet.signatureKey])
        try await phone.signOut()
        let left = await storage.values
        XCTAssertEqual(left, [:])
    }

    // MARK: Signing out

    /// The phone proposes to remove its leaf, and the services and its storage have nothing of it any more.
    func testD5SigningOutLeavesNothing() async throws {
        let (server, storage) = try await WrongCallsTests.begin(with: [tablet])
        let accounts = try await accounts()
        var patient = simulated(seed: 1)
        let sleep = patient.sleep
        patient.sleep = { seconds in if seconds == 10 { try await Task.sleep(nanoseconds: 60_000_000_000) } else { try await sleep(seconds) } }
        let phone = try await open(server, accounts, storage, surroundings: patient)
        let events = await phone.events()
        try await phone.start(listening: false)
        try await phone.restock()
        try await DevicesTests.sent(phone)
        try await phone.signOut()
        await hears(events, .signedOut(.done))
        let (left, keys, ended) = try await (storage.values, accounts.keys(of: alice), server.ended[phoneID])
        XCTAssertEqual(left, [:])
        XCTAssertEqual(keys, [tablet.signatureKey])
        XCTAssertEqual(ended, [WithdrawKeyPackages.nsid, UnregisterPushTarget.nsid, DeleteSession.nsid])
        for one in [convo, WrongCallsTests.other] {
            let log = await server.log(one)
            XCTAssertEqual(log.map(\.isProposal), [true])
        }
    }

    /// The person's other device commits the proposal of one that signs out.
    func testD5ThePersonsOtherDeviceRemovesTheLeafOfOneThatSignsOut() async throws {
        let (server, storage) = try await WrongCallsTests.begin(with: [tablet])
        try await server.propose(.init(remove: [tablet]), to: convo, by: tablet)
        let phone = try await open(server, accounts(), storage)
        let events = await phone.events()
        try await phone.start(listening: false)
        try await phone.sync(convo)
        for await event in events { if case .device(let news) = event, news.change == .left { break } }
        let members = try await phone.mls.members(of: group)
        XCTAssertEqual(members, [self.phone])
        await phone.stop()
    }

    func testD5SigningOutKilledAtEachStep() async throws {
        for step in 1... {
            let (server, storage) = try await WrongCallsTests.begin(with: [tablet])
            let accounts = try await accounts()
            let life = Life(seed: 0, at: step)
            let first = try await open(server, accounts, storage, life: life)
            try await unlessKilled(life) {
                try await first.start(listening: false)
                try await first.signOut()
            }
            let killed = await life.isOver
            await first.stop()
            if await !storage.values.isEmpty {
                let second = try await open(server, accounts, storage, seed: 2)
                let events = await second.events()
                let hasBegun = await second.records.data(Name.signingOut) != nil
                try await second.start(listening: false)
                if hasBegun { await hears(events, .signedOut(.done)) } else { try await second.signOut() }
            }
            let (left, keys, ended) = try await (storage.values, accounts.keys(of: alice), server.ended[phoneID])
            XCTAssertEqual(left, [:], "killed at step \(step)")
            XCTAssertEqual(keys, [tablet.signatureKey])
            XCTAssertEqual(ended, [WithdrawKeyPackages.nsid, UnregisterPushTarget.nsid, DeleteSession.nsid])
            if !killed { return XCTAssertGreaterThan(step, 10) }
        }
    }

    // MARK: People without a device

    /// Bob's last device is gone: the app hears that he has none in the group, until somebody adds him again.
    func testD5APersonWithoutADeviceIsNamed() async throws {
        let (server, storage) = try await WrongCallsTests.begin(with: [DevicesTests.bobsPhone])
        await server.addMembers([bob.rawValue], to: convo)
        let accounts = try await accounts()
        let phone = try await open(server, accounts, storage)
        let events = await phone.events()
        try await phone.start(listening: false)
        try await phone.sync(convo) // Bob's account lists no phone
        await hears(events, .withoutDevice(convoId: convo, account: bob))
        let (without, news) = try await (phone.withoutDevice(convo), phone.news().map(\.content))
        XCTAssertEqual(without, [bob])
        XCTAssertTrue(news.contains(.without(convoId: convo, account: bob)), "\(news)")
        let new = FakeMLS.leaf(of: bob.rawValue, "new")
        try await accounts.as(bob).list(ListedDevice(key: new.signatureKey, cipherSuite: "suite"))
        try await server.commit(.init(add: [new]), to: convo, by: tablet)
        try await phone.sync(convo)
        let after = try await phone.withoutDevice(convo)
        XCTAssertEqual(after, [])
        await phone.stop()
    }
}
