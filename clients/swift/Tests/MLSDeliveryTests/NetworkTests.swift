import Foundation
import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// Devices of a real MLS library against a network of real services: `mlsd-dev --services 3`, whose first one is at
/// MLSD_NETWORK_URL. check.sh starts it.
final class NetworkTests: XCTestCase {
    private var dev = DevServer(URL(fileURLWithPath: "/"))
    private var services: [DevServer.Neighbor] = []
    private var program = ""

    override func setUp() async throws {
        let environment = ProcessInfo.processInfo.environment
        guard let text = environment["MLSD_NETWORK_URL"], let url = URL(string: text), let agent = environment["MLSD_AGENT"] else {
            throw XCTSkip("MLSD_NETWORK_URL names no mlsd-dev: use check.sh")
        }
        (dev, program) = (DevServer(url), agent)
        services = try await dev.services()
    }

    /// A device, and what its app is told.
    private struct Phone {
        let messenger: Messenger
        let events: AsyncStream<MessengerEvent>
        let storage: MemoryStorage
        var account: DID { messenger.account }

        func text(_ text: String, to convo: String) async throws {
            let write = try await messenger.send(Data(text.utf8), to: convo)
            _ = try await messenger.outbox.finished(write.id)
        }

        /// Waits until it has read these messages of others, in this order.
        func reads(_ texts: [String], in convo: String) async throws {
            let wanted = texts.map { Entry.Content.message(Data($0.utf8)) }
            let events = await messenger.events()
            while true {
                let read = try await messenger.inbox(convo).map(\.content).filter { if case .message = $0 { true } else { false } }
                if read == wanted { return }
                for await event in events { if case .received(convo) = event { break } }
            }
        }

        /// Waits for an event.
        func hears<Found>(_ look: (MessengerEvent) -> Found?) async throws -> Found {
            for await event in events { if let found = look(event) { return found } }
            throw CancellationError()
        }

        func create(with members: [DID]) async throws -> String {
            let made = try await messenger.outbox.finished(messenger.create(with: members).id)
            return try XCTUnwrap(made.answer(of: CreateConvo.self), "\(made.state)").id
        }

        /// Accepts the next request, and waits until it has joined.
        func joins() async throws {
            let request = try await hears { if case .request(let request) = $0 { request } else { nil } }
            try await messenger.accept(request.convoId)
            _ = try await hears { $0 == .joined(convoId: request.convoId) ? true : nil }
        }
    }

    private static let hour: Double = 3600

    /// Opens a device, and lets it listen. It does not wait, but for hours.
    private func open(_ account: DID, at home: Int, _ storage: MemoryStorage = MemoryStorage(), later: TimeInterval = 0) async throws -> Phone {
        let program = program
        let surroundings = Surroundings(now: { Date() + later }) { seconds in
            try await Task.sleep(nanoseconds: UInt64((seconds > Self.hour / 2 ? seconds : min(seconds, 0.05)) * 1e9))
        }
        let messenger = try await Messenger(
            account: account, service: Service(dev.route(account, at: services[home])), others: dev.others(account, home: services[home]),
            accounts: UncheckedAccounts(), storage: storage, surroundings: surroundings
        ) { try await AgentDevice.load($0, account: account, program: program) }
        let phone = Phone(messenger: messenger, events: await messenger.events(), storage: storage)
        try await messenger.start()
        try await messenger.restock()
        for write in await messenger.outbox.pending where write.nsid == PublishKeyPackages.nsid { _ = try await messenger.outbox.finished(write.id) }
        return phone
    }

    private func new(at home: Int) async throws -> Phone { try await open(dev.account(at: services[home]), at: home) }

    private func stop(_ phones: Phone...) async { for phone in phones { await phone.messenger.stop() } }

    /// A convo of alice's service, which bob of another one has joined.
    private func pair() async throws -> (alice: Phone, bob: Phone, convo: String) {
        let (alice, bob) = (try await new(at: 0), try await new(at: 1))
        let convo = try await alice.create(with: [bob.account])
        try await bob.joins()
        return (alice, bob, convo)
    }

