import TestSupport
import XCTest

@testable import MLSDelivery

/// A convo that is reset goes on under another id: what a device does that follows a reset, and what one does
/// that makes it. Against the model server.
final class ResetTests: XCTestCase {
    private let old = WrongCallsTests.convo
    private let next = "0192f3a4-bbbb-7bbb-8ccc-000000000001"

    private func text(_ text: String) -> Data { Data(text.utf8) }

    /// Waits until all is sent, and nothing is refused but this, and an attempt to enter a closed convo.
    private func settle(_ phone: Messenger, refused: [Int] = []) async throws {
        try await until(phone) { phone in
            let left = await (phone.outbox.refused.filter { $0.nsid != ProcessExternalCommit.nsid }.map(\.id), phone.outbox.pending.isEmpty)
            return left == (refused, true)
        }
    }

    /// Waits until the app is told that the old convo goes on, and returns where.
    private func moved(_ events: AsyncStream<MessengerEvent>) async -> String? {
        for await event in events { if case .moved(old, let successor) = event { return successor } }
        return nil
    }

    /// Starts the app again with its storage, and returns how often it is told of a successor.
    private func movesOfALaterLife(_ server: ModelServer, _ storage: MemoryStorage) async throws -> Int {
        let phone = try await WrongCallsTests.messenger(server, storage, seed: 9)
        let events = await phone.events()
        try await phone.start(listening: false)
        try await phone.sync(old)
        let write = try await phone.send(text("later"), to: WrongCallsTests.other)
        _ = try await phone.outbox.finished(write.id)
        await phone.stop()
        await phone.tell(.failed("the end"))
        var moves = 0
        for await event in events {
            if case .moved = event { moves += 1 }
            if event == .failed("the end") { break }
        }
        return moves
    }

    /// A phone in the old convo, and a server that resets it.
    private func begin(
        withWelcome: Bool = true, with others: [Leaf] = []
    ) async throws -> (ModelServer, MemoryStorage, Messenger, AsyncStream<MessengerEvent>) {
        let (server, storage) = try await WrongCallsTests.begin(with: others)
        let phone = try await WrongCallsTests.messenger(server, storage)
        if withWelcome { try await server.addWelcome(next, FakeMLS.state(ModelServer.successorGroup(next, of: WrongCallsTests.group(old)), 1)) }
        return (server, storage, phone, await phone.events())
    }

    // MARK: Following

    /// The event names the successor. The device reads the old log to its end, and joins with its Welcome.
    func testFollowsTheEvent() async throws {
        let (server, storage) = try await WrongCallsTests.begin()
        try await server.addWelcome(next, FakeMLS.state(ModelServer.successorGroup(next, of: WrongCallsTests.group(old)), 1))
        await storage.write([Name.cursor: text("0")]) // it has listened before: it does not look for convos
        let phone = try await WrongCallsTests.messenger(server, storage)
        let events = await phone.events()
        await server.post(text("the last one"), to: old)
        await server.reset(old, to: next)
        await server.emit("resetEvent", [
            "cursor": "1", "convoId": old, "by": "did:plc:bob", "reason": "forked", "epoch": 0, "seq": 2,
            "createdAt": "2026-11-22T09:30:00.123Z", "successorConvoId": next,
        ])
        try await phone.start()
        let successor = await moved(events)
        XCTAssertEqual(successor, next)
        while try await phone.inbox(old).count < 2 { await Task.yield() } // the event has begun to read it
        let contents = try await phone.inbox(old).map(\.content)
        XCTAssertEqual(contents, [.message(text("the last one")), .reset])
        let welcome = await server.welcomes[next]
        XCTAssertEqual(welcome?.consumed, true)
        let epoch = await server.epoch(next)
        XCTAssertEqual(epoch, 1, "an external commit beside the Welcome")
        await phone.stop()
        let moves = try await movesOfALaterLife(server, storage)
        XCTAssertEqual(moves, 0, "the app is told twice")
    }

