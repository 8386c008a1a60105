import TestSupport
import XCTest

@testable import MLSDelivery

/// D4: nobody enters a convo unasked.
final class RequestsTests: XCTestCase {
    private let convo = WrongCallsTests.convo
    private let bob = DevicesTests.bob

    /// A convo to which Bob, who shares no convo with Alice, has invited her.
    private func begin() async throws -> (ModelServer, MemoryStorage) {
        let (server, storage) = (ModelServer(seed: 1), MemoryStorage())
        await server.addConvo(convo)
        await server.addMembers([bob.rawValue], to: convo)
        await server.commit(convo)
        try await server.addWelcome(convo, FakeMLS.state(WrongCallsTests.group(convo), 1))
        await server.request(convo, by: bob.rawValue)
        return (server, storage)
    }

    private func joins(_ phone: Messenger, _ call: () async throws -> Void) async throws {
        let events = await phone.events()
        try await call()
        for await event in events { if event == .joined(convoId: convo) { return } }
    }

    private func untouched(_ server: ModelServer) async {
        let welcome = await server.welcomes[convo]
        XCTAssertEqual([welcome?.fetched, welcome?.failures], [0, 0])
        XCTAssertEqual(welcome?.consumed, false)
    }

    private func heard(_ phone: Messenger) async throws -> [ConvoRequest] {
        try await phone.news().compactMap { if case .request(let request) = $0.content { request } else { nil } }
    }

    /// D4: a request is listed, and told once over restarts. Nothing is fetched until the person accepts; then the device
    /// joins by itself. Before, there was no list, each look told the app again, a kill lost the event, and `join` entered
    /// unasked.
    func testD4ARequestWaitsForItsPerson() async throws {
        let (server, storage) = try await begin()
        let first = try await WrongCallsTests.messenger(server, storage)
        for _ in 0..<2 { try await first.catchUp() }
        let wanted = ConvoRequest(
            convoId: convo, invitedBy: bob, people: [DID(ModelServer.caller), bob], name: nil, since: Timestamp(rawValue: "2026-11-22T09:30:00.123Z")
        )
        let (requests, told) = try await (first.requests(), heard(first))
        XCTAssertEqual(requests, [wanted])
        XCTAssertEqual(told, [wanted])
        do {
            try await first.join(convo)
            XCTFail("it has entered unasked")
        } catch { XCTAssertEqual(error as? MessengerError, .waitsForAnswer(convoId: convo)) }
        await untouched(server)
        await first.stop() // a kill: the app has not said that it has heard it

        let second = try await WrongCallsTests.messenger(server, storage, seed: 2)
        let events = await second.events()
        try await second.start(listening: false)
        for await event in events { if event == .request(wanted) { break } }
        try await second.heard(second.news())
        try await second.catchUp()
        let again = try await heard(second)
        XCTAssertEqual(again, [])
        await untouched(server)
        try await joins(second) { try await second.accept(convo) }
        let (left, convos) = try await (second.requests(), second.convos())
        XCTAssertEqual(left, [])
        XCTAssertEqual(convos, [convo])
        let consumed = await server.welcomes[convo]?.consumed
        XCTAssertEqual(consumed, true)
        await second.stop()
    }

    /// D4: the app is killed at each step of accepting, and the device joins.
    func testD4AcceptingKilledAtEachStep() async throws {
        for step in 1... {
            let (server, storage) = try await begin()
            let looking = try await WrongCallsTests.messenger(server, storage)
            try await looking.catchUp()
            await looking.stop()
            let life = Life(seed: 0, at: step)
            let first = try await WrongCallsTests.messenger(server, storage, life, seed: 2)
            let events = await first.events()
            do {
                try await first.start(listening: false)
                try await first.accept(convo)
                for await event in events {
                    let over = await life.isOver
                    if over || event == .joined(convoId: convo) { break }
                }
            } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            await first.stop()
            let killed = await life.isOver
            let second = try await WrongCallsTests.messenger(server, storage, seed: 3)
            try await second.start(listening: false)
            if try await second.requests().isEmpty == false { try await second.accept(convo) } // the kill came before it was stored
            while try await second.request(of: convo) != nil { await Task.yield() }
            let convos = try await second.convos()
            XCTAssertEqual(convos, [convo], "killed at step \(step)")
            await second.stop()
            if !killed { return XCTAssertGreaterThan(step, 6) }
        }
    }

    /// D4: a request is declined, and who has invited is blocked. It ends at once, and does not come back.
    func testD4ARequestIsDeclined() async throws {
        let (server, storage) = try await begin()
        let phone = try await WrongCallsTests.messenger(server, storage)
        try await phone.start(listening: false)
        try await phone.catchUp()
        try await phone.decline(convo, block: true)
        let requests = try await phone.requests()
        XCTAssertEqual(requests, [])
        try await DevicesTests.sent(phone)
        await untouched(server)
        let isMember = await server.hasCaller(convo)
        XCTAssertFalse(isMember)
        let (blocks, told) = try await (phone.blocks(), heard(phone))
        XCTAssertEqual(blocks, [bob])
        XCTAssertEqual(told, [])
        do {
            try await phone.decline(convo)
            XCTFail("declined twice")
        } catch { XCTAssertEqual(error as? MessengerError, .unknownConvo(convo)) }
        await phone.stop()
    }

    /// D4: another device of the person accepts: this one joins, and the request is gone.
    func testD4AnotherDeviceAccepts() async throws {
        let (server, storage) = try await begin()
        let phone = try await WrongCallsTests.messenger(server, storage)
        try await phone.start(listening: false)
        try await phone.catchUp()
        await server.accept(convo)
        try await joins(phone) { try await phone.catchUp() }
        let (requests, told) = try await (phone.requests(), heard(phone))
        XCTAssertEqual(requests, [])
        XCTAssertEqual(told, [])
        await phone.stop()
    }

    /// D4: a request that has ended at the service is gone, as when its inviter is blocked.
    func testD4ARequestEnds() async throws {
        let (server, storage) = try await begin()
        let phone = try await WrongCallsTests.messenger(server, storage)
        try await phone.catchUp()
        try await phone.block(bob)
        let blocked = try await phone.requests()
        XCTAssertEqual(blocked, [])
        try await phone.catchUp()
        await server.lose(convo)
        try await phone.catchUp()
        let requests = try await phone.requests()
        XCTAssertEqual(requests, [])
        await phone.stop()
    }

    func testD4PolicyAndBlocks() async throws {
        let (server, storage) = try await begin()
        let phone = try await WrongCallsTests.messenger(server, storage)
        let before = try await phone.invitationPolicy()
        XCTAssertEqual(before, .everyone)
        try await phone.setInvitationPolicy(.shared)
        let after = try await phone.invitationPolicy()
        XCTAssertEqual(after, .shared)
        try await phone.block(bob)
        let blocks = try await phone.blocks()
        XCTAssertEqual(blocks, [bob])
        try await phone.unblock(bob)
        let none = try await phone.blocks()
        XCTAssertEqual(none, [])
        do {
            try await phone.block(WrongCallsTests.nobody)
            XCTFail("nobody was blocked")
        } catch { XCTAssertTrue(error is InvalidInput, "\(error)") }
        await phone.stop()
    }
}
