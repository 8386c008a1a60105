import Foundation
import MLSDelivery

/// A server as docs/CLIENTS.md describes it, for one account and its convos, in memory, with faults. It is
/// written without the client's code, so that both agree on the contract and not on a mistake.
public actor ModelServer: Transport {
    /// Whose requests it gets.
    public static let caller = "did:plc:alice"

    public struct Entry: Sendable {
        public var id: String
        public var ciphertext: Data
        public var epoch: Int
        public var isCommit: Bool
        public var sender = ModelServer.caller
        public var embedUri: String?
        /// The entry of a reset, which is no MLS message.
        var isReset = false
        public var isProposal: Bool { (try? FakeMLS.parse(ciphertext).content) == 2 }
    }

    /// An attachment of a convo.
    struct Attachment {
        var convo: String
        var size: Int
        var sha256: String
        var parts: [Int: Data] = [:]
        var isComplete = false
        var bytes: Data { parts.keys.sorted().reduce(into: Data()) { $0 += parts[$1] ?? Data() } }
    }

    struct Convo {
        var group: Data
        var members: Set<String> = [ModelServer.caller]
        var epoch = 0
        var log: [Entry] = []
        var groupInfo: Data?
        var successor: String?
        var predecessor: String?
        var inviter: String? // it is a request
        var leftAt: Int? // the last entry that the caller may read
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
    var attachments: [String: Attachment] = [:]
    private var records: [String: Data] = [:] // answers by method, convo and key
    private var bodies: [String: Data] = [:]
    private var random: Random
    private var serial = 0
    /// Events of the stream, which begins with the first one. Without any there is no stream.
    private var events: [Data] = []
    private var streams: [AsyncThrowingStream<Data, any Error>.Continuation] = []
    private var snapshot: ([String: Convo], [String: Data], [String: Data])?

    public init(seed: UInt64) { random = Random(seed: seed) }

    public func set(_ faults: Faults) { self.faults = faults }
    public func addConvo(_ id: String) {
        convos[id] = Convo(group: Data(hexadecimal: id.replacingOccurrences(of: "-", with: "")) ?? Data())
    }
    public func addWelcome(_ convo: String, _ bytes: Data) { welcomes[convo] = Welcome(bytes: bytes) }
    public func log(_ convo: String) -> [Entry] { convos[convo]?.log ?? [] }
    public func epoch(_ convo: String) -> Int { convos[convo]?.epoch ?? -1 }

    /// The plaintexts of the log's messages.
    public func texts(_ convo: String) throws -> [String] {
        try log(convo).filter { !$0.isCommit && !$0.isReset && !$0.isProposal }.map { try FakeMLS.text($0.ciphertext) }
    }

    // MARK: Restore

    /// Keeps the present state, to which `restore` returns.
    public func backUp() { snapshot = (convos, records, bodies) }
    public func restore() {
        if let snapshot { (convos, records, bodies) = snapshot }
    }

    /// The server loses the convo for good.
    public func lose(_ convo: String) { convos[convo] = nil }

    /// Resets the convo, as another member does, to a group of its own making in epoch 1.
    public func reset(_ id: String, to successor: String, withGroupInfo: Bool = true) {
        open(successor, Self.successorGroup(successor, of: convos[id]?.group ?? Data()), 1, inPlaceOf: id)
        if !withGroupInfo { convos[successor]?.groupInfo = nil }
    }

    /// Resets the convo to a group that its members have not made.
    public func reset(_ id: String, to successor: String, group: Data) { open(successor, group, 1, inPlaceOf: id) }

    /// The group of a convo that goes on in the place of one with this group.
    public static func successorGroup(_ convo: String, of group: Data) -> Data {
        successorID(of: group, random: Data(hexadecimal: convo.replacingOccurrences(of: "-", with: "")) ?? Data())
    }

    public func setGroupInfo(_ info: Data?, of convo: String) { convos[convo]?.groupInfo = info }

    private func open(_ id: String, _ group: Data, _ epoch: Int, inPlaceOf old: String) {
        guard var closed = convos[old] else { return }
        var convo = Convo(group: group, members: closed.members, epoch: epoch, groupInfo: FakeMLS.message(3, group, epoch, Data()), predecessor: old)
        append(&closed, Data("mlsd convo closed by reset\nsuccessorConvoId \(id)\nreason forked\n".utf8), isReset: true)
        append(&convo, Data("mlsd convo opened by reset\npredecessorConvoId \(old)\nreason forked\n".utf8), isReset: true)
        closed.successor = id
        (convos[old], convos[id]) = (closed, convo)
    }

    /// The convo that a reset of this one has opened.
    public func successor(of convo: String) -> String? { convos[convo]?.successor }
    public func addMembers(_ members: Set<String>, to convo: String) { convos[convo]?.members.formUnion(members) }

    /// An event of the stream, also to those who connect later.
    public func emit(_ name: String, _ body: [String: any Sendable]) {
        let event = Data("event: \(name)\nid: \(events.count + 1)\ndata: ".utf8) + json(body) + Data("\n\n".utf8)
        events.append(event)
        for stream in streams { stream.yield(event) }
    }

    /// Another member's commit.
    public func commit(_ convo: String) { race(convo) }

    private func race(_ id: String) {
        guard var convo = convos[id] else { return }
        advance(&convo, FakeMLS.message(3, convo.group, convo.epoch, random.bytes(16)))
        convos[id] = convo
    }

    private func advance(_ convo: inout Convo, _ commit: Data, _ sender: String = ModelServer.caller) {
        append(&convo, commit, isCommit: true, sender)
        convo.epoch += 1
        convo.groupInfo = FakeMLS.message(3, convo.group, convo.epoch, Data())
    }

    /// Another member's message, or another device's.
    public func post(_ plaintext: Data, to id: String, by sender: String = ModelServer.caller, embedUri: String? = nil) {
        post(plaintext, to: id, by: FakeMLS.leaf(of: sender), named: sender, embedUri: embedUri)
    }

    /// A message of a device, of which the server says that it is of somebody.
    public func post(_ plaintext: Data, to id: String, by leaf: Leaf, named sender: String, embedUri: String? = nil) {
        guard var convo = convos[id] else { return }
        let message = FakeMLS.message(1, convo.group, convo.epoch, plaintext + random.bytes(8), by: leaf)
        append(&convo, message, isCommit: false, sender, embedUri)
        convos[id] = convo
    }

    /// A member's proposal to remove a leaf.
    public func propose(_ commit: FakeMLS.Commit, to id: String, by leaf: Leaf) throws {
        guard var convo = convos[id] else { return }
        append(&convo, FakeMLS.message(2, convo.group, convo.epoch, try JSONEncoder().encode(commit), by: leaf), isCommit: false, leaf.account.rawValue)
        convos[id] = convo
    }

    /// A commit of a device, of which the server says that it is of somebody.
    public func commit(_ commit: FakeMLS.Commit, to id: String, by leaf: Leaf, named sender: String? = nil) throws {
        guard var convo = convos[id] else { return }
        let bytes = FakeMLS.message(3, convo.group, convo.epoch, try JSONEncoder().encode(commit), by: leaf)
        advance(&convo, bytes, sender ?? leaf.account.rawValue)
        convos[id] = convo
    }

    /// A member removes the caller, whose device has this leaf.
    public func removeCaller(_ leaf: Leaf, from id: String, by remover: Leaf) throws {
        try commit(.init(remove: [leaf]), to: id, by: remover)
        convos[id]?.members.remove(Self.caller)
        let last = log(id).count
        convos[id]?.leftAt = last
    }

    /// Puts bytes into the log that no member's device can read.
    public func damage(_ id: String) {
        guard var convo = convos[id] else { return }
        append(&convo, FakeMLS.message(1, convo.group, convo.epoch + 1, random.bytes(8)))
        convos[id] = convo
    }

    private func append(
        _ convo: inout Convo, _ bytes: Data, isCommit: Bool = false, _ sender: String = ModelServer.caller, _ embedUri: String? = nil, isReset: Bool = false
    ) {
        serial += 1
        convo.log.append(
            Entry(id: "m\(serial)", ciphertext: bytes, epoch: convo.epoch, isCommit: isCommit, sender: sender, embedUri: embedUri, isReset: isReset)
        )
    }

    // MARK: Transport

    public struct Lost: Error {}

    public func open(_ request: Request) throws -> (Answer, AsyncThrowingStream<Data, any Error>) {
        if events.isEmpty { throw Lost() }
        let (stream, continuation) = AsyncThrowingStream<Data, any Error>.makeStream()
        for event in events { continuation.yield(event) }
        streams.append(continuation)
        return (Answer(status: 200, body: Data()), stream)
    }

    public func send(_ request: Request) throws -> Answer {
        let nsid = request.url.lastPathComponent
        asked[nsid, default: 0] += 1
        defer { wakeWaiting() }
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
        if nsid == unanswered || strikes("lostAnswer", faults.lostAnswer) { throw Lost() }
        return answer
    }

    private var unanswered: String?
    private var asked: [String: Int] = [:]
    private var waiting: [(nsid: String, times: Int, CheckedContinuation<Void, Never>)] = []

    private var forbidden: Set<String> = []

    /// From now on this person may not call the methods.
    public func forbid(_ nsids: Set<String>) { forbidden = nsids }

    /// From now on all answers of the method are lost; nil: those of no method.
    public func loseAnswers(of nsid: String?) { unanswered = nsid }

    /// Waits until a method was called so many times.
    public func reached(_ nsid: String, times: Int) async {
        if asked[nsid] ?? 0 < times { await withCheckedContinuation { waiting.append((nsid, times, $0)) } }
    }

    private func wakeWaiting() {
        let ready = waiting.filter { asked[$0.nsid] ?? 0 >= $0.times }
        waiting.removeAll { asked[$0.nsid] ?? 0 >= $0.times }
        for (_, _, continuation) in ready { continuation.resume() }
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
        if nsid == "blue.catbird.mls.putAttachmentPart" { return put(parameters(request.url), request.body ?? Data()) }
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
        for item in URLComponents(url: url, resolvingAgainstBaseURL: false)?.queryItems ?? [] {
            if item.name == "dids" {
                out[item.name] = (out[item.name] as? [String] ?? []) + [item.value ?? ""]
            } else {
                out[item.name] = item.value
            }
        }
        return out
    }

    /// The refusal of an input that the lexicon does not allow.
    private func invalid(_ input: [String: Any]) -> Answer? {
        func matches(_ text: String, _ pattern: String) -> Bool { text.range(of: pattern, options: .regularExpression) != nil }
        let dids = ["dids", "didList", "initialMembers"].flatMap { input[$0] as? [String] ?? [] } + ["senderDid", "targetDid"].compactMap { input[$0] as? String }
        for did in dids where !matches(did, "^did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]$") { return refusal(400, "InvalidRequest", "\(did): must be a DID") }
        if let uri = input["embedUri"] as? String, !matches(uri, "^[a-z][a-z.-]{0,80}:[!-~]+$") { return refusal(400, "InvalidAsset", "embedUri: must be a URI") }
        let metadata = input["metadata"] as? [String: String]
        if (metadata?["name"] ?? "").utf8.count > 128 { return refusal(400, "InvalidRequest", "metadata.name: must have at most 128 bytes") }
        return nil
    }

    private func run(_ nsid: String, _ id: String, _ input: [String: Any]) throws -> Answer {
        if let refusal = invalid(input) { return refusal }
        if let left = refusing[nsid], left > 0 {
            refusing[nsid] = left - 1
            return refusal(403, "NotPermitted", "the caller may not do this")
        }
        if forbidden.contains(nsid) { return refusal(403, "NotPermitted", "the caller is no admin of the convo") }
        switch nsid {
        case PublishKeyPackages.nsid: return publish(input)
        case GetKeyPackageStats.nsid: return stats(input)
        case GetOwnKeyPackages.nsid: return list(input)
        case WithdrawKeyPackages.nsid: return withdraw(input)
        case GetKeyPackages.nsid: return claim(input)
        case CreateConvo.nsid: return try create(input)
        case GetWelcome.nsid, ConfirmWelcome.nsid: return welcome(nsid, id, input)
        case GetConvos.nsid: return ok(["conversations": convos.keys.sorted().filter { convos[$0]?.members.contains(Self.caller) == true }.map(view)])
        case GetDeliveryService.nsid: return ok(["did": input["did"] ?? ""].merging(homes[input["did"] as? String ?? ""].map { ["deliveryService": $0] } ?? [:]) { $1 })
        case GetInvitations.nsid: return ok(["invitations": invitations.map(\.fields)])
        case AcceptInvitation.nsid, DeclineInvitation.nsid:
            guard let i = invitations.firstIndex(where: { $0.convo == id && $0.service == input["service"] as? String }) else {
                return refusal(404, "InvitationNotFound", "there is no invitation to this convo")
            }
            invitations[i].state = nsid == AcceptInvitation.nsid ? "accepted" : "declined"
            return ok(["state": invitations[i].state])
        case GetInvitationPolicy.nsid: return ok(["policy": policy])
        case SetInvitationPolicy.nsid:
            policy = input["policy"] as? String ?? ""
            return ok(["policy": policy])
        case GetBlocks.nsid: return ok(["blocks": blocks.sorted().map { ["did": $0, "createdAt": "2026-11-22T09:30:00.123Z"] }])
        case BlockActor.nsid:
            blocks.insert(input["did"] as? String ?? "")
            return ok(["blockedAt": "2026-11-22T09:30:00.123Z"])
        case UnblockActor.nsid:
            blocks.remove(input["did"] as? String ?? "")
            return ok(["success": true])
        case UnregisterPushTarget.nsid, DeleteSession.nsid:
            end(nsid, input)
            return ok(nsid == DeleteSession.nsid ? ["success": true] : ["removed": true])
        case RegisterPushTarget.nsid:
            pushTargets.append(input["token"] as? String ?? "")
            return ok([:])
        default: break
        }
        guard var convo = convos[id] else { return refusal(404, "ConvoNotFound", "no such convo") }
        if let last = convo.leftAt, nsid == GetMessages.nsid, input["untilLeft"] as? String == "true" {
            convo.log = Array(convo.log.prefix(last))
            return messages(id, convo, input)
        }
        guard convo.members.contains(Self.caller) else { return refusal(403, "NotMember", "the caller has left") }
        if let successor = convo.successor, Self.refusedIfClosed.contains(nsid), nsid != LeaveConvo.nsid || input["commit"] != nil {
            let text = "the convo was reset: read it to its end, and go on in another one; successorConvoId=\(successor)"
            return refusal(409, "ConvoClosed", text)
        }
        switch nsid {
        case ResetConvo.nsid: return reset(id, input)
        case GetConvo.nsid: return ok(["convo": view(id)])
        case SendMessage.nsid, SubmitCommit.nsid, ProcessExternalCommit.nsid, AddMembers.nsid, LeaveConvo.nsid:
            if nsid == LeaveConvo.nsid, input["commit"] == nil {
                convo.members.remove(Self.caller)
                convos[id] = convo
                if input["block"] as? Bool == true, let inviter = convo.inviter { blocks.insert(inviter) }
                return ok(["success": true, "newEpoch": convo.epoch])
            }
            let field = input[nsid == SendMessage.nsid ? "ciphertext" : "commit"]
            let bytes = Data(base64Encoded: (field as? [String: String])?["$bytes"] ?? field as? String ?? "") ?? Data()
            guard let parsed = try? FakeMLS.parse(bytes) else { return refusal(400, "InvalidMessage", "does not parse") }
            if parsed.epoch != convo.epoch {
                let side = parsed.epoch < convo.epoch ? "stale" : "ahead"
                return refusal(409, "EpochMismatch", "epoch \(parsed.epoch) is \(side); currentEpoch=\(convo.epoch)")
            }
            if nsid == SendMessage.nsid {
                if input["embedUri"] as? String == Self.noAttachment { return refusal(400, "InvalidAsset", "no such attachment") }
                append(&convo, bytes, isCommit: false, Self.caller, input["embedUri"] as? String)
                convos[id] = convo
                return ok(["messageId": "m\(serial)", "receivedAt": "2026-11-22T09:30:00.123Z", "seq": convo.log.count, "epoch": convo.epoch])
            }
            let added = input["didList"] as? [String] ?? []
            if added.contains(where: convo.members.contains) { return refusal(409, "AlreadyMember", "a member already") }
            convo.members.formUnion(added)
            receipts += input["receipts"] as? [String] ?? []
            if let removed = input["targetDid"] as? String { convo.members.remove(removed) }
            advance(&convo, bytes)
            convos[id] = convo
            return ok(["success": true, "newEpoch": convo.epoch, "seq": convo.log.count])
        case CreateAttachment.nsid, GetAttachmentStatus.nsid, CompleteAttachment.nsid, DeleteAttachment.nsid, "blue.catbird.mls.getAttachment":
            return attachment(nsid, id, input)
        case AcceptConvo.nsid:
            convos[id]?.inviter = nil
            return ok(["accepted": true])
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
                "id": entry.id, "convoId": id, "sender": entry.sender, "epoch": entry.epoch, "seq": index + 1,
                "createdAt": "2026-11-22T09:30:00.123Z", "messageType": entry.isReset ? "reset" : entry.isCommit ? "commit" : entry.isProposal ? "proposal" : "application",
                // Unpadded, as the service answers, and with a field of a later version.
                "ciphertext": ["$bytes": entry.ciphertext.base64EncodedString().replacingOccurrences(of: "=", with: "")], "new": 1,
            ].merging(entry.embedUri.map { ["embedUri": $0] } ?? [:]) { _, new in new }
        }
        if from + page.count < convo.log.count, let last = page.last { answer["cursor"] = last.element.id }
        return ok(answer)
    }

    private static let partSize = 1 << 20

    private func put(_ input: [String: Any], _ bytes: Data) -> Answer {
        let (id, part) = (input["attachmentId"] as? String ?? "", Int(input["part"] as? String ?? "") ?? 0)
        guard attachments[id] != nil else { return refusal(404, "AttachmentNotFound", "no such attachment") }
        attachments[id]?.parts[part] = bytes
        return ok(["part": part, "sha256": ""])
    }

    private func attachment(_ nsid: String, _ convo: String, _ input: [String: Any]) -> Answer {
        let id = nsid == CreateAttachment.nsid ? String((input["sha256"] as? String ?? "").prefix(32)) : input["attachmentId"] as? String ?? ""
        if nsid == CreateAttachment.nsid, attachments[id] == nil {
            attachments[id] = Attachment(convo: convo, size: input["size"] as? Int ?? 0, sha256: input["sha256"] as? String ?? "")
        }
        guard let attachment = attachments[id], attachment.convo == convo else { return refusal(404, "AttachmentNotFound", "no such attachment") }
        let count = (attachment.size + Self.partSize - 1) / Self.partSize
        switch nsid {
        case DeleteAttachment.nsid:
            attachments[id] = nil
            return ok(["deleted": true])
        case CompleteAttachment.nsid:
            if attachment.parts.count < count { return refusal(400, "AttachmentIncomplete", "parts are missing") }
            attachments[id]?.isComplete = true
            return ok(["attachmentId": id, "uri": "mlsd:attachment/" + id, "size": attachment.size, "state": "complete"])
        case "blue.catbird.mls.getAttachment":
            let (offset, length) = (Int(input["offset"] as? String ?? "") ?? 0, Int(input["length"] as? String ?? "") ?? 0)
            return Answer(status: 200, body: Data(attachment.bytes.dropFirst(offset).prefix(length)))
        default:
            return ok([
                "attachmentId": id, "uri": "mlsd:attachment/" + id, "partSize": Self.partSize, "partCount": count, "size": attachment.size,
                "state": attachment.isComplete ? "complete" : "uploading", "parts": attachment.parts.keys.sorted(),
            ])
        }
    }

    /// Whether a convo has an attachment.
    public func has(_ attachment: String) -> Bool { attachments[attachment] != nil }

    /// An attachment that no convo has.
    public static let noAttachment = "mlsd:attachment/0"
    /// Accounts whose DID begins so have no KeyPackages.
    public static let withoutKeyPackages = "did:plc:none"

    /// Whose KeyPackage the server gives for an account.
    private var claimed: [String: Leaf] = [:]
    public func give(_ leaf: Leaf, for did: String) { claimed[did] = leaf }

    /// Makes the convo a request: somebody has invited the caller, who has not accepted.
    public func request(_ convo: String, by inviter: String) { convos[convo]?.inviter = inviter }
    /// Another device of the caller has accepted the convo.
    public func accept(_ convo: String) { convos[convo]?.inviter = nil }
    /// Whether the caller is a member of the convo.
    public func hasCaller(_ convo: String) -> Bool { convos[convo]?.members.contains(Self.caller) == true }
    public private(set) var policy = "everyone"
    public private(set) var blocks: Set<String> = []

    /// How many claims of KeyPackages there were.
    public private(set) var claims = 0
    /// Whose KeyPackages were claimed, each time.
    public private(set) var claimedOf: [String] = []
    /// Who has no KeyPackages now.
    private var empty: Set<String> = []
    public func setEmpty(_ did: String, _ isEmpty: Bool) { if isEmpty { empty.insert(did) } else { empty.remove(did) } }
    /// How many calls of a method are refused from now on.
    private var refusing: [String: Int] = [:]
    public func refuse(_ nsid: String, times: Int) { refusing[nsid] = times }

    // MARK: Other services

    /// An invitation of another service, and what the caller has answered.
    public struct Invitation: Sendable {
        public var convo: String
        public var service: String
        public var device: String
        public var state = "open"
        public init(convo: String, service: String, device: String = FakeMLS.id(of: "phone")) { (self.convo, self.service, self.device) = (convo, service, device) }
        /// As the service writes it; its event has the same fields.
        public var fields: [String: any Sendable] {
            [
                "convoId": convo, "service": service, "deviceId": device, "state": state, "inviter": "did:plc:bob", "keyPackageRef": "00",
                "epoch": 1, "createdAt": "2026-11-27T09:30:00.123Z", "cursor": "1",
            ]
        }
    }

    public private(set) var invitations: [Invitation] = []
    public func invite(_ invitation: Invitation) { invitations.append(invitation) }
    /// Where people have their KeyPackages, if they have named it.
    private var homes: [String: String] = [:]
    public func setHome(of did: String, _ service: String) { homes[did] = service }
    /// Receipts that came with Welcomes.
    public private(set) var receipts: [String] = []
    public private(set) var pushTargets: [String] = []

    private func claim(_ input: [String: Any]) -> Answer {
        claims += 1
        let dids = (input["dids"] as? [String] ?? []).filter { !$0.hasPrefix(Self.withoutKeyPackages) && !empty.contains($0) }
        claimedOf += dids
        let withReceipts = input["receipts"] as? String == "true"
        return ok(["keyPackages": dids.map { did -> [String: String] in
            ["did": did, "keyPackage": FakeMLS.keyPackage(of: claimed[did] ?? FakeMLS.leaf(of: did)).base64EncodedString(), "cipherSuite": "suite"].merging(withReceipts ? ["receipt": "of " + did] : [:]) { $1 }
        }])
    }

    private func create(_ input: [String: Any]) throws -> Answer {
        receipts += input["receipts"] as? [String] ?? []
        let text = input["groupId"] as? String ?? ""
        var convo = Convo(group: Data(hexadecimal: text) ?? Data())
        if convos.values.contains(where: { $0.group == convo.group }) { return refusal(409, "GroupAlreadyExists", "taken") }
        convo.members.formUnion(input["initialMembers"] as? [String] ?? [])
        convo.epoch = input["currentEpoch"] as? Int ?? 0
        serial += 1
        let id = "0192f3a4-0000-7000-8000-" + String(format: "%012x", serial)
        convos[id] = convo
        return ok([
            "id": id, "groupId": text, "creator": Self.caller, "members": [Any](), "epoch": convo.epoch, "cipherSuite": "suite",
            "createdAt": "2026-11-22T09:30:00.123Z",
        ])
    }

    private static let refusedIfClosed = [
        SendMessage.nsid, SubmitCommit.nsid, ProcessExternalCommit.nsid, AddMembers.nsid, LeaveConvo.nsid, ResetConvo.nsid,
    ]

    private func reset(_ old: String, _ input: [String: Any]) -> Answer {
        receipts += input["receipts"] as? [String] ?? []
        let bytes = Data(base64Encoded: (input["groupInfo"] as? [String: String])?["$bytes"] ?? "") ?? Data()
        guard let info = try? FakeMLS.parse(bytes) else { return refusal(400, "InvalidGroupInfo", "does not parse") }
        if convos.values.contains(where: { $0.group == info.groupID }) { return refusal(409, "GroupAlreadyExists", "taken") }
        serial += 1
        let id = "0192f3a4-0000-7000-8000-" + String(format: "%012x", serial)
        open(id, info.groupID, info.epoch, inPlaceOf: old)
        return ok(["convo": view(id)])
    }

    private func view(_ id: String) -> [String: Any] {
        guard let convo = convos[id] else { return [:] }
        let at = "2026-11-22T09:30:00.123Z"
        var view: [String: Any] = [
            "id": id, "groupId": convo.group.hexadecimal, "creator": Self.caller, "epoch": convo.epoch, "cipherSuite": "suite", "createdAt": at,
            "members": convo.members.sorted().map { ["did": $0, "joinedAt": at] },
        ]
        view["successorConvoId"] = convo.successor
        if convo.successor != nil { view["closedAt"] = at }
        view["predecessorConvoId"] = convo.predecessor
        if let inviter = convo.inviter { view.merge(["request": true, "invitedBy": inviter]) { $1 } }
        return view
    }

    private func publish(_ input: [String: Any]) -> Answer {
        let items = input["keyPackages"] as? [[String: Any]] ?? []
        let results = items.map { item -> [String: Any] in
            let new = keyPackages.insert(item["keyPackage"] as? String ?? "").inserted
            return ["status": new ? "published" : "duplicate", "keyPackageRef": "00"]
        }
        return ok(["results": results])
    }

    /// The KeyPackageRefs of the stock, sorted.
    public var refs: [String] { keyPackages.map(Self.ref).sorted() }
    private static func ref(_ keyPackage: String) -> String { FakeMLS.ref(Data(base64Encoded: keyPackage) ?? Data()) }

    /// Loses some of the stock.
    public func lose(_ lost: Set<String>) { keyPackages = keyPackages.filter { !lost.contains(Self.ref($0)) } }

    private func list(_ input: [String: Any]) -> Answer {
        let after = input["cursor"] as? String ?? ""
        let page = refs.filter { $0 > after }.prefix(30)
        let items = page.map { ref -> [String: Any] in
            ["keyPackageRef": ref, "deviceId": input["deviceId"] ?? "", "cipherSuite": "", "state": "available", "lastResort": false,
             "createdAt": "2026-11-20T10:20:30Z", "expires": "2027-01-20T10:20:30Z"]
        }
        return ok(["keyPackages": items].merging(page.count < 30 ? [:] : ["cursor": page.last ?? ""]) { _, new in new })
    }

    /// By a device's id: what was ended of it, KeyPackages, push targets, sessions.
    public private(set) var ended: [String: Set<String>] = [:]
    private func end(_ nsid: String, _ input: [String: Any]) { ended[input["deviceId"] as? String ?? "", default: []].insert(nsid) }

    private func withdraw(_ input: [String: Any]) -> Answer {
        let before = keyPackages.count
        guard input["keyPackageRefs"] != nil else { // all of a device
            end(WithdrawKeyPackages.nsid, input)
            if input["deviceId"] as? String == FakeMLS.id(of: "phone") { keyPackages = [] }
            return ok(["withdrawn": before - keyPackages.count])
        }
        lose(Set(input["keyPackageRefs"] as? [String] ?? []))
        return ok(["withdrawn": before - keyPackages.count])
    }

    private func stats(_ input: [String: Any]) -> Answer {
        let counts: [String: Any] = [
            "available": keyPackages.count, "claimed": 0, "consumed": 0, "lastResort": min(1, keyPackages.count), "needsReplenish": keyPackages.count < 20,
        ]
        let device = counts.merging(["deviceId": input["deviceId"] ?? FakeMLS.id(of: "phone")]) { _, new in new }
        let devices = keyPackages.isEmpty ? [] : [device]
        return ok(counts.merging(["threshold": 20, "byCipherSuite": [Any](), "byDevice": devices]) { _, new in new })
    }

    private func welcome(_ nsid: String, _ id: String, _ input: [String: Any]) -> Answer {
        guard var welcome = welcomes[id] else { return refusal(404, "WelcomeNotFound", "none") }
        defer { welcomes[id] = welcome }
        if nsid == ConfirmWelcome.nsid {
            if input["keyPackageRef"] as? String != "00" { return ok(["confirmed": true, "state": "superseded"]) }
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