    /// The device is stuck in the old log, and killed after the event, before it is in the successor: it goes on
    /// in its next life, although the event does not come again.
    func testIsKilledAfterTheEvent() async throws {
        let (server, storage, phone, _) = try await begin()
        await storage.write([Name.cursor: text("0")])
        await getStuck(server)
        await server.reset(old, to: next)
        await server.emit("resetEvent", [
            "cursor": "1", "convoId": old, "by": "did:plc:bob", "reason": "forked", "epoch": 0, "seq": 200,
            "createdAt": "2026-11-22T09:30:00.123Z", "successorConvoId": next,
        ])
        await server.loseAnswers(of: GetWelcome.nsid)
        try await phone.start()
        await server.reached(GetWelcome.nsid, times: 1)
        await phone.stop()
        await server.loseAnswers(of: nil)
        let later = try await WrongCallsTests.messenger(server, storage, seed: 2)
        let events = await later.events()
        try await later.start(listening: false)
        let successor = await moved(events)
        XCTAssertEqual(successor, next)
        await later.stop()
    }

    /// What the device cannot read hides the log's end from it.
    private func getStuck(_ server: ModelServer) async {
        await server.damage(old)
        for i in 0..<150 { await server.post(text("\(i)"), to: old) } // more than a page
    }

    /// The event is lost, and the device reads the log: its last entry names the successor.
    func testFollowsTheLog() async throws {
        let (server, _, phone, events) = try await begin()
        try await phone.start(listening: false)
        await server.reset(old, to: next)
        try await phone.sync(old)
        let successor = await moved(events)
        XCTAssertEqual(successor, next)
        try await phone.send(text("after"), to: next)
        try await settle(phone)
        let texts = try await server.texts(next)
        XCTAssertEqual(texts, ["after"])
        await phone.stop()
    }

    /// The event is lost, and the device writes: the refusal names the successor. Messages go there, in
    /// their order and once; the commit between them does not.
    func testFollowsTheRefusal() async throws {
        let (server, storage, phone, events) = try await begin()
        for i in 0..<3 { try await phone.send(text("message \(i)"), to: old, embedUri: i == 1 ? "mlsd:attachment/1" : nil) }
        let rotated = try await phone.rotate(old)
        try await phone.send(text("message 3"), to: old)
        await server.reset(old, to: next)
        try await phone.start(listening: false)
        let successor = await moved(events)
        XCTAssertEqual(successor, next)
        let commit = try XCTUnwrap(rotated)
        try await settle(phone, refused: [commit.id])
        let (texts, before) = try await (server.texts(next), server.texts(old))
        XCTAssertEqual(texts, ["message 0", "message 1", "message 2", "message 3"])
        XCTAssertEqual(before, [])
        let embedded = await server.log(next).compactMap(\.embedUri)
        XCTAssertEqual(embedded, ["mlsd:attachment/1"])
        try await phone.sync(next)
        let own = try await phone.inbox(next).map(\.content)
        XCTAssertEqual(own, [.reset] + (0..<4).map { .own(text("message \($0)")) })
        await phone.stop()
        let moves = try await movesOfALaterLife(server, storage)
        let again = try await server.texts(next)
        XCTAssertEqual(moves, 0)
        XCTAssertEqual(again.count, 4)
    }

    /// Any write tells the device of the reset, not only a message.
    func testFollowsTheRefusalOfACommit() async throws {
        let (server, _, phone, events) = try await begin()
        try await phone.rotate(old)
        await server.reset(old, to: next)
        try await phone.start(listening: false)
        let successor = await moved(events)
        XCTAssertEqual(successor, next)
        await phone.stop()
    }

    /// The event and the refusal are lost, too: the list of convos shows the successor.
    func testFollowsTheListOfConvos() async throws {
        let (server, _, phone, events) = try await begin()
        await getStuck(server)
        await server.reset(old, to: next)
        try await phone.start(listening: false)
        try await phone.catchUp()
        let successor = await moved(events)
        XCTAssertEqual(successor, next)
        await phone.stop()
    }

    /// A message that arrived before the reset, and whose answer was lost, stays in the old convo.
    func testALostAnswerStaysInTheOldConvo() async throws {
        let (server, _, phone, events) = try await begin()
        let heard = await phone.outbox.events()
        let arrived = try await phone.send(text("arrived"), to: old)
        try await phone.send(text("waits"), to: old)
        var faults = ModelServer.Faults()
        faults.lostAnswer = 1
        await server.set(faults)
        try await phone.start(listening: false)
        for await event in heard { if case .waiting(old, _, _) = event { break } }
        await server.reset(old, to: next)
        await server.set(.init())
        _ = try await phone.outbox.finished(arrived.id)
        _ = await moved(events)
        try await settle(phone)
        let (before, after) = try await (server.texts(old), server.texts(next))
        XCTAssertEqual(before, ["arrived"])
        XCTAssertEqual(after, ["waits"])
        await phone.stop()
    }

