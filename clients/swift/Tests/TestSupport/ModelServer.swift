import Foundation
import MLSDelivery

/// A server as docs/CLIENTS.md describes it, for one account and its convos, in memory, with faults. It is
/// written without the client's code, so that both agree on the contract and not on a mistake.
public actor ModelServer: Transport {
    public struct Entry: Sendable {
        public var id: String
        public var ciphertext: Data
        public var epoch: Int
        public var isCommit: Bool
    }

    struct Convo {
        var epoch = 0
        var log: [Entry] = []
        var groupInfo: Data?
    }

    public struct Welcome: Sendable {
        public var bytes: Data
        public var consumed = false
        public var fetched = 0
        public var failures = 0
    }

    /// What happens now and then, one in so many requests; 0: never.
    public struct Faults: Sendable {
        public var lostRequest = 0
        public var lostAnswer = 0
        public var tooMany = 0
        public var unavailable = 0
        public var inProgress = 0
        public var usedToken = 0
        public var race = 0
        public var portal = 0
        public init() {}
        public static let all: Faults = {
            var faults = Faults()
            (faults.lostRequest, faults.lostAnswer, faults.tooMany, faults.unavailable) = (20, 10, 40, 20)
            (faults.inProgress, faults.usedToken, faults.race, faults.portal) = (40, 40, 15, 60)
            return faults
        }()
    }

    public var faults = Faults()
    public private(set) var struck: [String: Int] = [:]
    public var welcomes: [String: Welcome] = [:]
    public private(set) var keyPackages: Set<String> = []
    private var convos: [String: Convo] = [:]
    private var records: [String: Data] = [:] // answers by method, convo and key
    private var bodies: [String: Data] = [:]
    private var random: Random
    private var serial = 0
    private var snapshot: ([String: Convo], [String: Data], [String: Data])?

    public init(seed: UInt64) { random = Random(seed: seed) }

    public func set(_ faults: Faults) { self.faults = faults }
    public func addConvo(_ id: String) { convos[id] = Convo() }
    public func addWelcome(_ convo: String, _ bytes: Data) { welcomes[convo] = Welcome(bytes: bytes) }
    public func log(_ convo: String) -> [Entry] { convos[convo]?.log ?? [] }
    public func epoch(_ convo: String) -> Int { convos[convo]?.epoch ?? -1 }

    /// The plaintexts of the log's messages.
    public func texts(_ convo: String) throws -> [String] {
        try log(convo).filter { !$0.isCommit }.map { try FakeMLS.text($0.ciphertext) }
    }

    // MARK: Restore

    /// Keeps the present state, to which `restore` returns.
    public func backUp() { snapshot = (convos, records, bodies) }
    public func restore() {
        if let snapshot { (convos, records, bodies) = snapshot }
    }

    /// Another member's commit.
    public func commit(_ convo: String) { race(convo) }

    private func race(_ id: String) {
        guard var convo = convos[id], let group = Data(hexadecimal: id) else { return }
        let commit = FakeMLS.message(3, group, convo.epoch, random.bytes(16))
        append(&convo, commit, isCommit: true)
        convo.epoch += 1
        convo.groupInfo = FakeMLS.message(3, group, convo.epoch, Data())
        convos[id] = convo
    }

    private func append(_ convo: inout Convo, _ bytes: Data, isCommit: Bool) {
        serial += 1
        convo.log.append(Entry(id: "m\(serial)", ciphertext: bytes, epoch: convo.epoch, isCommit: isCommit))
    }

    // MARK: Transport

    public struct Lost: Error {}

    public func open(_ request: Request) throws -> (Answer, AsyncThrowingStream<Data, any Error>) { throw Lost() }

    public func send(_ request: Request) throws -> Answer {
        let nsid = request.url.lastPathComponent
        if strikes("lostRequest", faults.lostRequest) { throw Lost() }
        if strikes("429", faults.tooMany) { return refusal(429, "RateLimitExceeded", "too many requests", ["retry-after": "2"]) }
        if strikes("503", faults.unavailable) { return refusal(503, "ServiceUnavailable", "busy") }
        if strikes("portal", faults.portal) { return Answer(status: 200, body: Data("<html>log in</html>".utf8)) }
        if request.method == "POST" {
            if strikes("inProgress", faults.inProgress) { return refusal(409, "RequestInProgress", "the first attempt runs", ["retry-after": "1"]) }
            if strikes("usedToken", faults.usedToken) { return refusal(401, "InvalidToken", "the token was used before") }
            if strikes("race", faults.race), let convo = convos.keys.sorted().randomElement(using: &random) { race(convo) }
        }
        let answer = try handle(nsid, request)
        if strikes("lostAnswer", faults.lostAnswer) { throw Lost() }
        return answer
    }

    private func strikes(_ name: String, _ times: Int) -> Bool {
        guard times > 0, random.once(in: times) else { return false }
        struck[name, default: 0] += 1
        return true
    }

    private func refusal(_ status: Int, _ name: String, _ message: String, _ headers: [String: String] = [:]) -> Answer {
        Answer(status: status, headers: headers, body: json(["error": name, "message": message]))
    }

    private func json(_ object: Any) -> Data { (try? JSONSerialization.data(withJSONObject: object)) ?? Data() }
    private func ok(_ object: [String: Any]) -> Answer { Answer(status: 200, body: json(object)) }

    private func handle(_ nsid: String, _ request: Request) throws -> Answer {
        let input = try request.body.map { try JSONSerialization.jsonObject(with: $0) as? [String: Any] ?? [:] } ?? parameters(request.url)
        let convo = input["convoId"] as? String ?? ""
        guard let key = input["idempotencyKey"] as? String, request.method == "POST" else { return try run(nsid, convo, input) }
        let name = nsid + "/" + convo + "/" + key
        if let first = records[name] {
            if bodies[name] != request.body { return refusal(409, "IdempotencyConflict", "differing fields") }
            return Answer(status: 200, body: first)
        }
        let answer = try run(nsid, convo, input)
        if answer.status == 200 { (records[name], bodies[name]) = (answer.body, request.body) }
        return answer
    }

    private func parameters(_ url: URL) -> [String: Any] {
        var out: [String: Any] = [:]
        for item in URLComponents(url: url, resolvingAgainstBaseURL: false)?.queryItems ?? [] { out[item.name] = item.value }
        return out
    }

    private func run(_ nsid: String, _ id: String, _ input: [String: Any]) throws -> Answer {
        if nsid == PublishKeyPackages.nsid { return publish(input) }
        if nsid == GetKeyPackageStats.nsid { return stats(input) }
        if nsid == GetWelcome.nsid || nsid == ConfirmWelcome.nsid { return welcome(nsid, id, input) }
        guard var convo = convos[id] else { return refusal(404, "ConvoNotFound", "no such convo") }
        switch nsid {
        case SendMessage.nsid, SubmitCommit.nsid, ProcessExternalCommit.nsid:
            let isCommit = nsid != SendMessage.nsid
            let field = input[isCommit ? "commit" : "ciphertext"] as? [String: String]
            let bytes = Data(base64Encoded: field?["$bytes"] ?? "") ?? Data()
            let parsed = try FakeMLS.parse(bytes)
            if parsed.epoch != convo.epoch {
                let side = parsed.epoch < convo.epoch ? "stale" : "ahead"
                return refusal(409, "EpochMismatch", "epoch \(parsed.epoch) is \(side); currentEpoch=\(convo.epoch)")
            }
            append(&convo, bytes, isCommit: isCommit)
            if isCommit {
                convo.epoch += 1
                convo.groupInfo = FakeMLS.message(3, parsed.groupID, convo.epoch, Data())
            }
            convos[id] = convo
            if isCommit { return ok(["newEpoch": convo.epoch, "seq": convo.log.count]) }
            return ok(["messageId": "m\(serial)", "receivedAt": "2026-11-22T09:30:00.123Z", "seq": convo.log.count, "epoch": convo.epoch])
        case GetMessages.nsid: return messages(id, convo, input)
        case GetEpoch.nsid: return ok(["convoId": id, "currentEpoch": convo.epoch])
        case GetGroupInfo.nsid:
            guard let info = convo.groupInfo else { return refusal(404, "GroupInfoNotFound", "none") }
            return ok(["groupInfo": ["$bytes": info.base64EncodedString()], "epoch": convo.epoch])
        default: return refusal(501, "MethodNotImplemented", nsid)
        }
    }

    private func messages(_ id: String, _ convo: Convo, _ input: [String: Any]) -> Answer {
        var from = Int(input["sinceSeq"] as? String ?? "0") ?? 0
        if let since = input["sinceMessage"] as? String {
            guard let index = convo.log.firstIndex(where: { $0.id == since }) else { return refusal(400, "InvalidCursor", "no such message") }
            from = index + 1
        }
        let most = Int(input["limit"] as? String ?? "50") ?? 50
        let page = Array(convo.log.enumerated().dropFirst(from).prefix(most))
        var answer: [String: Any] = ["lastSeq": convo.log.count]
        answer["messages"] = page.map { index, entry -> [String: Any] in
            [
                "id": entry.id, "convoId": id, "sender": "did:plc:alice", "epoch": entry.epoch, "seq": index + 1,
                "createdAt": "2026-11-22T09:30:00.123Z", "messageType": entry.isCommit ? "commit" : "application",
                // Unpadded, as the service answers, and with a field of a later version.
                "ciphertext": ["$bytes": entry.ciphertext.base64EncodedString().replacingOccurrences(of: "=", with: "")], "new": 1,
            ]
        }
        if from + page.count < convo.log.count, let last = page.last { answer["cursor"] = last.element.id }
        return ok(answer)
    }

    private func publish(_ input: [String: Any]) -> Answer {
        let items = input["keyPackages"] as? [[String: Any]] ?? []
        let results = items.map { item -> [String: Any] in
            let new = keyPackages.insert(item["keyPackage"] as? String ?? "").inserted
            return ["status": new ? "published" : "duplicate", "keyPackageRef": "00"]
        }
        return ok(["results": results])
    }

    private func stats(_ input: [String: Any]) -> Answer {
        let counts: [String: Any] = [
            "available": keyPackages.count, "claimed": 0, "consumed": 0, "lastResort": min(1, keyPackages.count), "needsReplenish": keyPackages.count < 20,
        ]
        let device = counts.merging(["deviceId": input["deviceId"] ?? ""]) { _, new in new }
        let devices = keyPackages.isEmpty ? [] : [device]
        return ok(counts.merging(["threshold": 20, "byCipherSuite": [Any](), "byDevice": devices]) { _, new in new })
    }

    private func welcome(_ nsid: String, _ id: String, _ input: [String: Any]) -> Answer {
        guard var welcome = welcomes[id] else { return refusal(404, "WelcomeNotFound", "none") }
        defer { welcomes[id] = welcome }
        if nsid == ConfirmWelcome.nsid {
            let success = input["success"] as? Bool == true
            if success { welcome.consumed = true } else { welcome.failures += 1 }
            return ok(["confirmed": true])
        }
        if welcome.consumed { return refusal(410, "WelcomeConsumed", "call getGroupInfo") }
        welcome.fetched += 1
        return ok(["convoId": id, "welcome": welcome.bytes.base64EncodedString().replacingOccurrences(of: "=", with: ""), "keyPackageRef": "00"])
    }
}

extension Data {
    public init?(hexadecimal text: String) {
        guard text.count % 2 == 0 else { return nil }
        var out = Data()
        for i in stride(from: 0, to: text.count, by: 2) {
            let start = text.index(text.startIndex, offsetBy: i)
            guard let byte = UInt8(text[start..<text.index(start, offsetBy: 2)], radix: 16) else { return nil }
            out.append(byte)
        }
        self = out
    }
    public var hexadecimal: String { map { String(format: "%02x", $0) }.joined() }
}
