import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// T8: who has sent an entry of the log is what MLS shows, whatever the service says.
final class SenderTests: XCTestCase {
    static let (bob, carol) = ("did:plc:bob", "did:plc:carol")
    private let convo = WrongCallsTests.convo

    private func findings(_ phone: Messenger) async throws -> [Finding.What] {
        try await phone.news().compactMap { if case .finding(let finding) = $0.content { finding.what } else { nil } }
    }

    /// Bob's message and his commit, which the service says are Carol's.
    func testT8AMessageIsOfWhoHasSignedIt() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        await server.post(Data("honest".utf8), to: convo, by: Self.bob)
        await server.post(Data("I owe you".utf8), to: convo, by: FakeMLS.leaf(of: Self.bob), named: Self.carol)
        try await server.commit(.init(), to: convo, by: FakeMLS.leaf(of: Self.bob), named: Self.carol)
        let phone = try await WrongCallsTests.messenger(server, storage)
        let events = await phone.events()
        try await phone.sync(convo)
        let senders = try await phone.inbox(convo).map(\.sender.rawValue)
        XCTAssertEqual(senders, [Self.bob, Self.bob, Self.bob])
        let found = try await findings(phone)
        XCTAssertEqual(found, [.sender, .sender])
        for await event in events { if case .finding(let finding) = event { XCTAssertEqual(finding.convoId, convo); break } }
    }

    /// An external commit is of the leaf that enters.
    func testT8AnExternalCommitIsOfWhoEnters() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        try await server.commit(.init(enters: FakeMLS.leaf(of: Self.bob, "new")), to: convo, by: FakeMLS.leaf(of: Self.bob, "new"), named: Self.carol)
        let phone = try await WrongCallsTests.messenger(server, storage)
        try await phone.sync(convo)
        let senders = try await phone.inbox(convo).map(\.sender.rawValue)
        XCTAssertEqual(senders, [Self.bob])
        let found = try await findings(phone)
        XCTAssertEqual(found, [.sender])
    }

    /// A request for history is of who has signed it: the person agrees to give it to nobody else.
    func testT8AHistoryRequestIsOfWhoHasSignedIt() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        let request = HistoryMessage.request(id: HistoryMessage.newID(), device: String(repeating: "a", count: 64), before: 9)
        await server.post(try request.plaintext(), to: convo, by: FakeMLS.leaf(of: Self.bob), named: Self.carol)
        let phone = try await WrongCallsTests.messenger(server, storage)
        try await phone.sync(convo)
        let accounts = try await phone.historyRequests(of: convo).map(\.account.rawValue)
        XCTAssertEqual(accounts, [Self.bob])
    }

    /// A finding that the app has not taken comes again after a start, until it has.
    func testFindingsSurviveAKill() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        await server.post(Data("I owe you".utf8), to: convo, by: FakeMLS.leaf(of: Self.bob), named: Self.carol)
        try await WrongCallsTests.messenger(server, storage).sync(convo) // nobody listens, and the app is killed
        let next = try await WrongCallsTests.messenger(server, storage)
        let events = await next.events()
        try await next.start(listening: false)
        for await event in events { if case .finding(let finding) = event { XCTAssertEqual(finding.what, .sender); break } }
        try await next.heard(next.news())
        await next.stop()
        let last = try await WrongCallsTests.messenger(server, storage).news()
        XCTAssertEqual(last, [])
    }
}
