import TestSupport
import XCTest

@testable import MLSDelivery

/// T3 to T6: a convo is bound to one MLS group, and that goes forward.
final class BindingTests: XCTestCase {
    private let convo = WrongCallsTests.convo
    private let next = "0192f3a4-bbbb-7bbb-8ccc-000000000001"
    private let own = FakeMLS.leaf(of: ModelServer.caller, "phone")
    private let bobs = DevicesTests.bobsPhone
    private let attackers = FakeMLS.leaf(of: "did:plc:mallory")
    private var group: Data { WrongCallsTests.group(convo) }

    private struct Vector: Decodable {
        var groupId: String
        var random: String
        var successor: String
    }

    /// T6: both clients make the ids of clients/vectors.
    func testT6SuccessorVectors() throws {
        let file = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent("../../../vectors/successor.json").standardized
        let vectors = try JSONDecoder().decode([Vector].self, from: Data(contentsOf: file))
        XCTAssertEqual(vectors.count, 5)
        for vector in vectors {
            let old = bytes(ofHexadecimal: vector.groupId)
            let id = successorID(of: old, random: bytes(ofHexadecimal: vector.random))
            XCTAssertEqual(hexadecimal(id), vector.successor)
            XCTAssertTrue(isSuccessorID(id, of: old))
            XCTAssertFalse(isSuccessorID(id, of: old + [1]))
        }
    }

    private func findings(_ phone: Messenger) async throws -> [Finding.What] {
        try await phone.news().compactMap { if case .finding(let finding) = $0.content { finding.what } else { nil } }
    }

    /// A phone in a group with Bob at epoch 2, whose accounts list both.
    private func scene() async throws -> (DevicesTests.Scene, Messenger) {
        let scene = try await DevicesTests.Scene()
        for leaf in [own, bobs] { try await scene.list(leaf) }
        try await scene.server.commit(.init(add: [bobs]), to: convo, by: DevicesTests.another)
        await scene.server.commit(convo)
        let phone = try await scene.open()
        try await phone.sync(convo)
        return (scene, phone)
    }

    private func refuses(_ phone: Messenger, _ what: Finding.What, line: UInt = #line, _ call: () async throws -> Void) async throws {
        let before = try await phone.mls.members(of: group)
        do {
            try await call()
            XCTFail("it was believed", line: line)
        } catch let error as ContraryGroup { XCTAssertEqual(error.what, what, line: line) }
        let (epoch, after, thread) = try await (phone.mls.epoch(of: group), phone.mls.members(of: group), phone.thread(convo))
        XCTAssertEqual(epoch, 2, line: line)
        XCTAssertEqual(after, before, line: line)
        XCTAssertEqual(thread.groupId, group, line: line)
        let found = try await findings(phone)
        XCTAssertEqual(found.last, what, line: line)
    }

    /// T3, T4: a Welcome for a group that the device has, of another group or an old one, replaces nothing.
    func testT3T4ALiveGroupIsNotReplacedByAWelcome() async throws {
        let (scene, phone) = try await scene()
        for welcome in [
            try FakeMLS.state(Data("the server's".utf8), 1, [own, attackers]), try FakeMLS.state(group, 1, [own, bobs]),
            try FakeMLS.state(group, 9, [own, bobs, attackers]),
        ] {
            await scene.server.addWelcome(convo, welcome)
            try await refuses(phone, .welcome) { try await phone.join(convo) }
            let left = try await phone.records.read(KeptWelcome.self, KeptWelcome.prefix + convo)
            XCTAssertNil(left)
        }
        let failures = await scene.server.welcomes[convo]?.failures
        XCTAssertEqual(failures, 1) // of each one
        try await phone.start(listening: false)
        try await phone.send(Data("still here".utf8), to: convo)
        try await DevicesTests.sent(phone)
        let texts = try await scene.server.texts(convo)
        XCTAssertEqual(texts, ["still here"])
        await phone.stop()
    }

