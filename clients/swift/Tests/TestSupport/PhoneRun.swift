import Foundation
import MLSDelivery
import MLSDeliveryDev

/// What a phone is asked to do: send numbered messages to a convo, whose group_id is known.
public struct PhoneJob: Codable, Sendable {
    public var server: URL
    public var account: String
    public var convo: String
    public var messages: Int
    public var folder: String
    public var seed: UInt64
    /// It is killed at one in so many steps.
    public var killed: Int

    public init(server: URL, account: String, convo: String, messages: Int, folder: String, seed: UInt64, killed: Int) {
        (self.server, self.account, self.convo, self.messages) = (server, account, convo, messages)
        (self.folder, self.seed, self.killed) = (folder, seed, killed)
    }
}

/// The values that a phone's storage begins with: a group at epoch 0 and its convo.
public func firstValues(convo: String, groupID: Data, with others: [Leaf] = [], device: String = "phone") async throws -> Changes {
    let mls = try FakeMLS([:], device: device, seed: 0)
    await mls.create(groupID: groupID, with: others)
    var changes = try await mls.takeChanges()
    changes["listed"] = Data()
    changes["thread/" + convo] = Data(#"{"convoId":"\#(convo)","groupId":"\#(groupID.base64EncodedString())","entered":0,"seq":0,"rewound":false}"#.utf8)
    return changes
}

/// One life of an app that sends numbered messages. Which one is next is stored with each message. It
/// returns when all have been sent.
public func sendNumbered(_ messenger: Messenger, _ convo: String, _ count: Int, life: Life) async throws {
    let events = await messenger.outbox.events()
    try await messenger.start(listening: false)
    var next = Int(String(decoding: await messenger.value("app/next") ?? Data("0".utf8), as: UTF8.self)) ?? 0
    while next < count {
        try await messenger.send(Data("message \(next)".utf8), to: convo, with: ["app/next": Data(String(next + 1).utf8)])
        next += 1
    }
    if await !messenger.outbox.pending.isEmpty {
        for await event in events {
            if case .storageFailed = event { throw Life.Killed() }
            if await life.isOver { throw Life.Killed() }
            if await messenger.outbox.pending.isEmpty { break }
        }
    }
    await messenger.stop()
}

/// The main function of the process `phone`: its argument is a ``PhoneJob``. It ends with status 0 when
/// everything is sent, and is killed now and then. With `--hold PATH` it opens a storage, says whether it has it, and
/// keeps it until it is ended.
public func runPhone(_ arguments: [String]) async throws {
    if arguments[1] == "--hold" { return try hold(arguments[2]) }
    let job = try JSONDecoder().decode(PhoneJob.self, from: Data(arguments[1].utf8))
    let life = Life(seed: job.seed, times: job.killed) { kill(getpid(), SIGKILL) }
    let dev = DevServer(job.server)
    let service = Service(dev.route(DID(job.account)), transport: MortalTransport(URLSessionTransport(), life))
    let storage = MortalStorage(try FileStorage(path: job.folder + "/store"), life)
    let surroundings = Surroundings(sleep: { try await Task.sleep(nanoseconds: UInt64(min($0, 0.05) * 1e9)) }) // a run takes seconds
    let messenger = try await Messenger(account: DID(job.account), service: service, accounts: UncheckedAccounts(), storage: storage, surroundings: surroundings) {
        try FakeMLS($0, device: "phone", seed: job.seed)
    }
    try await sendNumbered(messenger, job.convo, job.messages, life: life)
}

private func hold(_ path: String) throws {
    do {
        let storage = try FileStorage(path: path)
        FileHandle.standardOutput.write(Data("open\n".utf8))
        withExtendedLifetime(storage) { _ = readLine() } // until its input ends
    } catch is StoreOpenError { FileHandle.standardOutput.write(Data("open elsewhere\n".utf8)) }
}
