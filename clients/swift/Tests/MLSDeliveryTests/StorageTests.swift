import MLSDelivery
import XCTest

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
        XCTAssertThrowsError(try FileStorage(path: path)) { XCTAssertEqual($0 as? StorageError, .inUse(path + ".lock")) }
        try await first.write(["a": Data()])
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
