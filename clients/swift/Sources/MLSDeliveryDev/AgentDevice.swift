#if os(macOS) || os(Linux)

import Foundation
import MLSDelivery

/// A device of a real MLS library, mls-go, for tests and first steps: the library runs in the process
/// `clientsim/agents/mlsgo`. Its whole state is one value in the storage, `mls/device`.
public actor AgentDevice: MLSDevice {
    public let signatureKey: Data
    public let deviceID: String
    public let cipherSuite: String
    private let agent: AgentProcess
    private var changed = true

    struct Reply: Decodable, Sendable {
        var error: String?
        var output: Data?
        var outputs: [Data]?
        var refs: [String]?
        var group: Data?
        var epoch: Int?
        var signatureKey: Data?
        var deviceId: String?
        var suite: String?
        var kind: String?
        var commit: Data?
        var welcome: Data?
        var groupInfo: Data?
        var from: Leaf?
        var external: Bool?
        var members: [Leaf]?
    }

    public struct Failure: Error { public var text: String }

    private init(_ agent: AgentProcess, _ loaded: Reply) {
        self.agent = agent
        signatureKey = loaded.signatureKey ?? Data()
        (deviceID, cipherSuite) = (loaded.deviceId ?? "", loaded.suite ?? "")
    }

    /// `program` is the path of the agent.
    public static func load(_ values: [String: Data], account: DID, program: String) async throws -> AgentDevice {
        let agent = try AgentProcess(program)
        let state = (values["mls/device"] ?? Data()).base64EncodedString()
        return AgentDevice(agent, try await agent.ask(["op": "load", "identity": account.rawValue, "input": state]))
    }

    private func ask(_ op: String, _ group: Data = Data(), input: Data = Data(), _ more: [String: any Sendable] = [:]) async throws -> Reply {
        var request: [String: any Sendable] = ["op": op, "group": group.base64EncodedString(), "input": input.base64EncodedString()]
        request.merge(more) { _, new in new }
        return try await agent.ask(request)
    }

    private func change(_ op: String, _ group: Data = Data(), input: Data = Data(), _ more: [String: any Sendable] = [:]) async throws -> Reply {
        changed = true
        return try await ask(op, group, input: input, more)
    }

    public func takeChanges() async throws -> Changes {
        guard changed else { return [:] }
        changed = false
        return ["mls/device": try await ask("export").output]
    }

    public func makeKeyPackages(_ count: Int, lastResort: Bool) async throws -> [Data] {
        try await change("keyPackages", ["count": count, "lastResort": lastResort]).outputs ?? []
    }
    public func keyPackageRefs() async throws -> Set<String> { Set(try await ask("refs").refs ?? []) }
    private func change(_ op: String, _ more: [String: any Sendable]) async throws -> Reply { try await change(op, Data(), input: Data(), more) }

    public func create(groupID: Data) async throws { _ = try await change("create", groupID) }
    public func join(welcome: Data, if fits: @Sendable (GroupState) async throws -> Void) async throws -> GroupState {
        try await fits(state(ask("readWelcome", input: welcome)))
        return try await state(change("join", input: welcome))
    }
    private func state(_ reply: Reply) -> GroupState {
        GroupState(groupID: reply.group ?? Data(), epoch: reply.epoch ?? 0, members: reply.members ?? [])
    }
    public func members(of groupID: Data) async throws -> [Leaf]? {
        let reply = try await ask("epoch", groupID)
        return reply.epoch == nil ? nil : reply.members ?? []
    }
    public func leaf(ofKeyPackage keyPackage: Data) async throws -> Leaf {
        guard let leaf = try await ask("readKeyPackage", input: keyPackage).members?.first else { throw Failure(text: "no leaf") }
        return leaf
    }
    public func group(of groupInfo: Data) async throws -> GroupState { try await state(ask("readGroupInfo", input: groupInfo)) }
    public func epoch(of groupID: Data) async throws -> Int? { try await ask("epoch", groupID).epoch }
    public func epochAuthenticator(of groupID: Data) async throws -> Data { try await ask("authenticator", groupID).output ?? Data() }
    public func encrypt(_ plaintext: Data, in groupID: Data) async throws -> Data {
        try await change("encrypt", groupID, input: plaintext).output ?? Data()
    }
    public func process(_ message: Data, in groupID: Data) async throws -> Received {
        let reply = try await change("process", groupID, input: message)
        let nobody = Leaf(identity: "", signatureKey: Data())
        switch reply.kind {
        case "commit": return .commit(from: reply.from ?? nobody, isExternal: reply.external == true)
        case "proposal": return .proposal(from: reply.from, removes: nil)
        default: return .application(reply.output ?? Data(), from: reply.from ?? nobody)
        }
    }
    public func stage(_ wanted: GroupChange, in groupID: Data) async throws -> StagedCommit? {
        let add = wanted.add.map { $0.base64EncodedString() }
        return try await staged(change("stage", groupID, input: Data(), [
            "add": add, "remove": wanted.remove.map(\.rawValue), "devices": wanted.removeDevices.map { $0.signatureKey.base64EncodedString() },
        ]))
    }
    private func staged(_ reply: Reply) throws -> StagedCommit? {
        guard let commit = reply.commit, let group = reply.group, let epoch = reply.epoch, let info = reply.groupInfo else { return nil }
        return StagedCommit(groupID: group, epoch: epoch, commit: commit, welcome: reply.welcome, groupInfo: info)
    }
    public func proposeRemoval(of leaf: Leaf, in groupID: Data) throws -> Data { throw Failure(text: "mls-go makes no proposals") }
    public func confirm(groupID: Data) async throws { _ = try await change("confirm", groupID) }
    public func discard(groupID: Data) async throws { _ = try await change("discard", groupID) }
    public func groupInfo(of groupID: Data) async throws -> Data { try await ask("groupInfo", groupID).output ?? Data() }
    public func stageExternal(groupInfo: Data) async throws -> StagedCommit {
        guard let staged = try await staged(change("stageExternal", input: groupInfo)) else { throw Failure(text: "no external commit") }
        return staged
    }
    public func confirmExternal(groupID: Data) async throws { _ = try await change("confirmExternal", groupID) }
}

/// A process that answers lines with lines.
private actor AgentProcess {
    private let process = Process()
    private let input = Pipe()
    private let output = Pipe()
    private var rest = Data()

    init(_ program: String) throws {
        guard FileManager.default.isExecutableFile(atPath: program) else {
            throw AgentDevice.Failure(text: "\(program) is no program: build clientsim/agents/mlsgo")
        }
        process.executableURL = URL(fileURLWithPath: program)
        process.standardInput = input
        process.standardOutput = output
        try process.run()
    }

    deinit { try? input.fileHandleForWriting.close() } // the agent ends with its input

    func ask(_ request: [String: any Sendable]) throws -> AgentDevice.Reply {
        try input.fileHandleForWriting.write(contentsOf: JSONSerialization.data(withJSONObject: request) + [10])
        while true {
            if let end = rest.firstIndex(of: 10) {
                let line = rest[rest.startIndex..<end]
                rest = Data(rest[(end + 1)...])
                let reply = try JSONDecoder().decode(AgentDevice.Reply.self, from: Data(line))
                if let error = reply.error { throw AgentDevice.Failure(text: error) }
                return reply
            }
            let piece = output.fileHandleForReading.availableData
            if piece.isEmpty { throw AgentDevice.Failure(text: "the agent has ended") }
            rest += piece
        }
    }
}

#endif
