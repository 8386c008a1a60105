// Hosts that other people name, in a DID document: their answers are bounded, and they learn nothing of this person.

import { concat } from "./bytes.js"
import type { Did } from "./ids.js"
import type { Fetch } from "./transport.js"

/** How hosts are asked. */
export interface Way {
  readonly fetch: Fetch
  /** Whether http is good enough for localhost and 127.0.0.1, where developers' servers are. */
  readonly loopback: boolean
}

/** What a host answered. */
export interface Answer {
  readonly status: number
  readonly body: Uint8Array
}

/** The most bytes of a DID document. */
const mostDocument = 64 << 10

/**
 * Gets a URL, without redirects, and nothing longer than `most` bytes.
 *
 * @throws Error if there is no such answer. It names the host
 */
export async function ask(fetch: Fetch, url: string, most: number, signal?: AbortSignal): Promise<Answer> {
  try {
    const response = await fetch(url, {
      redirect: "error", credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store", ...(signal && { signal }),
    })
    return { status: response.status, body: await bodyOf(response, most) }
  } catch (err) {
    throw new Error(`${new URL(url).host}: ${err instanceof Error ? err.message : String(err)}`, { cause: err })
  }
}

async function bodyOf({ body }: Response, most: number): Promise<Uint8Array> {
  const [reader, chunks] = [body?.getReader(), [] as Uint8Array[]]
  for (let size = 0; reader !== undefined; ) {
    const { done, value } = await reader.read()
    if (done) break
    chunks.push(value)
    if ((size += value.length) <= most) continue
    await reader.cancel()
    throw new Error(`more than ${most} bytes`)
  }
  return concat(chunks)
}

/** The JSON of an answer. */
export function jsonOf({ body }: Answer): unknown {
  return JSON.parse(new TextDecoder().decode(body))
}

const local = /^(localhost|127\.0\.0\.1)(:|$)/

/**
 * The origin of a host, without a slash at its end.
 *
 * @throws Error if it is more than a host, or not https
 */
export function originOf(address: string, loopback: boolean): string {
  const { protocol, host, origin, href } = new URL(address)
  if (protocol !== "https:" && !(loopback && protocol === "http:" && local.test(host))) throw new Error(`${address} is not https`)
  if (href !== `${origin}/`) throw new Error(`${address} is more than the address of a host`)
  return origin
}

/** What a client reads of a DID document (https://atproto.com/specs/did). */
export interface DidDocument {
  readonly id: string
  readonly service?: readonly { readonly id?: string; readonly serviceEndpoint?: unknown }[]
  readonly verificationMethod?: readonly {
    readonly id?: string; readonly type?: string; readonly controller?: string; readonly publicKeyMultibase?: unknown
  }[]
}

/** The PLC directory that everybody uses. */
export const publicDirectory = "https://plc.directory"

/**
 * Reads a DID document. `undefined` is a tombstone: the DID has ended. Only `did:web` and `did:plc` are known.
 *
 * @param directory the PLC directory
 * @throws Error if there is no answer, or no document of this DID
 */
export async function documentOf(
  did: Did, directory: string, { fetch, loopback }: Way, signal?: AbortSignal,
): Promise<DidDocument | undefined> {
  const answer = await ask(fetch, documentURL(did, directory, loopback), mostDocument, signal)
  if (answer.status === 410) return undefined
  if (answer.status !== 200) throw new Error(`the DID document of ${did}: status ${answer.status}`)
  const document = jsonOf(answer) as DidDocument | null
  if (document?.id !== did) throw new Error(`the DID document of ${did} is one of another DID`)
  return document
}

function documentURL(did: Did, directory: string, loopback: boolean): string {
  const [, method, name = ""] = /^did:(web|plc):([^:]+)$/.exec(did) ?? []
  if (method === "plc") return `${originOf(directory, true)}/${did}`
  if (method !== "web") throw new Error(`nobody knows how to find the DID document of ${did}`)
  const host = decodeURIComponent(name)
  return `${originOf(`${loopback && local.test(host) ? "http" : "https"}://${host}`, loopback)}/.well-known/did.json`
}

/** The entry of a DID document with an id such as `#atproto_pds`. */
export function entryOf<T extends { readonly id?: string }>(all: readonly T[] | undefined, did: Did, id: string): T | undefined {
  return all?.find((one) => one.id === id || one.id === did + id)
}
