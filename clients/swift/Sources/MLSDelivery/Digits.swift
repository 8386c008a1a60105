import Foundation

#if canImport(CommonCrypto)
    import CommonCrypto
#endif

/// Why there is no safety number or group code.
public enum CodeError: Error, Hashable, Sendable {
    /// A person has no keys.
    case noKeys(DID)
    /// Both persons have the same DID.
    case sameDID(DID)
    /// A key of a person is not as long as the public keys of any cipher suite.
    case keyLength(DID, bytes: Int)
    /// An epoch_authenticator is not as long as the hash of any cipher suite.
    case authenticatorLength(bytes: Int)
    /// A text is not the form of a safety number that is scanned.
    case notASafetyNumber
    /// Linux: there is no libcrypto of OpenSSL 1.1 or 3.
    case noLibrary
}

/// What safety numbers and group codes are made of: digits that people compare.
enum Digits {
    /// How the digits are made. Digits of two versions cannot be compared.
    static let version = 1

    /// How often SHA-512 is iterated: that much each attempt costs an attacker. Other keys with the digits of a
    /// given person take 2^100 attempts, because 30 digits hold 100 bits. Two commits that split a group and give
    /// both parts the same digits take 2^50. Attempts at one person or group do not help with another, because
    /// the DID or the secret of the group is in each of them.
    static let iterations = 5200

    /// The bytes of which five digits are made.
    private static let groupBytes = 5

    /// Makes 30 digits of byte strings: 30 bytes of PBKDF2 (RFC 8018) with HMAC-SHA-512, of which each five are
    /// a number modulo 100,000. The label is the password. The salt is the version and the byte strings, each
    /// after its length in two bytes.
    static func thirty(_ label: String, _ parts: [Data]) throws -> String {
        var salt = [UInt8(version)]
        for part in parts { salt += [UInt8(part.count >> 8), UInt8(part.count & 255)] + part }
        let bytes = try pbkdf2(password: label, salt: salt, iterations: iterations, bytes: 6 * groupBytes)
        return stride(from: 0, to: bytes.count, by: groupBytes).map { at in
            let number = bytes[at..<at + groupBytes].reduce(0) { $0 << 8 | Int($1) } % 100_000
            let digits = String(number)
            return String(repeating: "0", count: 5 - digits.count) + digits
        }.joined()
    }

    /// Digits as people read them: groups of five, with spaces between them.
    static func grouped(_ digits: String) -> String {
        digits.enumerated().map { $0 > 0 && $0 % 5 == 0 ? " \($1)" : String($1) }.joined()
    }
}

/// PBKDF2 (RFC 8018) with HMAC-SHA-512. Apple's systems have it in CommonCrypto, Linux in libcrypto.
func pbkdf2(password: String, salt: [UInt8], iterations: Int, bytes count: Int) throws -> [UInt8] {
    var key = [UInt8](repeating: 0, count: count)
    #if canImport(CommonCrypto)
        let status = CCKeyDerivationPBKDF(
            CCPBKDFAlgorithm(kCCPBKDF2), password, password.utf8.count, salt, salt.count,
            CCPseudoRandomAlgorithm(kCCPRFHmacAlgSHA512), UInt32(iterations), &key, count
        )
        precondition(status == kCCSuccess, "CommonCrypto refuses only lengths and counts of zero")
    #else
        typealias Algorithm = @convention(c) () -> OpaquePointer?
        typealias Derive = @convention(c) (
            UnsafePointer<CChar>?, Int32, UnsafePointer<UInt8>?, Int32, Int32, OpaquePointer?, Int32, UnsafeMutablePointer<UInt8>?
        ) -> Int32
        guard let library = LibCrypto(), let sha512 = library.find("EVP_sha512", Algorithm.self),
            let derive = library.find("PKCS5_PBKDF2_HMAC", Derive.self),
            derive(password, Int32(password.utf8.count), salt, Int32(salt.count), Int32(iterations), sha512(), Int32(count), &key) == 1
        else { throw CodeError.noLibrary }
    #endif
    return key
}
