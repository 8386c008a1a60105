import XCTest

@testable import MLSDelivery

final class CodingTests: XCTestCase {
    func decode<T: Decodable>(_ type: T.Type, _ json: String) throws -> T { try JSONDecoder().decode(type, from: Data(json.utf8)) }

    /// The service answers unpadded; other servers pad.
    func testBytesPaddedOrNot() throws {
        for text in ["AAECAw", "AAECAw=="] {
            XCTAssertEqual(try decode(Bytes.self, #"{"$bytes":"\#(text)"}"#).data, Data([0, 1, 2, 3]))
        }
        XCTAssertEqual(String(decoding: try encoded(Bytes(Data([255]))), as: UTF8.self), #"{"$bytes":"/w=="}"#)
        for text in ["-_8", "+/8=", "-_8="] {
            XCTAssertEqual(try decode(Base64Text.self, "\"\(text)\"").data, Data([251, 255]))
        }
        XCTAssertThrowsError(try decode(Bytes.self, #"{"$bytes":"?"}"#))
        XCTAssertThrowsError(try decode(Bytes.self, #"{"bytes":""}"#))
    }

    func testUnknownFieldsAndValues() throws {
        let view = try decode(
            Defs.MessageView.self,
            #"{"id":"m","convoId":"c","sender":"did:plc:a","ciphertext":{"$bytes":"AA","new":1},"epoch":1,"seq":2,"createdAt":"2026-11-22T09:30:00.123Z","messageType":"poll","later":{"x":[]}}"#
        )
        XCTAssertEqual(view.messageType?.rawValue, "poll")
        XCTAssertEqual(view.createdAt.date, Date(timeIntervalSince1970: 1_795_339_800.123))
        guard case .unknown(let name, _) = try StreamConvoEvents.Event(name: "pollEvent", data: Data("{}".utf8)) else { return XCTFail() }
        XCTAssertEqual(name, "pollEvent")
    }

    func testInputsHaveOneForm() throws {
        let input = UpdateCursor.Input(convoId: "c/d", seq: 7)
        XCTAssertEqual(String(decoding: try encoded(input), as: UTF8.self), #"{"convoId":"c/d","seq":7}"#)
        XCTAssertEqual(String(decoding: try encoded(NoBody()), as: UTF8.self), "{}")
        let parameters = GetKeyPackages.Parameters(dids: [DID("did:plc:a"), DID("did:plc:b")], convoId: "c", idempotencyKey: nil)
        XCTAssertEqual(parameters.items.map { $0.name + "=" + ($0.value ?? "") }.sorted(), ["convoId=c", "dids=did:plc:a", "dids=did:plc:b"])
    }

    /// Every input that takes a key has a new one from the start: the same input sent again is the
    /// same request.
    func testInputsHaveAKeyByDefault() throws {
        let keys = [
            BlockActor.Input(did: DID("did:plc:a")).idempotencyKey, LeaveConvo.Input(convoId: "c").idempotencyKey,
            GetKeyPackages.Parameters(dids: []).idempotencyKey, GetKeyPackages.Parameters(dids: []).idempotencyKey,
        ].compactMap { $0 }
        XCTAssertEqual(Set(keys).count, 4)
        XCTAssertNotNil(UUID(uuidString: keys[0]))
        let without = BlockActor.Input(did: DID("did:plc:a"), idempotencyKey: nil)
        XCTAssertNotNil(withIdempotencyKey(without).idempotencyKey)
        XCTAssertEqual(withIdempotencyKey(LeaveConvo.Input(convoId: "c", idempotencyKey: "mine")).idempotencyKey, "mine")
        let folder = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent("../../Sources/MLSDelivery/Generated")
        for name in try FileManager.default.contentsOfDirectory(atPath: folder.path) {
            let text = try String(contentsOf: folder.appendingPathComponent(name), encoding: .utf8)
            XCTAssertFalse(text.contains("idempotencyKey: String? = nil"), name)
        }
    }

    /// What the lexicon does not allow, and what is said of it: what was got, and what is wanted.
    func testChecks() {
        func complaint(_ input: some Checked) -> String? {
            do { try input.check() } catch { return "\(error)" }
            return nil
        }
        let did = DID("did:plc:a")
        XCTAssertNil(complaint(CreateConvo.Input(cipherSuite: "s", groupId: "00", initialMembers: [did], metadata: .init(name: String(repeating: "é", count: 64)))))
        XCTAssertEqual(
            complaint(CreateConvo.Input(cipherSuite: "s", groupId: "00", metadata: .init(name: String(repeating: "é", count: 65)))),
            "metadata.name has 130 bytes of UTF-8, and must have at most 128"
        )
        XCTAssertEqual(
            complaint(CreateConvo.Input(cipherSuite: "s", groupId: "00", initialMembers: [did, DID("alice.test")])),
            #"initialMembers[1] is "alice.test", and must be a DID, such as did:plc:…"#
        )
        XCTAssertEqual(complaint(AddMembers.Input(convoId: "c", didList: [])), "didList has 0 elements, and must have at least 1")
        XCTAssertEqual(complaint(GetMessages.Parameters(convoId: "c", limit: 101)), "limit is 101, and must be at most 100")
        XCTAssertEqual(complaint(BlockActor.Input(did: did, idempotencyKey: "")), "idempotencyKey has 0 bytes of UTF-8, and must have at least 1")
        XCTAssertEqual(complaint(SendSignal.Input(convoId: "c", payload: Bytes(Data(count: 1025)))), "payload has 1025 bytes, and must have at most 1024")
        let item = PublishKeyPackages.Item(cipherSuite: "s", keyPackage: Base64Text(Data(count: 1)))
        XCTAssertEqual(complaint(PublishKeyPackages.Input(keyPackages: Array(repeating: item, count: 101))), "keyPackages has 101 elements, and must have at most 100")
        XCTAssertEqual(complaint(WithdrawKeyPackages.Input(deviceId: "d", keyPackageRefs: [""])), "keyPackageRefs[0] has 0 bytes of UTF-8, and must have at least 1")
        for good in ["did:plc:a", "did:web:a.example%3A8080", "did:erased:1", "did:x:a:b", "did:x:_"] { XCTAssertNil(complaint(DID(good)), good) }
        for bad in ["", "did:plc:", "did:plc:a:", "did:PLC:a", "did:plc:a b", "did:plc:a\n", "did:plc:a#k", "xdid:plc:a", "did:plc:" + String(repeating: "a", count: 2048)] {
            XCTAssertNotNil(complaint(DID(bad)), bad)
        }
        func uri(_ text: String) -> String? {
            complaint(SendMessage.Input(ciphertext: Bytes(Data()), convoId: "c", epoch: 0, senderDid: did, embedUri: text))
        }
        for good in ["https://a", "mlsd:attachment/0", "at://did:plc:a/x/y"] { XCTAssertNil(uri(good), good) }
        for bad in ["not a:uri", "a", "A:b", "a:", "a:b c", "a:b\n", "a:" + String(repeating: "b", count: 8192)] { XCTAssertNotNil(uri(bad), bad) }
    }

    func testErrors() {
        func error(_ status: Int, _ body: String, _ headers: [String: String] = [:]) -> ServiceError {
            ServiceError(Answer(status: status, headers: headers, body: Data(body.utf8)))
        }
        let stale = error(409, #"{"error":"EpochMismatch","message":"epoch 6 is stale; currentEpoch=7"}"#)
        XCTAssertEqual(stale.currentEpoch, 7)
        let quota = error(429, #"{"error":"QuotaExceeded","message":"quota messages is used up: 5 of 5; resets at 2026-11-22T00:00:00Z"}"#, ["retry-after": "9"])
        XCTAssertEqual(quota.resetsAt, Date(timeIntervalSince1970: 1_795_305_600))
        XCTAssertEqual(quota.retryAfter, 9)
        XCTAssertEqual(error(502, "<html>").name.rawValue, "")
    }

    func testDigest() {
        // FIPS 180-4's examples, and lengths around a block's end.
        XCTAssertEqual(hexadecimal(sha256(Data("abc".utf8))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        XCTAssertEqual(hexadecimal(sha256(Data())), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
        XCTAssertEqual(
            hexadecimal(sha256(Data("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq".utf8))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        )
        XCTAssertEqual(hexadecimal(sha256(Data(count: 64))), "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b")
    }

    func testServerSentEvents() {
        var parser = EventParser()
        let text = ": keep-alive\n\nid: 7\r\nevent: messageEvent\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nretry: 250\n\nevent: x\ndata: é\n\n"
        var got: [String] = []
        for byte in Data(text.utf8) { // a piece can end anywhere
            got += parser.take(Data([byte])).map { "\($0.id ?? "-") \($0.name) \(String(decoding: $0.data, as: UTF8.self))" }
        }
        XCTAssertEqual(got, ["7 messageEvent {\"a\":\n1}", "- x é"])
        XCTAssertEqual(parser.retry, 250)
    }
}