    /// A device that was removed, and is added again, joins with its new Welcome.
    func testARemovedDeviceIsWelcomedAgain() async throws {
        let (scene, phone) = try await scene()
        try await scene.server.commit(.init(remove: [own]), to: convo, by: bobs)
        try await scene.server.commit(.init(add: [own]), to: convo, by: bobs)
        try await scene.server.addWelcome(convo, FakeMLS.state(group, 4, [bobs, own]))
        try await phone.start(listening: false)
        try await phone.join(convo)
        let entered = try await phone.thread(convo).entered
        XCTAssertEqual(entered, 4)
        await phone.stop()
    }

    /// T5: a GroupInfo of another group, of an older epoch, or with a device that nobody lists, brings nobody back.
    func testT5AGroupInfoOfAnotherGroupIsRefused() async throws {
        let (scene, phone) = try await scene()
        try await phone.start(listening: false)
        for info in [
            try FakeMLS.state(Data("the server's".utf8), 5, [own, attackers]), try FakeMLS.state(group, 1, [own, bobs]),
            try FakeMLS.state(group, 3, [own, bobs, attackers]),
        ] {
            await scene.server.setGroupInfo(info, of: convo)
            try await refuses(phone, .groupInfo) { try await phone.rejoin(convo) }
        }
        await scene.server.setGroupInfo(try FakeMLS.state(group, 2, [own, bobs]), of: convo)
        try await phone.rejoin(convo)
        let epoch = try await phone.mls.epoch(of: group)
        XCTAssertEqual(epoch, 3)
        await phone.stop()
    }

    /// T6: a successor that the members have not made, or with a stranger in it. The device stays, and what waits does
    /// too, until the person wants to go there.
    func testT6AMadeUpSuccessorIsNotFollowed() async throws {
        let bound = ModelServer.successorGroup(next, of: group)
        for (made, members) in [(Data("the server's".utf8), [bobs]), (bound, [bobs, attackers]), (bound, [bobs, FakeMLS.leaf(of: bobs.identity, "the server's")])] {
            let (scene, phone) = try await scene()
            try await phone.send(Data("a secret".utf8), to: convo)
            await scene.server.reset(convo, to: next, group: made)
            try await scene.server.addWelcome(next, FakeMLS.state(made, 1, members + [own]))
            let events = await phone.events()
            try await phone.start(listening: false)
            for await event in events { if case .finding(let finding) = event { XCTAssertEqual(finding.what, .successor); break } }
            try await DevicesTests.sent(phone)
            await phone.stop()
            let (convos, texts) = try await (phone.convos(), scene.server.texts(next))
            XCTAssertFalse(convos.contains(next))
            XCTAssertEqual(texts, [])

            let later = try await scene.open(seed: 2) { _ in true } // the person has decided about its devices
            let laterEvents = await later.events()
            try await later.start(listening: false)
            try await scene.server.addWelcome(next, FakeMLS.state(made, 1, members + [own]))
            try await later.moveTo(next, from: convo)
            for await event in laterEvents { if event == .moved(convoId: convo, successor: next) { break } }
            try await DevicesTests.sent(later)
            let moved = try await scene.server.texts(next)
            XCTAssertEqual(moved, ["a secret"])
            await later.stop()
        }
    }

    /// T6: the successor that members have made is followed, without a question.
    func testT6AGenuineSuccessorIsFollowed() async throws {
        let (scene, phone) = try await scene()
        try await phone.send(Data("goes on".utf8), to: convo)
        await scene.server.reset(convo, to: next)
        try await scene.server.addWelcome(next, FakeMLS.state(ModelServer.successorGroup(next, of: group), 1, [bobs, own]))
        let events = await phone.events()
        try await phone.start(listening: false)
        for await event in events { if event == .moved(convoId: convo, successor: next) { break } }
        try await DevicesTests.sent(phone)
        let (texts, found) = try await (scene.server.texts(next), findings(phone))
        XCTAssertEqual(texts, ["goes on"])
        XCTAssertEqual(found, [])
        await phone.stop()
    }
}
