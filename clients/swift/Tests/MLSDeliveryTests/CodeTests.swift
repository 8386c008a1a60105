import TestSupport
import XCTest

@testable import MLSDelivery

/// Safety numbers and group codes.
final class CodeTests: XCTestCase {
    private static let alice = DID("did:plc:ewvi7nxzyoun6zhxrhs64oiz")
    private static let bob = DID("did:web:bob.example.com")

    private static func key(_ n: UInt8, _ count: Int = 32) -> Data { Data((0..<count).map { i -> UInt8 in UInt8(truncatingIfNeeded: i &* 7) ^ n }) }

    private static func number(_ own: [Data], _ other: [Data], with did: DID = bob) throws -> SafetyNumber {
        try SafetyNumber(ownDID: alice, ownKeys: own, otherDID: did, otherKeys: other)
    }

    /// The codes of clients/vectors.
    private struct Vectors: Decodable {
        struct Person: Decodable {
            var did: DID
            var keys: [Data]
        }
        struct Number: Decodable {
            var own: Person
            var other: Person
            var version: Int
            var digits: String
            var text: String
        }
        struct Code: Decodable {
            var epoch: Int
            var authenticator: Data
            var version: Int
            var digits: String
        }
        var safetyNumbers: [Number]
        var groupCodes: [Code]
    }

    /// Both clients make the codes of clients/vectors, for both persons and in every order of keys.
    func testVectors() throws {
        let file = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent("../../../vectors/codes.json").standardized
        let vectors = try JSONDecoder().decode(Vectors.self, from: Data(contentsOf: file))
        XCTAssertGreaterThanOrEqual(vectors.safetyNumbers.count, 12)
        XCTAssertGreaterThanOrEqual(vectors.groupCodes.count, 4)
        for vector in vectors.safetyNumbers {
            let (own, other) = (vector.own, vector.other)
            let number = try SafetyNumber(ownDID: own.did, ownKeys: own.keys, otherDID: other.did, otherKeys: other.keys)
            XCTAssertEqual(number.version, vector.version)
            XCTAssertEqual(number.digits, vector.digits)
            XCTAssertEqual(number.text, vector.text)
            XCTAssertEqual(try SafetyNumber(text: vector.text), number)
            let turned = try SafetyNumber(ownDID: other.did, ownKeys: other.keys.reversed(), otherDID: own.did, otherKeys: own.keys.reversed())
            XCTAssertEqual(turned, number)
        }
        for vector in vectors.groupCodes {
            let code = try GroupCode(epoch: vector.epoch, authenticator: vector.authenticator)
            XCTAssertEqual(code.version, vector.version)
            XCTAssertEqual(code.epoch, vector.epoch)
            XCTAssertEqual(code.digits, vector.digits)
        }
    }

    /// PBKDF2 with HMAC-SHA-512 agrees with a known answer.
    func testDerivation() throws {
        let bytes = try pbkdf2(password: "password", salt: [UInt8]("salt".utf8), iterations: 4096, bytes: 32)
        XCTAssertEqual(hexadecimal(Data(bytes)), "d197b1b33db0143e018b12f3d1d1479e6cdebdcc97c5c0f87f6902e072f457b5")
    }

    /// Another key, one key more or another DID makes another number.
    func testDifferent() throws {
        let (one, two, three) = (Self.key(1), Self.key(2), Self.key(3))
        let numbers = try [
            Self.number([one], [two]), Self.number([one], [three]), Self.number([one, three], [two]),
            Self.number([one], [two], with: DID("did:web:carol.example.com")), Self.number([two], [one]),
        ]
        XCTAssertEqual(Set(numbers.map(\.digits)).count, numbers.count)
        XCTAssertEqual(numbers.map(\.digits.count), numbers.map { _ in 60 })
    }

    /// What has no safety number says why.
    func testProblems() throws {
        let key = Self.key(1)
        XCTAssertThrowsError(try Self.number([], [key])) { XCTAssertEqual($0 as? CodeError, .noKeys(Self.alice)) }
        XCTAssertThrowsError(try Self.number([key], [])) { XCTAssertEqual($0 as? CodeError, .noKeys(Self.bob)) }
        XCTAssertThrowsError(try Self.number([key], [key], with: Self.alice)) { XCTAssertEqual($0 as? CodeError, .sameDID(Self.alice)) }
        XCTAssertThrowsError(try Self.number([key], [key], with: DID("bob"))) { XCTAssert($0 is InvalidInput) }
        for count in [0, 31, 33, 64] {
            XCTAssertThrowsError(try Self.number([key], [key, Self.key(1, count)])) {
                XCTAssertEqual($0 as? CodeError, .keyLength(Self.bob, bytes: count))
            }
        }
        XCTAssertThrowsError(try GroupCode(epoch: 1, authenticator: Data())) { XCTAssertEqual($0 as? CodeError, .authenticatorLength(bytes: 0)) }
    }

    /// A scanned text is the same, differs, or is of another version.
    func testScanned() throws {
        let own = try Self.number([Self.key(1)], [Self.key(2)])
        func compared(_ text: String) throws -> SafetyNumber.Comparison { own.compared(with: try SafetyNumber(text: text)) }
        XCTAssertEqual(try compared("mlsd-safety:1:" + own.digits), .same)
        for at in own.digits.indices {
            let digit = (own.digits[at].wholeNumberValue! + 1) % 10
            let other = own.digits.replacingCharacters(in: at...at, with: String(digit))
            XCTAssertEqual(try compared("mlsd-safety:1:" + other), .differs)
        }
        XCTAssertEqual(try compared("mlsd-safety:2:" + own.digits), .otherVersion)
        XCTAssertEqual(try compared("mlsd-safety:255:123"), .otherVersion)
        let digits = own.digits
        let wrong: [String] = [
            "", digits, "mlsd-safety:\(digits)", "mlsd-safety:0:\(digits)", "mlsd-safety:01:\(digits)", "mlsd-safety:256:\(digits)",
            "mlsd-safety:1:\(digits.dropFirst())", "mlsd-safety:1:\(digits)0", "mlsd-safety:1:\(own.grouped)", "mlsd-safety:1:\(digits)\n",
            "MLSD-safety:1:\(digits)", "mlsd-safety:1:\(String(repeating: "٣", count: 60))", "mlsd-safety:2:", "mlsd-safety:1:\(digits)\u{301}",
        ]
        for text in wrong {
            XCTAssertThrowsError(try SafetyNumber(text: text), text) { XCTAssertEqual($0 as? CodeError, .notASafetyNumber) }
        }
    }

    /// Digits are shown in groups of five.
    func testGrouped() throws {
        XCTAssertEqual(Digits.grouped("012345678901234"), "01234 56789 01234")
        XCTAssertEqual(try Self.number([Self.key(1)], [Self.key(2)]).grouped.split(separator: " ").map(\.count), Array(repeating: 5, count: 12))
    }
}