    /// A device that is not in the new group enters it by external commit, and then sends.
    func testEntersWithoutAWelcome() async throws {
        let (server, _, phone, events) = try await begin(withWelcome: false)
        try await phone.send(text("message"), to: old)
        await server.reset(old, to: next)
        try await phone.start(listening: false)
        let successor = await moved(events)
        XCTAssertEqual(successor, next)
        try await settle(phone)
        let (epoch, entered) = try await (server.epoch(next), phone.thread(next).entered)
        XCTAssertEqual([epoch, entered], [2, 2])
        let texts = try await server.texts(next)
        XCTAssertEqual(texts, ["message"])
        await phone.stop()
    }

    /// There is no way in until a member adds the device. Then what was refused is sent.
    func testIsAddedLater() async throws {
        let (server, _, phone, events) = try await begin(withWelcome: false)
        try await phone.send(text("message"), to: old)
        await server.reset(old, to: next, withGroupInfo: false)
        try await phone.start(listening: false)
        for await event in events { if event == .needsInvitation(convoId: next) { break } }
        await server.commit(next)
        try await server.addWelcome(next, FakeMLS.state(ModelServer.successorGroup(next, of: WrongCallsTests.group(old)), 2))
        await phone.stop() // the attempt is over
        try await phone.start(listening: false)
        try await phone.join(next)
        try await settle(phone)
        let texts = try await server.texts(next)
        XCTAssertEqual(texts, ["message"])
        await phone.stop()
    }

    /// A new device of the account finds both convos, and enters the open one, in which another device of the person is.
    /// The closed one, which it was never in, is no failure.
    func testANewDevice() async throws {
        let (server, storage) = (ModelServer(seed: 1), MemoryStorage())
        await server.addConvo(old)
        await server.commit(old) // it has a GroupInfo
        await server.reset(old, to: next)
        let (group, tablet) = (ModelServer.successorGroup(next, of: WrongCallsTests.group(old)), FakeMLS.leaf(of: ModelServer.caller, "tablet"))
        try await server.setGroupInfo(FakeMLS.state(group, 1, [tablet]), of: next)
        let phone = try await WrongCallsTests.messenger(server, storage)
        let events = await phone.events()
        try await phone.start(listening: false)
        try await phone.catchUp()
        for await event in events {
            if case .failed(let reason) = event { XCTFail(reason) }
            if event == .joined(convoId: next) { break }
        }
        let convos = try await phone.convos()
        XCTAssertEqual(convos, [next])
        await phone.stop()
    }

    /// The successor was reset, too, before the device came: it goes on in the last one.
    func testFollowsTwoResets() async throws {
        let (server, _, phone, events) = try await begin(withWelcome: false)
        let last = "0192f3a4-cccc-7bbb-8ccc-000000000001"
        try await phone.send(text("message"), to: old)
        await server.reset(old, to: next)
        await server.reset(next, to: last)
        try await phone.start(listening: false)
        let successor = await moved(events)
        XCTAssertEqual(successor, last)
        try await settle(phone)
        let texts = try await server.texts(last)
        XCTAssertEqual(texts, ["message"])
        await phone.stop()
    }

    /// A kill at each step between the old log's end and the first message in the successor.
    func testFollowingIsKilledAtEachStep() async throws {
        for step in 1... {
            let (server, storage) = try await WrongCallsTests.begin()
            try await server.addWelcome(next, FakeMLS.state(ModelServer.successorGroup(next, of: WrongCallsTests.group(old)), 1))
            await server.reset(old, to: next)
            let life = Life(seed: 0, at: step)
            let first = try await WrongCallsTests.messenger(server, storage, life, seed: 2)
            do {
                let events = await first.events()
                try await first.send(text("message 0"), to: old)
                try await first.start(listening: false)
                try await first.sync(old)
                for await event in events {
                    if await life.isOver { break }
                    if case .outbox(.accepted) = event { break }
                }
            } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            await first.stop()
            let killed = await life.isOver
            let second = try await WrongCallsTests.messenger(server, storage, seed: 3)
            let events = await second.events()
            let hasMoved = try await second.records.read(MLSDelivery.Thread.self, "thread/" + old)?.successor != nil
            try await second.start(listening: false)
            if try await second.records.read(MLSDelivery.Thread.self, "thread/" + old)?.resetTo == nil { try await second.sync(old) }
            if !hasMoved {
                let successor = await moved(events)
                XCTAssertEqual(successor, next, "killed at step \(step)")
            }
            try await settle(second)
            let texts = try await server.texts(next)
            // Killed in the first step: the message was never in the outbox.
            XCTAssertEqual(texts, step == 1 ? [] : ["message 0"], "killed at step \(step)")
            let epoch = await server.epoch(next)
            XCTAssertEqual(epoch, 1, "an external commit beside the Welcome, killed at step \(step)")
            await second.stop()
            if !killed { return XCTAssertGreaterThan(step, 20) }
        }
    }

