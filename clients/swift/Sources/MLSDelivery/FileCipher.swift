import Foundation

#if canImport(CryptoKit)
    import CryptoKit
#endif

/// Why a file cannot be encrypted or opened.
public enum FileCipherError: Error, Hashable {
    /// The key, the additional data or the bytes are others than when it was sealed.
    case cannotOpen
    /// Linux: there is no libcrypto of OpenSSL 1.1 or 3.
    case noLibrary
}

/// AES-256-GCM with a nonce of 12 bytes; the tag of 16 bytes ends the ciphertext. Apple's systems have it in
/// CryptoKit, Linux in libcrypto.
enum FileCipher {
    static let keyBytes = 32
    static let nonceBytes = 12
    static let tagBytes = 16

    static func random(_ count: Int) -> Data {
        var generator = SystemRandomNumberGenerator()
        return Data((0..<count).map { _ in UInt8.random(in: 0...255, using: &generator) })
    }

    #if canImport(CryptoKit)
        static func seal(_ plain: Data, key: Data, nonce: Data, boundTo: Data) throws -> Data {
            let box = try AES.GCM.seal(plain, using: SymmetricKey(data: key), nonce: AES.GCM.Nonce(data: nonce), authenticating: boundTo)
            return box.ciphertext + box.tag
        }

        static func open(_ sealed: Data, key: Data, nonce: Data, boundTo: Data) throws -> Data {
            guard key.count == keyBytes, nonce.count == nonceBytes, sealed.count >= tagBytes else { throw FileCipherError.cannotOpen }
            do {
                let box = try AES.GCM.SealedBox(
                    nonce: AES.GCM.Nonce(data: nonce), ciphertext: sealed.dropLast(tagBytes), tag: sealed.suffix(tagBytes)
                )
                return try AES.GCM.open(box, using: SymmetricKey(data: key), authenticating: boundTo)
            } catch { throw FileCipherError.cannotOpen }
        }
    #else
        static func seal(_ plain: Data, key: Data, nonce: Data, boundTo: Data) throws -> Data {
            let library = try Library.loaded.get()
            let context = library.new()
            defer { library.free(context) }
            guard library.begin(context, library.cipher(), nil, [UInt8](key), [UInt8](nonce), 1) == 1 else { throw FileCipherError.cannotOpen }
            let ciphertext = try library.run(context, plain, boundTo)
            var tag = [UInt8](repeating: 0, count: tagBytes)
            guard library.control(context, Library.getTag, Int32(tagBytes), &tag) == 1 else { throw FileCipherError.cannotOpen }
            return ciphertext + tag
        }

        static func open(_ sealed: Data, key: Data, nonce: Data, boundTo: Data) throws -> Data {
            guard key.count == keyBytes, nonce.count == nonceBytes, sealed.count >= tagBytes else { throw FileCipherError.cannotOpen }
            let library = try Library.loaded.get()
            let context = library.new()
            defer { library.free(context) }
            var tag = [UInt8](sealed.suffix(tagBytes))
            guard library.begin(context, library.cipher(), nil, [UInt8](key), [UInt8](nonce), 0) == 1,
                library.control(context, Library.setTag, Int32(tagBytes), &tag) == 1
            else { throw FileCipherError.cannotOpen }
            return try library.run(context, sealed.dropLast(tagBytes), boundTo)
        }

        /// The functions of libcrypto's EVP interface.
        private struct Library: Sendable {
            typealias New = @convention(c) () -> OpaquePointer?
            typealias Free = @convention(c) (OpaquePointer?) -> Void
            typealias Begin = @convention(c) (
                OpaquePointer?, OpaquePointer?, OpaquePointer?, UnsafePointer<UInt8>?, UnsafePointer<UInt8>?, Int32
            ) -> Int32
            typealias Update = @convention(c) (
                OpaquePointer?, UnsafeMutablePointer<UInt8>?, UnsafeMutablePointer<Int32>?, UnsafePointer<UInt8>?, Int32
            ) -> Int32
            typealias Finish = @convention(c) (OpaquePointer?, UnsafeMutablePointer<UInt8>?, UnsafeMutablePointer<Int32>?) -> Int32
            typealias Control = @convention(c) (OpaquePointer?, Int32, Int32, UnsafeMutableRawPointer?) -> Int32

            static let getTag: Int32 = 0x10 // EVP_CTRL_AEAD_GET_TAG
            static let setTag: Int32 = 0x11 // EVP_CTRL_AEAD_SET_TAG

            let cipher: New
            let new: New
            let free: Free
            let begin: Begin
            let update: Update
            let finish: Finish
            let control: Control

            static let loaded: Result<Library, FileCipherError> = Library().map(Result.success) ?? .failure(.noLibrary)

            private init?() {
                guard let library = LibCrypto(),
                    let cipher = library.find("EVP_aes_256_gcm", New.self), let new = library.find("EVP_CIPHER_CTX_new", New.self),
                    let free = library.find("EVP_CIPHER_CTX_free", Free.self), let begin = library.find("EVP_CipherInit_ex", Begin.self),
                    let update = library.find("EVP_CipherUpdate", Update.self),
                    let finish = library.find("EVP_CipherFinal_ex", Finish.self),
                    let control = library.find("EVP_CIPHER_CTX_ctrl", Control.self)
                else { return nil }
                (self.cipher, self.new, self.free, self.begin) = (cipher, new, free, begin)
                (self.update, self.finish, self.control) = (update, finish, control)
            }

            /// Encrypts or decrypts. When it decrypts, the tag is compared before anything is returned.
            func run(_ context: OpaquePointer?, _ input: Data, _ boundTo: Data) throws -> Data {
                let (input, additional) = ([UInt8](input), [UInt8](boundTo))
                var output = [UInt8](repeating: 0, count: input.count + 16)
                var length: Int32 = 0
                guard additional.isEmpty || update(context, nil, &length, additional, Int32(additional.count)) == 1,
                    update(context, &output, &length, input, Int32(input.count)) == 1
                else { throw FileCipherError.cannotOpen }
                var rest: Int32 = 0
                var end = [UInt8](repeating: 0, count: 16)
                guard finish(context, &end, &rest) == 1, rest == 0 else { throw FileCipherError.cannotOpen }
                return Data(output.prefix(Int(length)))
            }
        }
    #endif
}
