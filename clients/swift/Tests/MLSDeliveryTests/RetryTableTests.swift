import XCTest

@testable import MLSDelivery

final class RetryTableTests: XCTestCase {
    /// Each row of docs/CLIENTS.md, and what the client does. A new or changed row there fails here.
    static let rows: [(row: String, verdict: Verdict)] = [
        ("no answer, 429, 500, 502, 503", .again),
        ("429 `QuotaExceeded`", .atReset),
        ("401 `InvalidToken`, *token was used before*", .again),
        ("401 `InvalidToken`, *token has expired*", .again),
        ("401 `AuthMissing`, any other `InvalidToken`", .hold),
        ("403 `Blocked`, `AccountInactive`", .hold),
        ("404 `ConvoNotFound`", .recover),
        ("409 `RequestInProgress`", .again),
        ("409 `EpochMismatch`, `epoch 6 is stale; currentEpoch=7`", .newEpoch),
        ("409 `EpochMismatch`, `epoch 8 is ahead; currentEpoch=7`", .recover),
        ("409 `ConvoDisputed`", .refuse),
        ("409 `ConvoClosed`", .refuse),
        ("409 `IdempotencyConflict`", .refuse),
        ("any other 4xx", .refuse),
    ]

    func testTheTableIsThatOfTheDocument() throws {
        let root = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent("../../../../docs/CLIENTS.md")
        let lines = try String(contentsOf: root, encoding: .utf8).components(separatedBy: "\n")
        let begin = try XCTUnwrap(lines.firstIndex(of: "| answer | what to do |"))
        let table = lines[(begin + 2)...].prefix { $0.hasPrefix("|") }
        let answers = table.map { $0.components(separatedBy: " | ")[0].dropFirst(2) }
        XCTAssertEqual(answers.map(String.init), Self.rows.map(\.row))
    }

    func testVerdicts() {
        for (row, want) in Self.rows where row.first?.isNumber == true {
            let words = row.components(separatedBy: "`")
            let text = row.components(separatedBy: "`, ").last?.trimmingCharacters(in: CharacterSet(charactersIn: "`*")) ?? ""
            let error = ServiceError(status: Int(row.prefix(3)) ?? 0, name: ErrorName(rawValue: words[1]), message: "the " + text)
            XCTAssertEqual(RetryRule.verdict(on: error), want, row)
        }
        let blocked = ServiceError(status: 403, name: .blocked, message: "did:plc:x is blocked by the caller; unblock it first with unblockActor")
        XCTAssertEqual(RetryRule.verdict(on: blocked), .refuse)
        for status in [429, 500, 502, 503] {
            XCTAssertEqual(RetryRule.verdict(on: ServiceError(status: status, name: ErrorName(rawValue: ""), message: "")), .again)
        }
        XCTAssertEqual(RetryRule.verdict(on: NoAnswer(URLError(.timedOut))), .again)
        XCTAssertEqual(RetryRule.verdict(on: InvalidInput(field: "did", reason: "")), .refuse)
        for (status, name, want) in [
            (401, "InvalidToken", Verdict.hold), (403, "Blocked", .hold), (403, "AccountInactive", .hold), (404, "ConvoNotFound", .recover),
            (400, "InvalidRequest", .refuse), (403, "NotMember", .refuse), (413, "MessageTooLarge", .refuse), (501, "MethodNotImplemented", .refuse),
        ] {
            XCTAssertEqual(RetryRule.verdict(on: ServiceError(status: status, name: ErrorName(rawValue: name), message: "")), want, name)
        }
    }

    func testWaits() {
        let surroundings = Surroundings(random: { 1 })
        let none = NoAnswer(URLError(.timedOut))
        XCTAssertEqual((0..<9).map { surroundings.backoff(after: $0, none) }, [0.5, 1, 2, 4, 8, 16, 30, 30, 30])
        let asked = ServiceError(status: 503, name: ErrorName(rawValue: "ServiceUnavailable"), message: "", retryAfter: 60)
        XCTAssertGreaterThanOrEqual(surroundings.backoff(after: 0, asked), 60)
    }

    /// D10: what a proxy or a lying service writes into Retry-After neither stops a device for days, nor its process.
    func testD10AWaitIsBetweenASecondAndAnHour() async throws {
        let surroundings = Surroundings(random: { 0 })
        for (header, from, to) in [
            ("0", 1, 1), ("-5", 1, 1), ("0.2", 1, 1), ("7", 7, 7), ("3000000", 3600, 3600), ("1.8e10", 3600, 3600), ("1e400", 3600, 3600), ("inf", 3600, 3600),
            ("nan", 1, 1), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.25, 0.25),
        ] as [(String, Double, Double)] {
            let error = ServiceError(Answer(status: 503, headers: ["retry-after": header]))
            let wait = surroundings.backoff(after: 0, error)
            XCTAssertTrue(wait >= from && wait <= to, "\(header): \(wait) s")
        }
        for seconds in [Double.infinity, 1.8e10, .nan, -1] {
            let sleep = Task { try await Surroundings().sleep(seconds) }
            sleep.cancel()
            _ = await sleep.result // it does not trap
        }
    }
}
