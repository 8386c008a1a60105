import Foundation

/// Changes of a storage: new values by name, nil for those that are removed.
public typealias Changes = [String: Data?]

/// What survives when the app is killed.
///
/// One write is atomic and durable: after it has returned, all of it is there at the next start,
/// and before that all of it or nothing. ``FileStorage`` is one. An app that has an SQLite database
/// can keep the values there, in a table of name and value.
public protocol Storage: Sendable {
    func load() async throws -> [String: Data]
    func write(_ changes: Changes) async throws
    /// Gives the storage to a messenger, and again to the same one. Error: ``StoreOpenError`` if another one has it.
    func acquire(for owner: StorageOwner) async throws
    func release(by owner: StorageOwner) async
}

/// The storage is open elsewhere: another messenger has it, another object of this process, or another process. Nothing
/// was changed.
public struct StoreOpenError: Error, Hashable {
    public var path: String
    public init(path: String) { self.path = path }
}

/// A storage has one messenger. Two over one use a key of MLS twice, and others cannot read what they send. It is owned
/// until `release`, or until the owner is gone.
public final class StorageOwner: Sendable { public init() {} }

extension Storage {
    /// A storage of the app's own, over a database that nobody else opens, need not do anything.
    public func acquire(for owner: StorageOwner) async throws {}
    public func release(by owner: StorageOwner) async {}
}

public enum StorageError: Error, Hashable {
    /// The bytes at the offset are not what was written, and are not the torn end of a write.
    case damaged(String, offset: Int)
    /// The system call failed with this errno. After a failed write nothing more is written.
    case system(String, code: Int32)
}

