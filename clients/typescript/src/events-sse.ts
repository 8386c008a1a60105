// Events as server-sent events, of streamConvoEvents.

import { NoAnswerError } from "./errors.js"
import { endOf, type Incoming, readEvent, readSignal } from "./events.js"
import { lexParse } from "./json.js"

/** The server sends something every 15 s. A connection that is silent for longer than this is dead. */
const longestSilence = 60_000

/** Reads the events of a body. */
export async function* serverSentEvents(body: ReadableStream<Uint8Array>, signal: AbortSignal): AsyncGenerator<Incoming> {
  const decoder = new TextDecoder()
  const reader = body.getReader()
  let text = ""
  try {
    for (;;) {
      const { done, value } = await within(longestSilence, reader.read(), signal)
      if (done) return
      const blocks = (text + decoder.decode(value, { stream: true })).split("\n\n")
      text = blocks.pop() ?? ""
      for (const block of blocks) {
        const incoming = read(block)
        if (incoming !== undefined) yield incoming
      }
    }
  } finally {
    reader.cancel().catch(() => {}) // the connection has ended anyway
  }
}

function read(block: string): Incoming | undefined {
  const fields = new Map(block.split("\n").map((line) => fieldOf(line)))
  const data = fields.get("data")
  if (data === undefined) return undefined // a comment that keeps the connection alive
  const name = (fields.get("event") ?? "").replace(/^#/, "")
  const body = lexParse(data) as Record<string, unknown>
  delete body["$type"] // the name says it; the schemas that read the body are those of subscribeConvoEvents
  if (name === "infoEvent") return infoOf(String(body.info))
  if (name === "typingEvent" && body.payload === undefined) return undefined // of a server that has no payloads
  const signal = readSignal(name, body)
  if (signal !== undefined) return { signal }
  const cursor = fields.get("id") ?? String(body.cursor)
  const event = readEvent(name, { ...body, cursor: 0 }) // the cursor is text here, and opaque
  return event && { event, place: { cursor } }
}

function infoOf(info: string): Incoming {
  if (info.startsWith("OutdatedCursor")) return "outdated"
  throw endOf(info)
}

function fieldOf(line: string): [string, string] {
  const colon = line.indexOf(":")
  return colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")]
}

// within waits so long, and then gives up.
async function within<T>(ms: number, wanted: Promise<T>, signal: AbortSignal): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined
  let abort: (() => void) | undefined
  const given = new Promise<never>((_, reject) => {
    const end = (why: string) => reject(new NoAnswerError(why))
    timer = setTimeout(() => end("the stream is silent"), ms)
    abort = () => end("the stream was closed")
    if (signal.aborted) abort()
    signal.addEventListener("abort", abort)
  })
  try {
    return await Promise.race([wanted, given])
  } catch (err) {
    throw err instanceof NoAnswerError ? err : new NoAnswerError("the stream was cut", { cause: err })
  } finally {
    clearTimeout(timer)
    if (abort !== undefined) signal.removeEventListener("abort", abort)
  }
}
