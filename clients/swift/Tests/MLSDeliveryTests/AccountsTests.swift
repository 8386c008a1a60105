import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// Whose key a device has: the account says it.
final class AccountsTests: XCTestCase {
    static let alice = DID(ModelServer.caller)
    static let bob = DID("did:plc:bob")
    static let key = Data((0..<32).map { UInt8($0) })

    /// RFC 4648 over the first 20 bytes of the SHA-256 of the key, made by Python.
    func testRecordKey() {
        XCTAssertEqual(recordKey(of: Self.key), "mmg42klgyqzwneiskrelxms3j72bfje4")
    }

    func testMemoryAccounts() async throws {
        let alice = MemoryAccounts(Self.alice)
        let bob = alice.as(Self.bob)
        try await bob.list(ListedDevice(key: Self.key, cipherSuite: "suite", name: "phone"))
        try await bob.list(ListedDevice(key: Self.key, cipherSuite: "suite"))
        let (listed, others, all) = try await (alice.lists(Self.key, of: Self.bob), alice.lists(Self.key, of: Self.alice), alice.keys(of: Self.bob))
        XCTAssertEqual([listed, others], [true, false])
        XCTAssertEqual(all, [Self.key])
        await alice.setAway(Self.bob)
        await assertAway { _ = try await alice.lists(Self.key, of: Self.bob) }
        await alice.setAway(Self.bob, false)
        try await bob.unlist(Self.key)
        let after = try await alice.lists(Self.key, of: Self.bob)
        XCTAssertFalse(after)
        await alice.end(Self.bob)
        let ended = try await alice.hasEnded(Self.bob)
        XCTAssertTrue(ended)
        await assertAway { _ = try await alice.keys(of: Self.bob) }
    }

    private func assertAway(_ question: () async throws -> Void, line: UInt = #line) async {
        do {
            try await question()
            XCTFail("it is not away", line: line)
        } catch { XCTAssertTrue(error is AccountAway, "\(error)", line: line) }
    }

    // MARK: A PDS

    /// Hosts by their URLs, without a network.
    actor Hosts: Transport {
        var documents: [String: String] = [:] // a PDS by DID
        var records: [String: [String: any Sendable]] = [:] // by host, DID and rkey
        var requests: [String] = []
        var status: [String: (Int, [String: any Sendable])] = [:] // an answer for a host
        var hangs: Set<String> = []
        var isEndless = false

        func set(pds: String, of did: DID) { documents[did.rawValue] = pds }
        func answer(_ host: String, _ status: Int, _ body: [String: any Sendable] = [:]) { self.status[host] = (status, body) }
        func hang(_ host: String) { hangs.insert(host) }
        func beEndless() { isEndless = true }
        func move(_ did: DID, from: String, to: String) {
            for (name, record) in records where name.hasPrefix(from + "/" + did.rawValue) {
                records[to + name.dropFirst(from.count)] = record
                records[name] = nil
            }
        }
        func forgetRequests() { requests = [] }

        func send(_ request: Request) async throws -> Answer {
            var (answer, pieces) = try await open(request)
            for try await piece in pieces { answer.body += piece }
            return answer
        }

        func open(_ request: Request) async throws -> (Answer, AsyncThrowingStream<Data, any Error>) {
            let (stream, continuation) = AsyncThrowingStream<Data, any Error>.makeStream()
            let host = request.url.host ?? ""
            requests.append(request.method + " " + request.url.absoluteString.prefix { $0 != "?" })
            if request.headers["Authorization"] != nil, host != "alice.example.com" { throw URLError(.userAuthenticationRequired) }
            if request.headers.keys.contains("atproto-proxy") { throw URLError(.badServerResponse) }
            if hangs.contains(host) { try await Task.sleep(nanoseconds: 600_000_000_000) }
            let (status, body) = try self.status[host] ?? reply(request, host)
            let bytes = try JSONSerialization.data(withJSONObject: body)
            if status != 200 {
                continuation.finish()
                return (Answer(status: status, body: bytes), stream)
            }
            if isEndless, host != "plc.directory" { for _ in 0..<40 { continuation.yield(Data(repeating: 0x20, count: 1 << 16)) } }
            for i in stride(from: 0, to: bytes.count, by: 50) { continuation.yield(bytes[i..<min(i + 50, bytes.count)]) }
            continuation.finish()
            return (Answer(status: 200), stream)
        }

        private func reply(_ request: Request, _ host: String) throws -> (Int, [String: any Sendable]) {
            if host == "plc.directory" {
                let did = request.url.lastPathComponent
                guard let pds = documents[did] else { return (404, [:]) }
                let service: [String: any Sendable] = ["id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": pds]
                return (200, ["id": did, "service": [service]])
            }
            var input = try request.body.flatMap { try JSONSerialization.jsonObject(with: $0) as? [String: any Sendable] } ?? [:]
            for item in URLComponents(url: request.url, resolvingAgainstBaseURL: false)?.queryItems ?? [] { input[item.name] = item.value ?? "" }
            let (repo, rkey) = (input["repo"] as? String ?? "", input["rkey"] as? String ?? "")
            let name = host + "/" + repo + "/" + rkey
            let uri = "at://\(repo)/\(input["collection"] as? String ?? "")/"
            switch request.url.lastPathComponent {
            case "com.atproto.repo.putRecord": records[name] = input["record"] as? [String: any Sendable]
            case "com.atproto.repo.deleteRecord": records[name] = nil
            case "com.atproto.repo.getRecord":
                guard let record = records[name] else { return (400, ["error": "RecordNotFound", "message": "none"]) }
                return (200, ["uri": uri + rkey, "value": record])
            case "com.atproto.repo.listRecords":
                let found = records.filter { $0.key.hasPrefix(host + "/" + repo + "/") }
                return (200, ["records": found.map { ["uri": uri + ($0.key.split(separator: "/").last ?? ""), "value": $0.value] as [String: any Sendable] }])
            case "com.atproto.sync.getRepoStatus":
                return (200, ["did": input["did"] ?? "", "active": true])
            default: return (501, [:])
            }
            return (200, [:])
        }
    }

