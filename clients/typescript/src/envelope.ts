// The usual form of a plaintext: the id's 16 bytes, then the content.

import { fromHex, hex } from "./bytes.js"
import type { Envelope } from "./core.js"

/** Length of a message's id, in bytes. */
export const idLength = 16

/** The usual form of a plaintext. */
export const usualEnvelope: Envelope = {
  wrap: ({ id, content }) => {
    const plaintext = new Uint8Array(idLength + content.length)
    plaintext.set(fromHex(id))
    plaintext.set(content, idLength)
    return plaintext
  },
  unwrap: (plaintext) => {
    if (plaintext.length < idLength) return { content: plaintext }
    return { id: hex(plaintext.subarray(0, idLength)), content: plaintext.slice(idLength) }
  },
}
