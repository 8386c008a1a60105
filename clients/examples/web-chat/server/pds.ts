// What stands for the people's PDS: it signs requests in their names, and passes them on to the
// service. A person's line to it can be cut, and can lose an answer.

import type { IncomingMessage, ServerResponse } from "node:http"
import { connect } from "node:net"
import type { Duplex } from "node:stream"
import type { Network, Service } from "./processes.js"

/** The line of one person. */
export interface Line {
  online: boolean
  /** Set if the next answer to sendMessage is lost. */
  loses: boolean
}

const send = "blue.catbird.mls.sendMessage"
const getTicket = "blue.catbird.mls.getSubscriptionTicket"

export class Pds {
  private readonly lines = new Map<string, Line & { readonly sockets: Set<Duplex> }>()
  /** Whose the tickets are with which WebSockets are opened. */
  private readonly tickets = new Map<string, string>()

  constructor(
    private readonly network: Network,
    private readonly service: Service,
    people: readonly string[],
  ) {
    for (const did of people) this.lines.set(did, { online: true, loses: false, sockets: new Set() })
  }

  /** The line of a person, or `undefined` if nobody has the DID. */
  line(did: string): Line | undefined {
    const line = this.lines.get(did)
    return line && { online: line.online, loses: line.loses }
  }

  /** Changes a person's line. */
  change(did: string, change: Partial<Line>): void {
    const line = this.lines.get(did)
    if (line === undefined) return
    line.online = change.online ?? line.online
    line.loses = change.loses ?? line.loses
    if (!line.online) line.sockets.forEach((socket) => socket.destroy())
  }

  /** Answers a request of a person: /xrpc/METHOD?PARAMETERS. */
  async answer(did: string, path: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const line = this.lines.get(did)
    if (!line?.online) return void request.socket.destroy()
    const method = /^\/xrpc\/([A-Za-z0-9.-]+)/.exec(path)?.[1] ?? ""
    const body = request.method === "POST" ? await read(request) : undefined
    const answer = await this.pass(did, method, path, request, body)
    if (answer === undefined) return upstreamFailure(response)
    const text = await answer.text()
    if (method === getTicket && answer.ok) this.tickets.set((JSON.parse(text) as { ticket: string }).ticket, did)
    const lost = line.loses && method === send && answer.ok
    if (lost) line.loses = false
    reply(response, answer, text, lost)
  }

  /** Passes a WebSocket on to the service. Its ticket says whose it is. */
  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    const ticket = new URL(request.url ?? "/", this.service.url).searchParams.get("ticket") ?? ""
    const line = this.lines.get(this.tickets.get(ticket) ?? "")
    this.tickets.delete(ticket)
    if (!line?.online) return void socket.destroy()
    line.sockets.add(socket)
    const upstream = connect(this.service.port, "127.0.0.1")
    upstream.write(headOf(request))
    upstream.write(head)
    socket.pipe(upstream).pipe(socket)
    for (const [one, other] of [[socket, upstream], [upstream, socket]] as const) {
      one.on("error", () => other.destroy())
      one.on("close", () => other.destroy())
    }
    socket.on("close", () => line.sockets.delete(socket))
  }

  // pass returns what the service answers, or undefined if it does not answer.
  private async pass(
    did: string, lxm: string, path: string, { method = "GET", headers }: IncomingMessage, body: Buffer<ArrayBuffer> | undefined,
  ): Promise<Response | undefined> {
    const [aud = ""] = String(headers["atproto-proxy"]).split("#", 1)
    const token = await this.network.token(did, aud, lxm)
    try {
      return await fetch(this.service.url + path, {
        method, ...(body && { body }),
        headers: { authorization: `Bearer ${token}`, ...(headers["content-type"] && { "content-type": headers["content-type"] }) },
      })
    } catch {
      return undefined
    }
  }
}

// reply writes the service's answer. An answer is lost after its first half: without its head the
// browser itself would repeat the request, and the page would not notice.
function reply(response: ServerResponse, answer: Response, text: string, lost: boolean): void {
  const retryAfter = answer.headers.get("retry-after")
  response.writeHead(answer.status, {
    "content-type": answer.headers.get("content-type") ?? "application/json", "content-length": Buffer.byteLength(text),
    ...(retryAfter !== null && { "retry-after": retryAfter }),
  })
  if (!lost) response.end(text)
  else response.write(text.slice(0, text.length / 2), () => response.destroy())
}

function upstreamFailure(response: ServerResponse): void {
  response.writeHead(502, { "content-type": "application/json" })
  response.end(JSON.stringify({ error: "UpstreamFailure", message: "the service does not answer" }))
}

function headOf({ method, url, httpVersion, rawHeaders }: IncomingMessage): string {
  const lines = [`${method} ${url} HTTP/${httpVersion}`]
  for (let i = 0; i < rawHeaders.length; i += 2) lines.push(`${rawHeaders[i]}: ${rawHeaders[i + 1]}`)
  return lines.join("\r\n") + "\r\n\r\n"
}

/** Reads the body of a request. */
export async function read(request: IncomingMessage): Promise<Buffer<ArrayBuffer>> {
  const parts: Uint8Array[] = []
  for await (const part of request) parts.push(part as Uint8Array)
  return Buffer.concat(parts)
}
