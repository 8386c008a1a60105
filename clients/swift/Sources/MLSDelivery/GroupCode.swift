import Foundation

/// The code of a group at one epoch: the same for all who are in the same group. Each commit makes
/// another one.
public struct GroupCode: Hashable, Codable, Sendable {
    /// How it is made. Codes of two versions cannot be compared.
    public let version: Int
    /// Codes of two epochs differ.
    public let epoch: Int
    /// 30 decimal digits. People compare all of them.
    public let digits: String

    private static let label = "mlsd group code"

    /// The lengths of the hashes of cipher suites: SHA-256, SHA-384 and SHA-512.
    private static let hashLengths: Set<Int> = [32, 48, 64]

    /// Makes the code of a group. Errors: ``CodeError``.
    public init(epoch: Int, authenticator: Data) throws {
        guard Self.hashLengths.contains(authenticator.count) else { throw CodeError.authenticatorLength(bytes: authenticator.count) }
        (version, self.epoch) = (Digits.version, epoch)
        digits = try Digits.thirty(Self.label, [authenticator])
    }

    /// The digits as people read them: six groups of five.
    public var grouped: String { Digits.grouped(digits) }
}
