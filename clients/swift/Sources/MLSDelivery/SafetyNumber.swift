import Foundation

/// The safety number of two persons: the same for both, as long as both see the same keys.
public struct SafetyNumber: Hashable, Codable, Sendable {
    /// How it is made. Numbers of two versions cannot be compared.
    public let version: Int
    /// 60 decimal digits. People compare all of them.
    public let digits: String

    /// What a comparison says.
    public enum Comparison: Hashable, Sendable {
        case same, differs
        /// One of the apps is older, and nothing can be said about keys.
        case otherVersion
    }

    private static let label = "mlsd safety number"
    private static let digitCount = 60

    /// The lengths of the signature keys of cipher suites: Ed25519, Ed448, P-256, P-384, P-521, ML-DSA-44, -65 and -87.
    private static let keyLengths: Set<Int> = [32, 57, 65, 97, 133, 1312, 1952, 2592]

    /// Makes the safety number of two persons. The order of the persons and of the keys does not matter; a
    /// key counts once.
    ///
    /// `ownKeys` are the signature keys of all devices that the person lists. Errors: ``CodeError``, and
    /// ``InvalidInput`` for what is no DID.
    public init(ownDID: DID, ownKeys: [Data], otherDID: DID, otherKeys: [Data]) throws {
        if ownDID == otherDID { throw CodeError.sameDID(ownDID) }
        version = Digits.version
        digits = try [Self.half(ownDID, ownKeys), Self.half(otherDID, otherKeys)].sorted().joined()
    }

    /// The digits of one person. They are the same in its safety numbers with others.
    private static func half(_ did: DID, _ keys: [Data]) throws -> String {
        try did.check()
        if keys.isEmpty { throw CodeError.noKeys(did) }
        if let wrong = keys.first(where: { !keyLengths.contains($0.count) }) { throw CodeError.keyLength(did, bytes: wrong.count) }
        let sorted = Set(keys).sorted { $0.lexicographicallyPrecedes($1) }
        return try Digits.thirty(label, [Data(did.rawValue.utf8)] + sorted)
    }

    /// Reads ``text``, also that of a later version. Errors: ``CodeError/notASafetyNumber``.
    public init(text: String) throws {
        guard let (_, number, digits) = text.wholeMatch(of: /mlsd-safety:([1-9][0-9]{0,2}):([0-9]+)/)?.output,
            let version = UInt8(number), version != Digits.version || digits.count == Self.digitCount
        else { throw CodeError.notASafetyNumber }
        (self.version, self.digits) = (Int(version), String(digits))
    }

    /// What one device shows, for example as a QR code, and the other one scans.
    public var text: String { "mlsd-safety:\(version):\(digits)" }

    /// The digits as people read them: twelve groups of five.
    public var grouped: String { Digits.grouped(digits) }

    /// Compares two safety numbers, each as a whole.
    public func compared(with scanned: SafetyNumber) -> Comparison {
        if version != scanned.version { return .otherVersion }
        return digits == scanned.digits ? .same : .differs
    }
}
