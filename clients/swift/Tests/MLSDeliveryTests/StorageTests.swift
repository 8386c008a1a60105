import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

final class StorageTests: XCTestCase {
    private var path = ""

    override func setUpWithError() throws {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent("mls-" + UUID().uuidString)
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        addTeardownBlock { try FileManager.default.removeItem(at: folder) }
        path = folder.appendingPathComponent("store").path
    }

    private func load() async throws -> [String: Data] { try await FileStorage(path: path).load() }

    /// Cut anywhere, the file has the writes before the cut, whole.
    func testTornAtEachByte() async throws {
        var sizes: [Int] = []
        do {
            let storage = try FileStorage(path: path)
            for i in 0..<3 {
                try await storage.write(["a": Data("\(i)".utf8), "b\(i)": Data()])
                sizes.append(try Data(contentsOf: URL(fileURLWithPath: path)).count)
            }
        }
        let whole = try Data(contentsOf: URL(fileURLWithPath: path))
        for length in 0...whole.count {
            try whole.prefix(length).write(to: URL(fileURLWithPath: path))
            let values = try await load()
            let writes = sizes.filter { $0 <= length }.count
            XCTAssertEqual(values["a"], writes == 0 ? nil : Data("\(writes - 1)".utf8), "cut at \(length)")
            XCTAssertEqual(values.count, writes == 0 ? 0 : writes + 1)
            try await FileStorage(path: path).write(["z": Data([1])]) // it goes on behind the cut
            let after = try await load()
            XCTAssertEqual(after.count, values.count + 1)
        }
    }

    /// A changed byte before the last record is no torn write: nothing is dropped silently.
    func testDamageIsTold() async throws {
        do {
            let storage = try FileStorage(path: path)
            for i in 0..<3 { try await storage.write(["a\(i)": Data(count: 30)]) }
        }
        var content = try Data(contentsOf: URL(fileURLWithPath: path))
        content[20] ^= 1
        try content.write(to: URL(fileURLWithPath: path))
        do {
            _ = try await load()
            XCTFail("the damage was not noticed")
        } catch let error as StorageError { XCTAssertEqual(error, .damaged(path, offset: 0)) }
    }

    func testOneOwner() async throws {
        let first = try FileStorage(path: path)
        XCTAssertThrowsError(try FileStorage(path: path)) { XCTAssertEqual(($0 as? StoreOpenError)?.code, "StoreOpen") }
        let other = path + ".link" // another name of the file
        try FileManager.default.createSymbolicLink(atPath: other, withDestinationPath: path)
        XCTAssertThrowsError(try FileStorage(path: other)) { XCTAssertTrue($0 is StoreOpenError, "\($0)") }
        try await first.write(["a": Data()])
    }

    /// D1: two messengers over one open storage would use a key of MLS twice.
    func testD1AStorageHasOneMessenger() async throws {
        let storage = try FileStorage(path: path)
        let first = try await open(storage)
        do {
            _ = try await open(storage)
            XCTFail("a second messenger has the storage")
        } catch let error as StoreOpenError { XCTAssertEqual(error.code, "StoreOpen") }
        try await first.start(listening: false)
        await first.stop()
        let second = try await open(storage)
        do {
            try await first.start(listening: false)
            XCTFail("a stopped messenger goes on beside its successor")
        } catch let error as StoreOpenError { XCTAssertEqual(error.code, "StoreOpen") }
        await second.stop()
        _ = try await open(storage) // and is gone at once
        _ = try await open(storage)
    }

    private func open(_ storage: FileStorage) async throws -> Messenger {
        let service = Service(.direct(URL(string: "https://mls.example.com")!) { _ in "token" }, transport: ModelServer(seed: 1))
        return try await Messenger(
            account: DID(ModelServer.caller), service: service, accounts: UncheckedAccounts(), storage: storage, surroundings: simulated(seed: 1)
        ) { try FakeMLS($0, device: "phone", seed: 1) }
    }

    /// D2: three starts at once after a kill: one has the storage, and one has it always.
    func testD2ThreeStartsAfterAKill() async throws {
        let runs = Int(ProcessInfo.processInfo.environment["MLSD_SWIFT_STARTS"] ?? "") ?? 20
        for run in 0..<runs {
            let holder = try hold()
            kill(holder.process.processIdentifier, SIGKILL)
            holder.process.waitUntilExit()
            let starts = try (0..<3).map { _ in try hold(waiting: false) }
            let said = starts.map(\.line)
            XCTAssertEqual(said.map { $0() }.sorted(), ["open", "open elsewhere", "open elsewhere"], "run \(run)")
            for start in starts {
                start.process.terminate()
                start.process.waitUntilExit()
            }
        }
    }

    /// A process that opens the storage, says so, and keeps it until it is ended.
    private func hold(waiting: Bool = true) throws -> (process: Process, line: () -> String) {
        let (process, output) = (Process(), Pipe())
        process.standardInput = Pipe()
        process.executableURL = DevTests.phone
        process.arguments = ["--hold", path]
        process.standardOutput = output
        try process.run()
        let line = { String(decoding: output.fileHandleForReading.availableData, as: UTF8.self).trimmingCharacters(in: .newlines) }
        if waiting { XCTAssertEqual(line(), "open") }
        return (process, line)
    }

    /// D16: an app has no folder for its data until somebody makes it.
    func testD16TheFolderIsMade() async throws {
        path = (path as NSString).deletingLastPathComponent + "/Application Support/mlsd/store"
        try await FileStorage(path: path).write(["a": Data([1])])
        let values = try await load()
        XCTAssertEqual(values, ["a": Data([1])])
    }

    /// D16: the file that takes the place of the old one is in no backup either, before it has a value.
    func testD16ACompactedFileIsInNoBackup() async throws {
        let marked = Marked()
        let storage = try FileStorage(path: path, attributes: FileAttributes { marked.add($0) })
        for i in 0..<60 { try await storage.write(["a": Data(count: 8192), "n": Data("\(i)".utf8)]) }
        let inode = try FileManager.default.attributesOfItem(atPath: path)[.systemFileNumber] as? Int
        XCTAssertEqual(marked.files.last?.inode, inode)
        XCTAssertGreaterThan(marked.files.count, 1, "it was not compacted")
        XCTAssertEqual(marked.files.map(\.size), Array(repeating: 0, count: marked.files.count))
    }

    /// The files that were marked, as they were then.
    private final class Marked: @unchecked Sendable {
        private(set) var files: [(inode: Int?, size: Int?)] = [] // one storage writes at a time
        func add(_ path: String) {
            let attributes = try? FileManager.default.attributesOfItem(atPath: path)
            files.append((attributes?[.systemFileNumber] as? Int, attributes?[.size] as? Int))
        }
    }

    func testOldValuesAreDropped() async throws {
        do {
            let storage = try FileStorage(path: path)
            for i in 0..<60 { try await storage.write(["a": Data(count: 8192), "n": Data("\(i)".utf8)]) }
        }
        XCTAssertLessThan(try Data(contentsOf: URL(fileURLWithPath: path)).count, 300 << 10)
        let values = try await load()
        XCTAssertEqual(values["n"], Data("59".utf8))
        XCTAssertEqual(values["a"]?.count, 8192)
    }

    func testRemoval() async throws {
        do {
            let storage = try FileStorage(path: path)
            try await storage.write(["a": Data([1]), "b": Data([2])])
            try await storage.write(["a": nil])
        }
        let values = try await load()
        XCTAssertEqual(values, ["b": Data([2])])
    }
}
