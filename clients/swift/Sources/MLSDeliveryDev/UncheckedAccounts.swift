import Foundation
import MLSDelivery

/// Accounts that list every device: for first steps and tests, with people who have no repositories. In an app a
/// server could then put devices of its own into every group.
public struct UncheckedAccounts: Accounts {
    public init() {}
    public func lists(_ key: Data, of account: DID) -> Bool { true }
    public func devices(of account: DID) -> [ListedDevice] { [] }
    public func hasEnded(_ account: DID) -> Bool { false }
    public func list(_ device: ListedDevice) {}
    public func unlist(_ key: Data) {}
}
