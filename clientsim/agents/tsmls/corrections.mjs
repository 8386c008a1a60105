// Corrects the source of ts-mls 1.6.4 as it is loaded. devices.mjs corrects what can be corrected
// from outside.

// A tree may list a leaf as unmerged in a node and not in the nodes above it: a commit that renews
// the upper nodes merges the leaf there. RFC 9420 §12.4.3.1 asks for the leaf in the nodes between
// it and the node that lists it. The library asks for equal lists in all nodes above the leaf, and
// so refuses the trees that most groups have after two additions.
const wrong = "!arraysEqual(dpNode.parent.unmergedLeaves, n.parent.unmergedLeaves)"
const right = "dp.indexOf(parentIdx) < dp.indexOf(toNodeIndex(i)) && !dpNode.parent.unmergedLeaves.includes(unmergedLeaf)"

// The library has post-quantum suites under numbers of its own. Number 77 is X-Wing's everywhere else
// (0x004D), with another hash, KEM, KDF and AEAD than the library's suite 77.
const xwing = "MLS_256_XWING_CHACHA20POLY1305_SHA256_Ed25519"
const own77 = "MLS_128_MLKEM512_AES128GCM_SHA256_Ed25519"
const values77 = `hash: "SHA-256",
        hpke: {
            kem: "ML-KEM-512",
            aead: "AES256GCM",
            kdf: "HKDF-SHA512",
        }`
const valuesXWing = `hash: "SHA-256",
        hpke: {
            kem: "X-Wing",
            aead: "CHACHA20POLY1305",
            kdf: "HKDF-SHA256",
        }`

// corrections are by file: what to replace, by what, and how often it is there.
const corrections = {
  "/ts-mls/dist/src/clientState.js": [[wrong, right, 1]],
  "/ts-mls/dist/src/crypto/ciphersuite.js": [[own77, xwing, 2], [values77, valuesXWing, 1]],
}

export async function load(url, context, next) {
  const loaded = await next(url, context)
  const file = Object.keys(corrections).find((end) => url.endsWith(end))
  if (file === undefined) return loaded
  let source = loaded.source.toString()
  for (const [from, to, times] of corrections[file]) {
    if (source.split(from).length !== times + 1) throw new Error("ts-mls has other source than 1.6.4")
    source = source.replaceAll(from, to)
  }
  return { ...loaded, source }
}
