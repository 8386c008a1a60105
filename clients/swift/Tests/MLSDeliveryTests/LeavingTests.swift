import TestSupport
import XCTest

@testable import MLSDelivery

/// T7: nobody is removed because the service says that they have left.
final class LeavingTests: XCTestCase {
    private let convo = WrongCallsTests.convo
    private let bobs = DevicesTests.bobsPhone
    private var group: Data { WrongCallsTests.group(convo) }

    /// A phone in a group to which Bob was added, and in which he has written.
    private func scene(writes: Bool = true) async throws -> (DevicesTests.Scene, Messenger) {
        let scene = try await DevicesTests.Scene()
        try await scene.list(bobs)
        try await scene.server.commit(.init(add: [bobs]), to: convo, by: DevicesTests.another)
        if writes { await scene.server.post(Data("hello".utf8), to: convo, by: bobs.identity) }
        let phone = try await scene.open()
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

    /// Bob has never written since he was added: he need not have joined.
    func testT7WhoHasNeverWrittenIsRemoved() async throws {
        let (_, phone) = try await scene(writes: false)
        try await phone.removeIfGone(bobs.account, from: convo)
        let stays = try await isIn(phone)
        XCTAssertFalse(stays)
        await phone.stop()
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
