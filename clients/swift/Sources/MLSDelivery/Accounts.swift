import Foundation

/// What accounts say of themselves: their own PDS, which the DID document names, and never the delivery service.
/// ``ATProtoAccounts`` asks it, and ``MemoryAccounts`` are for tests.
public protocol Accounts: Sendable {
    /// Whether an account lists a device's signature key. Error: ``AccountAway`` if nobody can say now.
    func lists(_ key: Data, of account: DID) async throws -> Bool
    /// All devices that an account lists, in the order of their ``recordKey(of:)``. Error: ``AccountAway``.
    func devices(of account: DID) async throws -> [ListedDevice]
    /// Whether an account has ended for good: it was deleted at its PDS, or its DID is a tombstone. An account
    /// that is deactivated or suspended can come back: it has not ended. Error: ``AccountAway``.
    func hasEnded(_ account: DID) async throws -> Bool
    /// Writes the record of this device into the own account's repository, if it is not there as it should be.
    func list(_ device: ListedDevice) async throws
    /// Takes a device's record away. It does nothing the second time.
    func unlist(_ key: Data) async throws
}

extension Accounts {
    /// The keys of all devices that an account lists, in the order of their ``recordKey(of:)``. Error: ``AccountAway``.
    public func keys(of account: DID) async throws -> [Data] { try await devices(of: account).map(\.key) }
}

/// What an account says of one of its devices.
public struct ListedDevice: Codable, Hashable, Sendable {
    /// The public signature key, as in the leaves of the device.
    public var key: Data
    /// The registered name of the key's cipher suite.
    public var cipherSuite: String
    /// What people call the device. Everybody can read it. Without one the record keeps the name that it has.
    public var name: String?
    public init(key: Data, cipherSuite: String, name: String? = nil) { (self.key, self.cipherSuite, self.name) = (key, cipherSuite, name) }
}

/// Nobody can say now what an account lists.
public struct AccountAway: Error, Hashable, Sendable, CustomStringConvertible {
    public var account: DID
    public var reason: String
    public init(_ account: DID, _ reason: String) { (self.account, self.reason) = (account, reason) }
    public var description: String { "\(account): \(reason)" }
}

/// The record key of a device's record: the base32 of the first 20 bytes of the key's SHA-256, in lower case. It
/// comes from the signature key, so that a record cannot stand under the name of another key.
public func recordKey(of key: Data) -> String {
    let letters = Array("abcdefghijklmnopqrstuvwxyz234567")
    var (name, bits, count) = ("", 0, 0)
    for byte in sha256(key).prefix(20) {
        bits = (bits << 8 | Int(byte)) & 0xfff // at most 4 bits wait for the next byte
        count += 8
        while count >= 5 {
            count -= 5
            name.append(letters[bits >> count & 31])
        }
    }
    return name
}

/// Accounts that end with the process, for tests. Each person's device has those of `as`, which share what they
/// know.
public struct MemoryAccounts: Accounts {
    private actor Known {
        struct Account {
            var devices: [String: ListedDevice] = [:]
            var isAway = false
            var hasEnded = false
        }
        private var accounts: [DID: Account] = [:]
        private(set) var questions = 0

        func account(_ account: DID) -> Account { accounts[account] ?? Account() }
        func change(_ account: DID, _ change: @Sendable (inout Account) -> Void) { change(&accounts[account, default: Account()]) }
        func reach(_ did: DID) throws -> Account {
            questions += 1
            let account = account(did)
            if account.isAway { throw AccountAway(did, "the account is away") }
            return account
        }
    }

    private let own: DID
    private let known: Known

    /// `account` is the own one.
    public init(_ account: DID) { (own, known) = (account, Known()) }
    private init(_ account: DID, _ known: Known) { (own, self.known) = (account, known) }

    /// The same accounts, as another person's device has them.
    public func `as`(_ account: DID) -> MemoryAccounts { MemoryAccounts(account, known) }

    public func lists(_ key: Data, of account: DID) async throws -> Bool {
        let account = try await living(account)
        return account.devices[recordKey(of: key)] != nil
    }

    public func devices(of account: DID) async throws -> [ListedDevice] {
        let devices = try await living(account).devices
        return devices.keys.sorted().compactMap { devices[$0] }
    }

    public func hasEnded(_ account: DID) async throws -> Bool { try await known.reach(account).hasEnded }

    private func living(_ did: DID) async throws -> Known.Account {
        let account = try await known.reach(did)
        if account.hasEnded { throw AccountAway(did, "the account has ended") }
        return account
    }

    public func list(_ device: ListedDevice) async throws {
        await known.change(own) { account in
            let name = recordKey(of: device.key)
            var new = device
            new.name = device.name ?? account.devices[name]?.name
            account.devices[name] = new
        }
    }

    public func unlist(_ key: Data) async throws { await hide(key, of: own) }

    /// A fault: the PDS of an account is away, until `is` is false.
    public func setAway(_ account: DID, _ isAway: Bool = true) async { await known.change(account) { $0.isAway = isAway } }
    /// A fault: a device's record is gone from an account.
    public func hide(_ key: Data, of account: DID) async { await known.change(account) { $0.devices[recordKey(of: key)] = nil } }
    /// An account ends.
    public func end(_ account: DID) async { await known.change(account) { $0.hasEnded = true } }
    /// How many questions there were.
    public var questions: Int { get async { await known.questions } }
}
