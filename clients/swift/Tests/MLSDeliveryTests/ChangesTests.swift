import TestSupport
import XCTest

@testable import MLSDelivery

/// D6: an entry of a commit says what the commit did. D13: what was sent before the own removal is read.
final class ChangesTests: XCTestCase {
    private let convo = WrongCallsTests.convo
    private let (alice, bob, carol) = (DevicesTests.alice, DevicesTests.bob, DevicesTests.carol)
    private let bobsPhone = DevicesTests.bobsPhone
    private let own = FakeMLS.leaf(of: ModelServer.caller, "phone")

    private func device(_ leaf: Leaf) -> CommitChange.Device { CommitChange.Device(leaf) }

    private func changes(_ phone: Messenger) async throws -> [CommitChange?] {
        try await phone.inbox(convo).filter { $0.content == .commit }.map(\.change)
    }

    /// D6: one evening in a group: Bob adds Carol, gets a tablet, changes the key of his phone, and removes Carol; and the
    /// device's own commit. Before, each was a bare commit. It is the same after a restart.
    func testD6CommitsSayWhatTheyDid() async throws {
        let (carols, tablet, newPhone) = (FakeMLS.leaf(of: carol.rawValue), FakeMLS.leaf(of: bob.rawValue, "tablet"), FakeMLS.leaf(of: bob.rawValue, "new"))
        let (server, storage) = try await WrongCallsTests.begin(with: [bobsPhone])
        try await server.commit(.init(add: [carols]), to: convo, by: bobsPhone)
        try await server.commit(.init(enters: tablet), to: convo, by: tablet)
        try await server.commit(.init(add: [newPhone], remove: [bobsPhone]), to: convo, by: tablet)
        try await server.commit(.init(remove: [carols]), to: convo, by: newPhone, named: carol.rawValue)
        let first = try await WrongCallsTests.messenger(server, storage)
        try await first.sync(convo)
        let wanted: [CommitChange?] = [
            CommitChange(by: device(bobsPhone), added: [carol], removed: [], devices: [.init(change: .entered, device: device(carols))]),
            CommitChange(by: device(tablet), added: [], removed: [], devices: [.init(change: .entered, device: device(tablet))]),
            CommitChange(by: device(tablet), added: [], removed: [], devices: [.init(change: .keyChanged, device: device(newPhone))]),
            CommitChange(by: device(newPhone), added: [], removed: [carol], devices: [.init(change: .left, device: device(carols))]),
        ]
        let read = try await changes(first)
        XCTAssertEqual(read, wanted)
        try await first.start(listening: false)
        let write = try await first.remove(bob, from: convo)
        _ = try await first.outbox.finished(XCTUnwrap(write).id)
        await first.stop() // a kill before it is read

        let second = try await WrongCallsTests.messenger(server, storage, seed: 2)
        try await second.sync(convo)
        let all = try await changes(second)
        XCTAssertEqual(Array(all.dropLast()), wanted)
        let last = try XCTUnwrap(all.last ?? nil)
        XCTAssertEqual(last.by, device(own))
        XCTAssertEqual(last.removed, [bob])
        XCTAssertEqual(Set(last.devices), Set([tablet, newPhone].map { .init(change: .left, device: device($0)) }))
        let left = await second.records.names("change/")
        XCTAssertEqual(left, [])
        XCTAssertEqual(last.by.deviceId, hexadecimal(sha256(own.signatureKey)))
    }

    /// D13: Alice is removed while her phone is away: it reads what was sent before, and that it is out.
    func testD13WhatWasSentBeforeTheRemovalIsRead() async throws {
        let (server, storage) = try await WrongCallsTests.begin(with: [bobsPhone])
        await server.post(Data("before".utf8), to: convo, by: bob.rawValue)
        try await server.removeCaller(own, from: convo, by: bobsPhone)
        await server.post(Data("after".utf8), to: convo, by: bob.rawValue)
        let phone = try await WrongCallsTests.messenger(server, storage)
        try await phone.start(listening: false)
        try await phone.catchUp()
        while try await phone.inbox(convo).count < 2 { await Task.yield() }
        let contents = try await phone.inbox(convo).map(\.content)
        XCTAssertEqual(contents, [.message(Data("before".utf8)), .commit])
        let removed = try await changes(phone).map { $0?.removed }
        XCTAssertEqual(removed, [[alice]])
        let isOut = try await phone.thread(convo).left
        XCTAssertEqual(isOut, true)
        await phone.stop()
    }
}