    /// People of three services chat in a convo of one, also after a restart; the group is replaced, and they go on.
    func testChatAcrossServices() async throws {
        let (alice, bob, convo) = try await pair()
        let states = try await bob.messenger.invitations().map(\.state)
        XCTAssertEqual(states, [.accepted])
        try await bob.text("from the second", to: convo)
        try await alice.reads(["from the second"], in: convo)
        try await alice.text("from the first", to: convo)
        try await bob.reads(["from the first"], in: convo)
        let carol = try await new(at: 2) // added by bob, whose own service is not the convo's either
        let added = try await bob.messenger.add([carol.account], to: convo)
        _ = try await bob.messenger.outbox.finished(try XCTUnwrap(added).id)
        try await carol.joins()
        try await carol.text("from the third", to: convo)
        try await alice.reads(["from the second", "from the third"], in: convo)

        await stop(bob) // its next life knows where the convo is, and from where it has to read on
        try await alice.text("while bob is away", to: convo)
        let again = try await open(bob.account, at: 1, bob.storage)
        try await again.reads(["from the first", "from the third", "while bob is away"], in: convo)

        try await alice.messenger.reset(convo, because: .forked)
        var next = ""
        for phone in [alice, again, carol] { next = try await phone.hears { if case .moved(convo, let next) = $0 { next } else { nil } } }
        try await again.text("in the new group", to: next)
        for phone in [alice, carol] { try await phone.reads(["in the new group"], in: next) }
        await stop(alice, again, carol)
    }

    /// A service that is away delays its convos alone.
    func testAServiceIsAway() async throws {
        let (alice, bob, convo) = try await pair()
        let erin = try await new(at: 1)
        let own = try await bob.create(with: [erin.account])
        try await erin.messenger.join(own)
        let away = DevServer(services[0].url)
        try await away.addFault(.cut, times: 0)
        let late = try await bob.messenger.send(Data("late".utf8), to: convo)
        try await bob.text("one", to: own)
        try await erin.reads(["one"], in: own)
        try await erin.text("two", to: own)
        try await bob.reads(["two"], in: own)
        let pending = await bob.messenger.outbox.pending.map(\.id)
        XCTAssertEqual(pending, [late.id])
        try await away.clearFaults()
        try await alice.reads(["late"], in: convo)
        await stop(alice, bob, erin)
    }

    /// Bob moves while an invitation is on its way. It arrives at the old home, once; his convos there go on; the
    /// next one comes to the new home, and the old one has nothing left to claim.
    func testMoves() async throws {
        let (alice, bob, erin) = (try await new(at: 0), try await new(at: 1), try await new(at: 1))
        let own = try await bob.create(with: [erin.account])
        try await erin.messenger.join(own)
        let convos = DevServer(services[0].url)
        try await convos.addFault(.cut, method: CreateConvo.nsid, account: alice.account, times: 0)
        let made = try await alice.messenger.create(with: [bob.account]) // has claimed at the old home
        await stop(bob)

        let moved = try await open(bob.account, at: 2, bob.storage)
        let dev = dev
        let pds = dev.route(bob.account, at: services[1])
        try await moved.messenger.publishProfile(through: Route(base: dev.base) { try await pds.headers($0) })
        try await convos.clearFaults()
        let answer = try await alice.messenger.outbox.finished(made.id).answer(of: CreateConvo.self)
        let convo = try XCTUnwrap(answer).id
        try await moved.joins()
        let old = try await moved.messenger.ask(GetInvitations.self, .init(), at: services[1].did).invitations.map(\.state)
        XCTAssertEqual(old, [.accepted])
        try await moved.text("still invited", to: convo)
        try await alice.reads(["still invited"], in: convo)
        try await moved.text("still here", to: own)
        try await erin.reads(["still here"], in: own)

        let frank = try await new(at: 2) // its service knows bob's new home only
        let next = try await frank.create(with: [bob.account])
        try await moved.joins()
        try await moved.text("at the new home", to: next)
        try await frank.reads(["at the new home"], in: next)
        await stop(moved)

        let later = try await open(bob.account, at: 2, bob.storage, later: 9 * 24 * Self.hour)
        while try await !later.messenger.services.former().isEmpty { await Task.yield() }
        let left = try await later.messenger.keyPackages(of: later.messenger.mls.deviceID, at: services[1].did).map(\.state)
        XCTAssertFalse(left.contains(.available), "\(left)")
        await stop(alice, later, erin, frank)
    }

    func testEndpoints() async throws {
        let endpoint = try await OtherServices.endpoint(of: services[1].did)
        XCTAssertEqual(endpoint.port, services[1].url.port)
        for nowhere in [try await dev.account(at: services[0]), DID("did:key:z6Mk"), DID("did:web:localhost%3A1")] {
            do {
                _ = try await OtherServices.endpoint(of: nowhere, directory: dev.base.absoluteString)
                XCTFail("\(nowhere) is a service")
            } catch {}
        }
    }
}
