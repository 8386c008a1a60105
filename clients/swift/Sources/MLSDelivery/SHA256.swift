import Foundation

/// SHA-256 (FIPS 180-4) of public bytes: digests of ciphertexts, checksums. Linux has no CryptoKit, and
/// the package has no dependencies. Pointers keep it usable in builds without optimization.
func sha256(_ message: Data) -> Data {
    var state: [UInt32] = [
        0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19,
    ]
    let whole = message.count & ~63
    var tail = [UInt8](message.suffix(message.count - whole))
    tail.append(0x80)
    while tail.count % 64 != 56 { tail.append(0) }
    let bits = UInt64(message.count) * 8
    for shift in stride(from: 56, through: 0, by: -8) { tail.append(UInt8(truncatingIfNeeded: bits >> UInt64(shift))) }
    withUnsafeTemporaryAllocation(of: UInt32.self, capacity: 64) { schedule in
        message.withUnsafeBytes { compress($0, to: whole, into: &state, schedule) }
        tail.withUnsafeBytes { compress($0, to: $0.count, into: &state, schedule) }
    }
    return Data(state.flatMap { word in [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: word >> UInt32($0)) } })
}

/// Takes the blocks of the first `end` bytes.
private func compress(
    _ bytes: UnsafeRawBufferPointer, to end: Int, into state: inout [UInt32], _ w: UnsafeMutableBufferPointer<UInt32>
) {
    var block = 0
    while block < end {
        var i = 0
        while i < 16 {
            w[i] = UInt32(bigEndian: bytes.loadUnaligned(fromByteOffset: block + 4 * i, as: UInt32.self))
            i += 1
        }
        while i < 64 {
            let (x, y) = (w[i - 15], w[i - 2])
            let s0 = (x >> 7 | x << 25) ^ (x >> 18 | x << 14) ^ x >> 3
            let s1 = (y >> 17 | y << 15) ^ (y >> 19 | y << 13) ^ y >> 10
            w[i] = w[i - 16] &+ s0 &+ w[i - 7] &+ s1
            i += 1
        }
        rounds(&state, w)
        block += 64
    }
}

private func rounds(_ state: inout [UInt32], _ w: UnsafeMutableBufferPointer<UInt32>) {
    var (a, b, c, d) = (state[0], state[1], state[2], state[3])
    var (e, f, g, h) = (state[4], state[5], state[6], state[7])
    var i = 0
    while i < 64 {
        let s1 = (e >> 6 | e << 26) ^ (e >> 11 | e << 21) ^ (e >> 25 | e << 7)
        let t1 = h &+ s1 &+ (e & f ^ ~e & g) &+ roundConstants[i] &+ w[i]
        let s0 = (a >> 2 | a << 30) ^ (a >> 13 | a << 19) ^ (a >> 22 | a << 10)
        let t2 = s0 &+ (a & b ^ a & c ^ b & c)
        h = g
        g = f
        f = e
        e = d &+ t1
        d = c
        c = b
        b = a
        a = t1 &+ t2
        i += 1
    }
    for (i, word) in [a, b, c, d, e, f, g, h].enumerated() { state[i] &+= word }
}

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
private let roundConstants: [UInt32] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
]
