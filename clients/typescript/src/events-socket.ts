// Events over a WebSocket, of subscribeConvoEvents.

import { decodeAll } from "@atproto/lex-cbor"
import { NoAnswerError } from "./errors.js"
import { endOf, type Incoming, type Place, readEvent, readSignal } from "./events.js"

/** What this package uses of a WebSocket. Those of browsers, of Node 22 and of `ws` have it. */
export interface Socket {
  binaryType: string
  onopen: ((event: unknown) => void) | null
  onmessage: ((event: { readonly data: unknown }) => void) | null
  onclose: ((event: { readonly code: number; readonly reason: string }) => void) | null
  onerror: ((event: unknown) => void) | null
  close(): void
}

/** Opens a WebSocket. */
export type OpenSocket = (url: string) => Socket

/** The platform's WebSocket, if it has one. Node 20 has none. */
function platformSocket(url: string): Socket {
  if (typeof WebSocket === "undefined") throw new Error("this platform has no WebSocket: pass openSocket")
  return new WebSocket(url) as Socket
}

type Frame = Uint8Array | Error | "open"

/** Opens a connection, and returns its events once it is open. */
export async function socketEvents(
  open: OpenSocket = platformSocket, url: string, signal: AbortSignal,
): Promise<AsyncIterable<Incoming>> {
  const frames = framesOf(open(url), signal)
  await frames.next() // that it is open, or why it does not open
  return incoming(frames)
}

async function* incoming(frames: AsyncIterable<Frame>): AsyncGenerator<Incoming> {
  for await (const frame of frames) {
    const one = frame instanceof Uint8Array ? read(frame) : undefined
    if (one !== undefined) yield one
  }
}

// framesOf yields "open", and then the frames. It ends with an error.
async function* framesOf(socket: Socket, signal: AbortSignal): AsyncGenerator<Frame> {
  socket.binaryType = "arraybuffer"
  const waiting: Frame[] = []
  let wake = () => {}
  const add = (one: Frame) => {
    waiting.push(one)
    wake()
  }
  socket.onopen = () => add("open")
  socket.onmessage = ({ data }) => add(data instanceof ArrayBuffer ? new Uint8Array(data) : new NoAnswerError("a text frame"))
  socket.onclose = ({ code, reason }) => add(endOf(reason === "" ? `closed with code ${code}` : reason))
  socket.onerror = () => add(new NoAnswerError("the WebSocket failed"))
  const abort = () => {
    add(new NoAnswerError("the stream was closed"))
    socket.close()
  }
  signal.addEventListener("abort", abort)
  if (signal.aborted) abort()
  try {
    for (;;) {
      const frame = waiting.shift()
      if (frame === undefined) await new Promise<void>((resolve) => (wake = resolve))
      else if (frame instanceof Error) throw frame
      else yield frame
    }
  } finally {
    signal.removeEventListener("abort", abort)
    socket.close()
  }
}

// read reads a frame: a header and a body, both DAG-CBOR.
function read(frame: Uint8Array): Incoming | undefined {
  const [header, body] = [...decodeAll(frame)] as unknown as [Header?, Record<string, unknown>?]
  if (header === undefined || body === undefined) throw new NoAnswerError("a frame without header and body")
  if (header.op === -1) throw endOf(`${String(body.error)}: ${String(body.message ?? "")}`)
  const name = (header.t ?? "").replace(/^#/, "")
  if (name === "infoEvent") return body.name === "OutdatedCursor" ? "outdated" : undefined
  const signal = readSignal(name, body)
  if (signal !== undefined) return { signal }
  const event = readEvent(name, body)
  if (event === undefined) return undefined
  const place: Place = { cursor: String(body.cursor), ...(typeof body.position === "string" && { position: body.position }) }
  return { event, place }
}

interface Header {
  readonly op: number
  readonly t?: string
}

