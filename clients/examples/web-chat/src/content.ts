// What stands in a plaintext. The apps of a chat agree on it: the server sees ciphertexts only.

/** A text, or a receipt: its sender has seen the log up to a seq. */
export type Content =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "seen"; readonly upTo: number }

const encoder = new TextEncoder()
const decoder = new TextDecoder()

export function encode(content: Content): Uint8Array {
  return encoder.encode(JSON.stringify(content))
}

/** Reads what another member wrote, which can be anything. */
export function decode(plaintext: Uint8Array): Content | undefined {
  try {
    const read = JSON.parse(decoder.decode(plaintext)) as Partial<Record<string, unknown>> | null
    if (read?.type === "text" && typeof read.text === "string") return { type: "text", text: read.text }
    if (read?.type === "seen" && typeof read.upTo === "number") return { type: "seen", upTo: read.upTo }
  } catch {
    // not JSON: see below
  }
  return undefined
}
