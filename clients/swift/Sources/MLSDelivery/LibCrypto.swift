#if !canImport(CryptoKit)

import Glibc

/// OpenSSL's libcrypto, which FoundationNetworking needs too. It is looked up when it is used first, so
/// that the package has no dependency.
struct LibCrypto {
    private let handle: UnsafeMutableRawPointer

    /// Nil if there is no libcrypto of OpenSSL 1.1 or 3.
    init?() {
        let names = ["libcrypto.so.3", "libcrypto.so.1.1"]
        guard let handle = names.lazy.compactMap({ dlopen($0, RTLD_NOW | RTLD_LOCAL) }).first else { return nil }
        self.handle = handle
    }

    func find<Function>(_ name: String, _ type: Function.Type) -> Function? { dlsym(handle, name).map { unsafeBitCast($0, to: type) } }
}

#endif
