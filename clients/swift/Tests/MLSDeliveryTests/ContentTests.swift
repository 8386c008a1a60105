import TestSupport
import XCTest

@testable import MLSDelivery

/// The content of messages, and what people see of it.
final class ContentTests: XCTestCase {
    private struct Vectors: Decodable {
        struct Named: Decodable {
            var name: String
            var bytes: Data
            var content: Node?
        }
        struct Plain: Decodable {
            var bytes: Data
            var text: String
        }
        struct Said: Decodable {
            var seq: Int
            var sender: DID
            var createdAt: Timestamp
            var messageId: String
            var from: DID?
            var bytes: Data

            var item: Transcript.Item? {
                if HistoryMessage.isHistory(Data(count: 16) + bytes) { return nil }
                return Transcript.Item(
                    seq: seq, name: Content.Name(id: messageId, author: sender), createdAt: createdAt, content: Content(bytes), from: from
                )
            }
        }
        struct Conversation: Decodable {
            var name: String
            var entries: [Said]
            var messages: [Node]
        }
        var contents: [Named]
        var texts: [Plain]
        var broken: [Named]
        var transcripts: [Conversation]
    }

    private func vectors() throws -> Vectors {
        let file = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent("../../../vectors/content.json").standardized
        return try JSONDecoder().decode(Vectors.self, from: Data(contentsOf: file))
    }

    /// Both clients read and write the contents of clients/vectors alike.
    func testVectors() throws {
        let vectors = try vectors()
        XCTAssertGreaterThanOrEqual(vectors.contents.count, 11)
        for vector in vectors.contents {
            XCTAssertEqual(try Node(cbor: vector.bytes), vector.content, vector.name)
            let content = try XCTUnwrap(Content(vector.bytes), vector.name)
            XCTAssertEqual(try content.encoded(), vector.bytes, vector.name)
        }
        for vector in vectors.texts { XCTAssertEqual(Content(vector.bytes), Content(.text(.init(vector.text)))) }
        for vector in vectors.broken { XCTAssertNil(Content(vector.bytes), vector.name) }
    }

    /// Both clients show the same of the conversations of clients/vectors.
    func testTranscripts() throws {
        let vectors = try vectors()
        XCTAssertGreaterThanOrEqual(vectors.transcripts.count, 13)
        for vector in vectors.transcripts {
            var transcript = Transcript()
            transcript.add(vector.entries.compactMap(\.item))
            XCTAssertEqual(try transcript.messages().map(Self.node), vector.messages, vector.name)
        }
    }

    /// A message as the vectors have it.
    private static func node(_ message: ShownMessage) throws -> Node {
        var fields: [String: Node] = [
            "seq": .integer(Int64(message.seq)), "id": .text(message.name.id), "author": .text(message.name.author.rawValue),
            "createdAt": .text(message.createdAt.rawValue), "state": .text(message.state.rawValue),
            "reactions": .array(message.reactions.map { .map(["emoji": .text($0.emoji), "by": .array($0.by.map { .text($0.rawValue) })]) }),
        ]
        if let from = message.from { fields["from"] = .text(from.rawValue) }
        if let replyTo = message.replyTo { fields["replyTo"] = try Node(replyTo) }
        if let edited = message.edited { fields["edited"] = .map(["at": .text(edited.at.rawValue), "first": .text(edited.first)]) }
        if let body = message.body, case .map(let content) = try Node(cbor: Content(body).encoded()) { fields["body"] = content["body"] }
        return .map(fields)
    }

    /// All devices show the same, in whatever order they read, and however often.
    func testOrder() throws {
        let people = ["alice", "bob", "carol"].map { DID("did:web:\($0).example.com") }
        for seed in 1...200 {
            var random = Random(seed: UInt64(seed))
            let id = { (n: Int) in String(format: "%032x", n) }
            let items = (1...40).map { seq -> Transcript.Item in
                let name = Content.Name(id: id(Int.random(in: 1...14, using: &random)), author: people.randomElement(using: &random)!)
                let sender = people.randomElement(using: &random)!
                let body: Content.Body
                switch Int.random(in: 0..<7, using: &random) {
                case 0: body = .edit(.init(name.id, .init("edit \(seq)")))
                case 1: body = .deletion(.init(name.id))
                case 2, 3: body = .reaction(.init("👍", to: name, removed: Bool.random(using: &random)))
                default: body = .text(.init("text \(seq)"))
                }
                let from = Int.random(in: 0..<5, using: &random) == 0 ? people[2] : nil
                let own = Content.Name(id: Int.random(in: 0..<4, using: &random) == 0 ? name.id : id(seq), author: sender)
                return Transcript.Item(seq: seq, name: own, createdAt: Timestamp(rawValue: "2026-01-01T00:00:00.000Z"), content: Content(body), from: from)
            }
            var wanted = Transcript()
            wanted.add(items)
            var other = Transcript()
            other.add((items + items.filter { _ in Bool.random(using: &random) }).shuffled(using: &random))
            XCTAssertEqual(other.messages(), wanted.messages(), "seed \(seed)")
        }
    }

    /// Damaged bytes are a content or none.
    func testDamaged() throws {
        let good = try vectors().contents.map(\.bytes)
        var random = Random(seed: 7)
        for _ in 0..<20_000 {
            var bytes = good.randomElement(using: &random)!
            for _ in 0..<Int.random(in: 0..<4, using: &random) { bytes[Int.random(in: 0..<bytes.count, using: &random)] = UInt8.random(in: 0...255, using: &random) }
            bytes = bytes.prefix(Int.random(in: 1...400, using: &random))
            if let content = Content(Data(bytes)) { XCTAssertNotNil(Content(try content.encoded())) }
        }
    }

    func testWrongContents() throws {
        let bob = Content.Name(id: String(repeating: "0", count: 32), author: DID("did:web:bob.example.com"))
        for (content, field) in [
            (Content(.text(.init(""))), "body.text"), (Content(.text(.init(String(repeating: "a", count: 20_001)))), "body.text"),
            (Content(.reaction(.init("👍👍", to: bob))), "body.emoji"), (Content(.receipt(.init(read: 0))), "body.read"),
            (Content(.text(.init("a")), replyTo: .init(id: "1", author: bob.author)), "replyTo.id"),
        ] {
            XCTAssertThrowsError(try content.encoded()) { XCTAssertEqual(($0 as? InvalidInput)?.field, field) }
        }
        XCTAssertThrowsError(try Content(.text(.init("a"))).message(id: Data([1])))
        let id = Data(repeating: 7, count: 16)
        XCTAssertEqual(try Content(.text(.init("a"))).message(id: id).prefix(16), id)
    }
}
