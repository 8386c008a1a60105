import TestSupport
import XCTest

@testable import MLSDelivery

/// D9: one invitee without KeyPackages does not stop the others, and nobody's stock is used up by attempts.
final class MissingTests: XCTestCase {
    private let convo = WrongCallsTests.convo
    private let (bob, carol) = (DevicesTests.bob, DevicesTests.carol)
    private let bobsPhone = DevicesTests.bobsPhone
    private let carolsPhone = FakeMLS.leaf(of: DevicesTests.carol.rawValue)

    private func begin() async throws -> DevicesTests.Scene {
        let scene = try await DevicesTests.Scene()
        for leaf in [bobsPhone, carolsPhone] { try await scene.list(leaf) }
        await scene.server.setEmpty(carol.rawValue, true)
        return scene
    }

    private func accounts(_ phone: Messenger, _ convo: String) async throws -> [DID] {
        let group = try await phone.thread(convo).groupId
        return try await phone.mls.members(of: group)?.map(\.account).filter { $0 != phone.account } ?? []
    }

    private func arrives(_ account: DID, _ phone: Messenger, _ convo: String) async throws {
        while try await !accounts(phone, convo).contains(account) { await Task.yield() }
    }

    /// D9: Carol has no KeyPackages: Bob is added, she is named, and she is invited once she has some. Before, the call
    /// failed as a whole.
    func testD9CreatesWithTheHealthy() async throws {
        let scene = try await begin()
        let phone = try await scene.open()
        let events = await phone.events()
        try await phone.start(listening: false)
        let made = try await phone.outbox.finished(phone.create(with: [bob, carol]).id)
        let convo = try XCTUnwrap(made.answer(of: CreateConvo.self), "\(made.state)").id
        let wanted = Missing(convoId: convo, account: carol)
        for await event in events { if event == .missing(wanted) { break } }
        let (missing, before) = try await (phone.missing(convo), accounts(phone, convo))
        XCTAssertEqual(missing, [wanted])
        XCTAssertEqual(before, [bob])
        await phone.stop() // a kill does not lose it

        let next = try await scene.open(seed: 2)
        try await next.start(listening: false)
        await scene.server.setEmpty(carol.rawValue, false)
        try await arrives(carol, next, convo)
        let left = try await next.missing(convo)
        XCTAssertEqual(left, [])
        let claims = await scene.server.claimedOf.filter { $0 == DevicesTests.bob.rawValue }.count
        XCTAssertEqual(claims, 1)
        await next.stop()
    }

    /// D9: the same when people are added; and a listed device without KeyPackages is named until it is in the group.
    func testD9AddsTheHealthy() async throws {
        let scene = try await begin()
        let tablet = FakeMLS.leaf(of: bob.rawValue, "Bob's tablet")
        try await scene.list(tablet)
        let phone = try await scene.open()
        try await phone.start(listening: false)
        let write = try await phone.add([carol, bob], to: convo)
        _ = try await phone.outbox.finished(XCTUnwrap(write).id)
        let missing = try await phone.missing(convo)
        XCTAssertEqual(Set(missing), [Missing(convoId: convo, account: carol), Missing(convoId: convo, account: bob, key: tablet.signatureKey)])
        try await scene.server.commit(.init(enters: tablet), to: convo, by: tablet)
        try await phone.sync(convo)
        await scene.server.setEmpty(carol.rawValue, false)
        try await arrives(carol, phone, convo)
        let left = try await phone.missing(convo)
        XCTAssertEqual(left, [])
        await phone.stop()
    }

    /// D9: attempts that fail claim once from Bob; the one that works uses it. Before, each attempt claimed anew.
    func testD9AFailedAttemptsClaimIsUsedByTheNext() async throws {
        let scene = try await begin()
        await scene.server.refuse(AddMembers.nsid, times: 3)
        await scene.server.refuse(CreateConvo.nsid, times: 3)
        let phone = try await scene.open()
        try await phone.start(listening: false)
        for attempt in 0..<4 {
            let write = try await phone.add([bob], to: convo)
            let done = try await phone.outbox.finished(XCTUnwrap(write).id)
            if case .refused = done.state { XCTAssertLessThan(attempt, 3) } else { XCTAssertEqual(attempt, 3) }
        }
        var claims = await scene.server.claimedOf
        XCTAssertEqual(claims, [bob.rawValue])
        for attempt in 0..<4 {
            let done = try await phone.outbox.finished(phone.create(with: [bob]).id)
            if case .refused = done.state { XCTAssertLessThan(attempt, 3) } else { XCTAssertEqual(attempt, 3) }
        }
        claims = await scene.server.claimedOf
        XCTAssertEqual(claims, [bob.rawValue, bob.rawValue])
        let kept = await phone.records.names(KeptClaim.prefix)
        XCTAssertEqual(kept, [])
        await phone.stop()
    }

    /// D9: two calls at once never use one claim.
    func testD9NoClaimIsUsedTwice() async throws {
        let scene = try await begin()
        let phone = try await scene.open()
        let bob = bob
        async let one = phone.create(with: [bob])
        async let two = phone.create(with: [bob])
        _ = try await (one, two)
        let claims = await scene.server.claimedOf
        XCTAssertEqual(claims, [bob.rawValue, bob.rawValue])
        await phone.stop()
    }
}
