import Foundation

#if canImport(Darwin)
    import Darwin
#else
    import Glibc
#endif

/// An open file, with the system calls that a journal needs. FileHandle cannot lock, and tells no errno.
final class File {
    private var path: String
    private let descriptor: Int32
    private(set) var size: Int

    init(_ path: String) throws {
        self.path = path
        descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { throw StorageError.system("open \(path)", code: errno) }
        size = Int(lseek(descriptor, 0, SEEK_END))
    }

    deinit { close(descriptor) }

    /// Locks the file until it is closed or the process ends.
    func lock() throws {
        guard flock(descriptor, LOCK_EX | LOCK_NB) == 0 else { throw StoreOpenError(path: path) }
    }

    func read() throws -> Data {
        var content = Data(count: size)
        var done = 0
        while done < size {
            let n = content.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress! + done, size - done, off_t(done)) }
            if n < 0 && errno == EINTR { continue }
            guard n > 0 else { throw StorageError.system("read \(path)", code: errno) }
            done += n
        }
        return content
    }

    /// Appends the bytes and syncs them.
    func append(_ data: Data) throws {
        var done = 0
        while done < data.count {
            let n = data.withUnsafeBytes { pwrite(descriptor, $0.baseAddress! + done, data.count - done, off_t(size + done)) }
            if n < 0 && errno == EINTR { continue }
            guard n > 0 else { throw StorageError.system("write \(path)", code: errno) }
            done += n
        }
        try sync(descriptor)
        size += data.count
    }

    func truncate(to length: Int) throws {
        guard ftruncate(descriptor, off_t(length)) == 0 else { throw StorageError.system("truncate \(path)", code: errno) }
        try sync(descriptor)
        size = length
    }

    func rename(to new: String) throws {
        #if canImport(Darwin)
            let renamed = Darwin.rename(path, new)
        #else
            let renamed = Glibc.rename(path, new)
        #endif
        guard renamed == 0 else { throw StorageError.system("rename \(path)", code: errno) }
        path = new
        try syncDirectory()
    }

    /// Makes the file's name durable.
    func syncDirectory() throws {
        let folder = (path as NSString).deletingLastPathComponent
        let directory = open(folder.isEmpty ? "." : folder, O_RDONLY | O_CLOEXEC)
        guard directory >= 0 else { throw StorageError.system("open \(folder)", code: errno) }
        defer { close(directory) }
        try sync(directory)
    }

    private func sync(_ descriptor: Int32) throws {
        #if canImport(Darwin)
            // fsync of Darwin leaves the bytes in the drive's cache.
            let synced = fcntl(descriptor, F_FULLFSYNC)
        #else
            let synced = fsync(descriptor)
        #endif
        guard synced >= 0 else { throw StorageError.system("sync \(path)", code: errno) }
    }
}