    // MARK: Resetting

    /// The device makes the new group, with the members who have KeyPackages, and goes on in it.
    func testResets() async throws {
        let (server, storage, phone, events) = try await begin(withWelcome: false, with: [FakeMLS.leaf(of: "did:plc:bob")])
        await server.addMembers(["did:plc:bob", ModelServer.withoutKeyPackages], to: old)
        try await phone.start(listening: false)
        let write = try await phone.outbox.finished(phone.reset(old, because: .forked).id)
        let input = try JSONDecoder().decode(ResetConvo.Input.self, from: write.body)
        XCTAssertNotNil(input.welcomeMessage)
        XCTAssertEqual([input.reason.rawValue, input.idempotencyKey], ["forked", write.key])
        let answered = try write.answer(of: ResetConvo.self)?.convo.id
        let made = await server.successor(of: old)
        XCTAssertEqual(answered, made)
        let told = await moved(events)
        let successor = try XCTUnwrap(told)
        XCTAssertEqual(successor, made)
        try await phone.send(text("after"), to: successor)
        try await settle(phone)
        let texts = try await server.texts(successor)
        XCTAssertEqual(texts, ["after"])
        let epoch = await server.epoch(successor)
        XCTAssertEqual(epoch, 1, "the device has entered its own group by external commit")
        await phone.stop()
        let moves = try await movesOfALaterLife(server, storage)
        XCTAssertEqual(moves, 0)
    }

    /// Nobody else has a KeyPackage: the device is alone in the new group, and there is no Welcome.
    func testResetsAlone() async throws {
        let (server, _, phone, events) = try await begin(withWelcome: false)
        try await phone.start(listening: false)
        let write = try await phone.outbox.finished(phone.reset(old, because: .undecryptable).id)
        let input = try JSONDecoder().decode(ResetConvo.Input.self, from: write.body)
        XCTAssertNil(input.welcomeMessage)
        let told = await moved(events)
        let successor = try XCTUnwrap(told)
        let epoch = await server.epoch(successor)
        XCTAssertEqual(epoch, 0)
        await phone.stop()
    }

    /// The answer is lost: the repetition has the same key, and gets the first answer. In the meantime the
    /// device learns of the successor by the log, and waits for its answer.
    func testALostAnswerOfAReset() async throws {
        let (server, _, phone, events) = try await begin(withWelcome: false, with: [FakeMLS.leaf(of: "did:plc:bob")])
        await server.addMembers(["did:plc:bob"], to: old)
        let write = try await phone.reset(old, because: .forked)
        let heard = await phone.outbox.events()
        var faults = ModelServer.Faults()
        faults.lostAnswer = 1
        await server.set(faults)
        try await phone.start(listening: false)
        for await event in heard { if case .waiting(write.lane, _, _) = event { break } }
        let made = await server.successor(of: old)
        await server.loseAnswers(of: ResetConvo.nsid)
        await server.set(.init())
        try await phone.sync(old)
        await server.reached(GetConvo.nsid, times: 2) // once by the call, and once to see whose the successor is
        await server.loseAnswers(of: nil)
        let done = try await phone.outbox.finished(write.id)
        let answered = try done.answer(of: ResetConvo.self)?.convo.id
        XCTAssertEqual(answered, made)
        let successor = await moved(events)
        XCTAssertEqual(successor, made)
        let epoch = await server.epoch(made ?? "")
        XCTAssertEqual(epoch, 1, "the device has entered its own group by external commit")
        await phone.stop()
    }

