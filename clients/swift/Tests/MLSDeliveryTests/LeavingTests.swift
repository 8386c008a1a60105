import TestSupport
import XCTest

@testable import MLSDelivery

/// T7: nobody is removed because the service says that they have left.
final class LeavingTests: XCTestCase {
    private let convo = WrongCallsTests.convo
    private let bobs = DevicesTests.bobsPhone
    private var group: Data { WrongCallsTests.group(convo) }

    /// A phone in a group to which Bob was added, and in which he has written.
    private func scene(
        writes: Bool = true, decide: @escaping @Sendable (Doubt) async -> Bool = { _ in false }
    ) async throws -> (DevicesTests.Scene, Messenger) {
        let scene = try await DevicesTests.Scene()
        try await scene.list(bobs)
        try await scene.server.commit(.init(add: [bobs]), to: convo, by: DevicesTests.another)
        if writes { await scene.server.post(Data("hello".utf8), to: convo, by: bobs.identity) }
        let phone = try await scene.open(decide: decide)
        try await phone.sync(convo)
        try await phone.start(listening: false)
        return (scene, phone)
    }

    private func isIn(_ phone: Messenger) async throws -> Bool {
        try await DevicesTests.sent(phone)
        return try await phone.mls.members(of: group)?.contains(bobs) == true
    }

    /// A made-up event: Bob is in the group, and has said nothing of leaving.
    func testT7AMadeUpLeaverStays() async throws {
        let (scene, phone) = try await scene()
        try await phone.removeIfGone(bobs.account, from: convo)
        let (stays, log) = try await (isIn(phone), scene.server.log(convo).count)
        XCTAssertTrue(stays)
        XCTAssertEqual(log, 2)
        let found = try await phone.news().compactMap { if case .finding(let finding) = $0.content { finding.what } else { nil } }
        XCTAssertEqual(found, [.removal])
        await phone.stop()
    }

    /// Bob's account has ended.
    func testT7AnEndedAccountIsRemoved() async throws {
        let (scene, phone) = try await scene()
        await scene.accounts.end(bobs.account)
        try await phone.removeIfGone(bobs.account, from: convo)
        let stays = try await isIn(phone)
        XCTAssertFalse(stays)
        await phone.stop()
    }

    /// Bob has never written since he was added: he need not have joined. The app decides, and is told who has written.
    func testT7TheAppDecidesAboutALeaverOfWhomOnlyTheServiceSaysSo() async throws {
        for (writes, goes) in [(false, true), (false, false), (true, true)] {
            let asked = DevicesTests.Asked()
            let (_, phone) = try await scene(writes: writes) { doubt in
                await asked.add(doubt)
                return goes
            }
            try await phone.removeIfGone(bobs.account, from: convo)
            let (stays, doubts) = try await (isIn(phone), asked.doubts)
            XCTAssertEqual(stays, !goes)
            XCTAssertEqual(doubts, [Doubt(convoId: convo, account: bobs.account, key: nil, why: .left)])
            let joined = try await DevicesTests.changes(phone).contains(.joined)
            XCTAssertEqual(joined, writes)
            await phone.stop()
        }
    }

    /// Another member's commit has removed him meanwhile, or the service lets others do it: the app has not asked for
    /// the removal, and does not find it among its refused writes, after a kill either.
    func testT7ARefusedRemovalStaysInNoOutbox() async throws {
        let (scene, phone) = try await scene()
        await scene.server.forbid([LeaveConvo.nsid])
        await scene.accounts.end(bobs.account)
        let events = await phone.outbox.events()
        try await phone.removeIfGone(bobs.account, from: convo)
        for await event in events { if case .refused = event { break } }
        await phone.stop() // a kill, for what has not been forgotten yet
        let next = try await scene.open(seed: 2)
        try await next.start(listening: false)
        let refused = await next.outbox.refused
        XCTAssertEqual(refused, [])
        await next.stop()
    }

    /// Bob proposes to remove his own leaf: that is committed without a word of the service. A proposal by another
    /// person (T13) is not.
    func testT7T13ALeaverIsRemovedByHisOwnProposal() async throws {
        for (proposer, goes) in [(bobs, true), (DevicesTests.another, false)] {
            let (scene, phone) = try await scene()
            try await scene.server.propose(.init(remove: [bobs]), to: convo, by: proposer)
            let events = await phone.outbox.events()
            try await phone.sync(convo)
            if goes { for await event in events { if case .accepted = event { break } } }
            let stays = try await isIn(phone)
            XCTAssertEqual(stays, !goes)
            await phone.stop()
        }
    }

    /// The device says by MLS that it leaves, before it tells the service.
    func testT7ALeaverSaysSoByMLS() async throws {
        let (scene, phone) = try await scene()
        let left = try await phone.leave(convo)
        _ = try await phone.outbox.finished(left.id)
        let log = await scene.server.log(convo)
        XCTAssertEqual(log.map(\.isProposal), [false, false, true])
        let isLeft = try await phone.thread(convo).left
        XCTAssertEqual(isLeft, true)
        await phone.stop()
    }
}
