import Foundation

/// What a commit did to a group, as MLS shows it. If nobody and nothing is named, it renewed keys.
public struct CommitChange: Codable, Hashable, Sendable {
    /// A device of somebody in a group.
    public struct Device: Codable, Hashable, Sendable {
        public var account: DID
        /// The signature key.
        public var key: Data
        /// The SHA-256 of the signature key, in lower-case hexadecimal.
        public var deviceId: String { hexadecimal(sha256(key)) }
    }

    public enum What: String, Codable, Sendable { case entered, left, keyChanged }

    public struct DeviceChange: Codable, Hashable, Sendable {
        public var change: What
        /// With `keyChanged`: by its new key.
        public var device: Device
    }

    /// The device that has made the commit. It can contain proposals of others.
    public var by: Device
    /// The people who had no device in the group before.
    public var added: [DID]
    /// The people who have none any more.
    public var removed: [DID]
    public var devices: [DeviceChange]
}

extension CommitChange {
    /// Compares a group before and after a commit. A leaf that leaves and one of the same account that enters are one
    /// device with a new key.
    init(from before: [Leaf], to after: [Leaf], by sender: Leaf) {
        by = Device(sender)
        let (were, are) = (Set(before.map(\.account)), Set(after.map(\.account)))
        added = are.subtracting(were).sorted { $0.rawValue < $1.rawValue }
        removed = were.subtracting(are).sorted { $0.rawValue < $1.rawValue }
        devices = []
        var gone = before.filter { !after.contains($0) }
        for leaf in after where !before.contains(leaf) {
            let old = gone.firstIndex { $0.account == leaf.account }
            if let old { gone.remove(at: old) }
            devices.append(DeviceChange(change: old == nil ? .entered : .keyChanged, device: Device(leaf)))
        }
        devices += gone.map { DeviceChange(change: .left, device: Device($0)) }
    }
}

extension CommitChange.Device {
    init(_ leaf: Leaf) { (account, key) = (leaf.account, leaf.signatureKey) }
}