    private func accounts(_ hosts: Hosts, as own: DID = alice, surroundings: Surroundings = .init()) -> ATProtoAccounts {
        let route = Route(base: URL(string: "https://alice.example.com")!) { _ in ["Authorization": "Bearer x", "atproto-proxy": "did:web:mls"] }
        return ATProtoAccounts(own, pds: route, transport: hosts, surroundings: surroundings)
    }

    /// Alice lists her device, which everybody can read: one document, and one record for each question.
    func testAPDSHasTheRecord() async throws {
        let hosts = Hosts()
        await hosts.set(pds: "https://alice.example.com", of: Self.alice)
        let alice = accounts(hosts)
        try await alice.list(ListedDevice(key: Self.key, cipherSuite: "suite", name: "phone"))
        try await alice.list(ListedDevice(key: Self.key, cipherSuite: "suite"))
        let puts = await hosts.requests.filter { $0.hasPrefix("POST") }
        XCTAssertEqual(puts, ["POST https://alice.example.com/xrpc/com.atproto.repo.putRecord"]) // the second changes nothing
        await hosts.forgetRequests()
        let reader = accounts(hosts, as: Self.bob)
        for _ in 0..<2 {
            let listed = try await reader.lists(Self.key, of: Self.alice)
            XCTAssertTrue(listed)
        }
        let record = "GET https://alice.example.com/xrpc/com.atproto.repo.getRecord"
        let requests = await hosts.requests
        XCTAssertEqual(requests, ["GET https://plc.directory/did:plc:alice", record, record])
        let keys = try await reader.keys(of: Self.alice)
        XCTAssertEqual(keys, [Self.key])
        let (other, ended) = try await (reader.lists(Data([1]), of: Self.alice), reader.hasEnded(Self.alice))
        XCTAssertEqual([other, ended], [false, false])
        try await alice.unlist(Self.key)
        let after = try await reader.lists(Self.key, of: Self.alice)
        XCTAssertFalse(after)
    }

    /// A record under the name of another key lists nothing.
    func testRecordOfAnotherKey() async throws {
        let hosts = Hosts()
        await hosts.set(pds: "https://alice.example.com", of: Self.alice)
        let alice = accounts(hosts)
        try await alice.list(ListedDevice(key: Self.key, cipherSuite: "suite"))
        let other = Data("another key".utf8)
        await hosts.rename(recordKey(of: Self.key), recordKey(of: other))
        let (own, named, keys) = try await (alice.lists(Self.key, of: Self.alice), alice.lists(other, of: Self.alice), alice.keys(of: Self.alice))
        XCTAssertEqual([own, named], [false, false])
        XCTAssertEqual(keys, [])
    }

    /// The account moves its PDS: the old one fails, and the new one is found, although the document was kept.
    func testAccountMoves() async throws {
        let hosts = Hosts()
        await hosts.set(pds: "https://alice.example.com", of: Self.alice)
        try await accounts(hosts).list(ListedDevice(key: Self.key, cipherSuite: "suite"))
        let reader = accounts(hosts, as: Self.bob)
        let before = try await reader.lists(Self.key, of: Self.alice)
        await hosts.move(Self.alice, from: "alice.example.com", to: "new.example.com")
        await hosts.set(pds: "https://new.example.com", of: Self.alice)
        await hosts.answer("alice.example.com", 503)
        let after = try await reader.lists(Self.key, of: Self.alice)
        XCTAssertEqual([before, after], [true, true])
    }