    /// Two calls make one reset, before the answer and after a restart; a call after it makes none.
    func testARepeatedReset() async throws {
        let (server, storage, phone, _) = try await begin(withWelcome: false, with: [FakeMLS.leaf(of: "did:plc:bob")])
        await server.addMembers(["did:plc:bob"], to: old)
        async let one = phone.reset(WrongCallsTests.convo, because: .forked)
        async let two = phone.reset(WrongCallsTests.convo, because: .forked)
        let ids = try await [one.id, two.id]
        XCTAssertEqual(ids[0], ids[1])
        await phone.stop()
        let later = try await WrongCallsTests.messenger(server, storage, seed: 2)
        let events = await later.events()
        let again = try await later.reset(old, because: .other)
        XCTAssertEqual(again.id, ids[0])
        let claims = await server.claims
        try await later.start(listening: false)
        _ = try await later.outbox.finished(again.id)
        let successor = await moved(events)
        let made = await server.successor(of: old)
        XCTAssertEqual(successor, made)
        do {
            try await later.reset(old, because: .forked)
            XCTFail("a second reset")
        } catch let error as MessengerError { XCTAssertEqual(error, .moved(convoId: old, successor: made ?? "")) }
        let after = await server.claims
        XCTAssertEqual(after, claims, "KeyPackages were claimed for nothing")
        await later.stop()
    }

    /// Another member was faster: the device discards its group, and joins the other one.
    func testALostRace() async throws {
        let (server, _, phone, events) = try await begin(with: [FakeMLS.leaf(of: "did:plc:bob")])
        await server.addMembers(["did:plc:bob"], to: old)
        let write = try await phone.reset(old, because: .forked)
        try await phone.send(text("message"), to: old)
        await server.reset(old, to: next)
        try await phone.start(listening: false)
        let done = try await phone.outbox.finished(write.id)
        XCTAssertEqual(WrongCallsTests.refusal(done)?.name, .convoClosed)
        let successor = await moved(events)
        XCTAssertEqual(successor, next)
        try await settle(phone, refused: [write.id])
        let texts = try await server.texts(next)
        XCTAssertEqual(texts, ["message"])
        try await phone.mls.confirm(groupID: write.note) // nothing is staged any more
        let epoch = try await phone.mls.epoch(of: write.note)
        XCTAssertEqual(epoch, 0)
        await phone.stop()
    }

    /// A kill at each step of a reset: there is one successor, and the device is in it with its own group.
    func testResetIsKilledAtEachStep() async throws {
        for step in 1... {
            let (server, storage) = try await WrongCallsTests.begin(with: [FakeMLS.leaf(of: "did:plc:bob")])
            await server.addMembers(["did:plc:bob"], to: old)
            let life = Life(seed: 0, at: step)
            let first = try await WrongCallsTests.messenger(server, storage, life, seed: 2)
            do {
                let events = await first.events()
                try await first.start(listening: false)
                try await first.reset(old, because: .forked)
                for await event in events {
                    if await life.isOver { break }
                    if case .moved = event { break }
                }
            } catch { let over = await life.isOver; XCTAssertTrue(over, "\(error)") }
            await first.stop()
            let killed = await life.isOver
            let second = try await WrongCallsTests.messenger(server, storage, seed: 3)
            let events = await second.events()
            let before = try await second.thread(old)
            if await server.successor(of: old) == nil || before.resetTo == nil { try await resetAgain(second) }
            try await second.start(listening: false)
            if before.successor == nil {
                let successor = await moved(events)
                let made = await server.successor(of: old)
                XCTAssertEqual(successor, made, "killed at step \(step)")
            }
            let made = await server.successor(of: old) ?? ""
            let epochs = try await [server.epoch(made), second.mls.epoch(of: second.thread(made).groupId)]
            XCTAssertEqual(epochs, [1, 1], "killed at step \(step)")
            await second.stop()
            if !killed { return XCTAssertGreaterThan(step, 10) }
        }
    }

    /// What a person does who does not know whether the reset took place.
    private func resetAgain(_ phone: Messenger) async throws {
        do { try await phone.reset(old, because: .forked) } catch MessengerError.moved {}
    }

    /// Waits until something is true of the outbox, which says what happens in it.
    private func until(_ phone: Messenger, _ isTrue: (Messenger) async throws -> Bool) async throws {
        let events = await phone.outbox.events()
        if try await isTrue(phone) { return }
        for await _ in events { if try await isTrue(phone) { return } }
    }
}