/// A storage in one file: a journal of changes, each one appended and synced before `write` returns.
///
/// A record is the length of its payload (4 bytes, big-endian), the first 8 bytes of the payload's
/// SHA-256, and the payload, JSON. What a crash left half written at the end is cut off at the
/// next start. When most of the file is out of date, it is written anew beside itself and renamed.
///
/// The values stay in memory: it is for outboxes and cursors, not for histories of messages.
public actor FileStorage: Storage {
    private struct Batch: Codable {
        var set: [String: Data] = [:]
        var remove: [String] = []
    }

    private static let headSize = 12
    /// Files below this size are not written anew, in bytes.
    private static let smallest = 256 << 10

    private let path: String
    private var file: File
    private let lock: File
    private var values: [String: Data] = [:]
    private var live = 0 // bytes of names and values
    private var failed: StorageError?
    private let attributes: FileAttributes
    private weak var owner: StorageOwner?

    /// Opens the file, or makes it, and its directory. The file is excluded from backups: an MLS state that came back
    /// from one would use keys twice. `protection` is for iOS; see the README. Errors: ``StoreOpenError``,
    /// ``StorageError``.
    public init(path: String, protection: FileProtection = .untilFirstUnlock) throws {
        try self.init(path: path, attributes: .system(protection))
    }

    init(path given: String, attributes: FileAttributes) throws {
        path = (given as NSString).resolvingSymlinksInPath // two names of a file have one lock
        self.attributes = attributes
        let folder = (path as NSString).deletingLastPathComponent
        if !folder.isEmpty { try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true) }
        lock = try File(path + ".lock")
        try lock.lock()
        file = try File(path)
        try attributes.set(path)
        var offset = 0
        let content = try file.read()
        while offset < content.count {
            guard let payload = Self.payload(of: content, at: offset) else {
                guard Self.isTorn(content, at: offset) else { throw StorageError.damaged(path, offset: offset) }
                try file.truncate(to: offset)
                break
            }
            Self.apply(try JSONDecoder().decode(Batch.self, from: payload), to: &values)
            offset += Self.headSize + payload.count
        }
        try file.syncDirectory()
        live = values.reduce(0) { $0 + $1.key.utf8.count + $1.value.count }
    }

    public func load() -> [String: Data] { values }

    public func acquire(for owner: StorageOwner) throws {
        if let other = self.owner, other !== owner { throw StoreOpenError(path: path) }
        self.owner = owner
    }

    public func release(by owner: StorageOwner) {
        if self.owner === owner { self.owner = nil }
    }

    public func write(_ changes: Changes) throws {
        if let failed { throw failed }
        if changes.isEmpty { return }
        var batch = Batch()
        for (name, value) in changes {
            if let value { batch.set[name] = value } else { batch.remove.append(name) }
        }
        do {
            try file.append(Self.record(batch))
            for (name, value) in changes {
                live += (value.map { name.utf8.count + $0.count } ?? 0) - (values[name].map { name.utf8.count + $0.count } ?? 0)
            }
            Self.apply(batch, to: &values)
            // Base64 adds a third.
            if file.size > Self.smallest && file.size > 4 * live { try rewrite() }
        } catch let error as StorageError {
            failed = error // what the file holds is not known any more
            throw error
        }
    }

    /// Writes the values to a new file and renames it over the old one.
    private func rewrite() throws {
        let fresh = try File(path + ".new")
        try fresh.truncate(to: 0)
        try attributes.set(path + ".new") // before it has the values
        try fresh.append(Self.record(Batch(set: values)))
        try fresh.rename(to: path)
        file = fresh
    }

    private static func apply(_ batch: Batch, to values: inout [String: Data]) {
        values.merge(batch.set) { _, new in new }
        for name in batch.remove { values[name] = nil }
    }

    private static func record(_ batch: Batch) throws -> Data {
        let payload = try encoded(batch)
        let length = (0..<4).map { UInt8(truncatingIfNeeded: payload.count >> (24 - 8 * $0)) }
        return Data(length) + sha256(payload).prefix(8) + payload
    }

    private static func payload(of content: Data, at offset: Int) -> Data? {
        guard let end = end(of: content, at: offset), end <= content.count else { return nil }
        let payload = content[(offset + headSize)..<end]
        return sha256(payload).prefix(8) == content[(offset + 4)..<(offset + headSize)] ? payload : nil
    }

    /// Where the record's payload ends, by its length.
    private static func end(of content: Data, at offset: Int) -> Int? {
        guard content.count - offset >= headSize else { return nil }
        let length = content[offset..<(offset + 4)].reduce(0) { $0 << 8 | Int($1) }
        return length == 0 ? nil : offset + headSize + length
    }

    /// Whether a bad record can be the last one, half written: it reaches to the end of the file, or the
    /// file was made longer and has only zeros.
    private static func isTorn(_ content: Data, at offset: Int) -> Bool {
        if let end = end(of: content, at: offset), end >= content.count { return true }
        return content.count - offset < headSize || content[offset...].allSatisfy { $0 == 0 }
    }
}

/// Data Protection of a file on iOS. Elsewhere it does nothing.
public enum FileProtection: Sendable {
    /// Readable from the first unlock after a start on, so that the app can send in the background.
    case untilFirstUnlock
    /// Readable only while the device is unlocked: in the background the outbox stops.
    case whileUnlocked
}

/// What is set of a file beside its bytes. A rename does not keep it: it is set of each new file.
struct FileAttributes: Sendable {
    var set: @Sendable (_ path: String) throws -> Void

    /// Excluded from backups, and with Data Protection.
    static func system(_ protection: FileProtection) -> FileAttributes {
        FileAttributes { path in
            #if os(iOS)
                let type: FileProtectionType = protection == .untilFirstUnlock ? .completeUntilFirstUserAuthentication : .complete
                try FileManager.default.setAttributes([.protectionKey: type], ofItemAtPath: path)
            #endif
            #if canImport(Darwin)
                var url = URL(fileURLWithPath: path)
                var values = URLResourceValues()
                values.isExcludedFromBackup = true
                try url.setResourceValues(values)
            #endif
        }
    }
}