    /// Nobody says no for an account: a directory or PDS that fails, hangs, sends too much, or is not at https.
    func testNobodyCanSay() async throws {
        let broken: [(String, (Hosts) async throws -> Void)] = [
            ("no document", { _ in }),
            ("no TLS", { await $0.set(pds: "http://alice.example.com", of: Self.alice) }),
            ("the PDS fails", {
                await $0.set(pds: "https://alice.example.com", of: Self.alice)
                await $0.answer("alice.example.com", 500)
            }),
            ("the PDS hangs", {
                await $0.set(pds: "https://alice.example.com", of: Self.alice)
                await $0.hang("alice.example.com")
            }),
            ("the PDS sends megabytes", {
                await $0.set(pds: "https://alice.example.com", of: Self.alice)
                try await self.accounts($0).list(ListedDevice(key: Self.key, cipherSuite: "suite")) // a record, behind 2.5 MB of spaces
                await $0.beEndless()
            }),
        ]
        for (name, breaks) in broken {
            let hosts = Hosts()
            try await breaks(hosts)
            var surroundings = Surroundings()
            if name == "the PDS hangs" { surroundings.sleep = { _ in try Task.checkCancellation() } } // 10 seconds pass at once
            let accounts = accounts(hosts, as: Self.bob, surroundings: surroundings)
            do {
                let listed = try await accounts.lists(Self.key, of: Self.alice)
                XCTFail("\(name): \(listed)")
            } catch { XCTAssertTrue(error is AccountAway, "\(name): \(error)") }
        }
    }

    /// A tombstone and a deleted repository are ends; a PDS that fails is none.
    func testEnds() async throws {
        let hosts = Hosts()
        await hosts.set(pds: "https://alice.example.com", of: Self.alice)
        let reader = accounts(hosts, as: Self.bob)
        await hosts.answer("alice.example.com", 400, ["error": "RepoNotFound", "message": "none"])
        let deleted = try await reader.hasEnded(Self.alice)
        await hosts.answer("plc.directory", 410)
        let tombstone = try await reader.hasEnded(Self.alice)
        XCTAssertEqual([deleted, tombstone], [true, true])
        await assertAway { _ = try await reader.lists(Self.key, of: Self.alice) }
        await hosts.answer("plc.directory", 503)
        await assertAway { _ = try await reader.hasEnded(Self.alice) }
    }

    // MARK: The own device

    private func messenger(_ accounts: any Accounts, _ server: ModelServer, _ storage: MemoryStorage) async throws -> Messenger {
        let service = Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: server)
        return try await Messenger(
            account: Self.alice, service: service, accounts: accounts, deviceName: "phone", storage: storage, surroundings: simulated(seed: 1)
        ) { try FakeMLS($0, device: "phone", seed: 1) }
    }

    /// T1: others use no device that its account does not list. So a device is listed before its KeyPackages are
    /// published; once it was, the PDS may be away; and after it has signed out it is not listed, nor published.
    func testT1ADeviceIsListedBeforeItIsUsed() async throws {
        let (server, storage, accounts) = (ModelServer(seed: 1), MemoryStorage(), FailingAccounts(Self.alice))
        await accounts.fail()
        let phone = try await messenger(accounts, server, storage)
        for call in [{ try await phone.restock() }, { _ = try await phone.create(with: []) }] as [@Sendable () async throws -> Void] {
            do {
                try await call()
                XCTFail("it is not listed")
            } catch { XCTAssertTrue(error is NoAnswer, "\(error)") }
        }
        let pending = await phone.outbox.pending
        XCTAssertEqual(pending, [])
        await accounts.fail(false)
        try await phone.start(listening: false)
        try await phone.restock()
        for write in await phone.outbox.pending { _ = try await phone.outbox.finished(write.id) }
        let key = try await phone.mls.signatureKey
        let listed = try await accounts.lists(key, of: Self.alice)
        XCTAssertTrue(listed)
        await phone.stop()

        await accounts.fail()
        let again = try await messenger(accounts, server, storage)
        try await again.restock()
        await accounts.fail(false)
        let stock = await server.keyPackages.count
        XCTAssertEqual(stock, Messenger.stock + 1)
        try await again.signOut()
        let (left, isListed) = try await (server.keyPackages.count, accounts.lists(key, of: Self.alice))
        XCTAssertEqual(left, 0)
        XCTAssertFalse(isListed)
    }
}

extension AccountsTests.Hosts {
    func rename(_ old: String, _ new: String) {
        for (name, record) in records where name.hasSuffix("/" + old) {
            records[name.dropLast(old.count) + new] = record
            records[name] = nil
        }
    }
}

/// Accounts whose own PDS can be away for writes.
actor FailingAccounts: Accounts {
    private let accounts: MemoryAccounts
    private var fails = false
    init(_ account: DID) { accounts = MemoryAccounts(account) }
    func fail(_ fails: Bool = true) { self.fails = fails }
    func lists(_ key: Data, of account: DID) async throws -> Bool { try await accounts.lists(key, of: account) }
    func devices(of account: DID) async throws -> [ListedDevice] { try await accounts.devices(of: account) }
    func hasEnded(_ account: DID) async throws -> Bool { try await accounts.hasEnded(account) }
    func list(_ device: ListedDevice) async throws {
        if fails { throw NoAnswer(URLError(.notConnectedToInternet)) }
        try await accounts.list(device)
    }
    func unlist(_ key: Data) async throws { try await accounts.unlist(key) }
}
