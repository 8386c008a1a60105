// What stands for the people's PDS: it signs requests in their names, and passes them on to the
// service. A person's line to it can be cut, and can lose an answer.

import type { IncomingMessage, ServerResponse } from "node:http"
import { connect } from "node:net"
import type { Duplex } from "node:stream"
import type { Network, Place } from "./processes.js"

/** The line of one person. */
export interface Line {
  online: boolean
  /** Set if the next answer to sendMessage is lost. */
  loses: boolean
}

const send = "blue.catbird.mls.sendMessage"
const getTicket = "blue.catbird.mls.getSubscriptionTicket"
const resolveHandle = "com.atproto.identity.resolveHandle"

export class Pds {
  private readonly lines = new Map<string, Line & { readonly home: string; readonly sockets: Map<Duplex, Place> }>()
  /** Whose the tickets are with which WebSockets are opened, and of which service. */
  private readonly tickets = new Map<string, { did: string; service: Place }>()
  private severed = false

  constructor(
    private readonly network: Network,
    /** The first one is for requests that name none. */
    private readonly services: readonly [Place, ...Place[]],
    /** Finds a person of this PDS by a handle. */
    private readonly resolve: (handle: string) => string | undefined,
  ) {}

  /** Takes a person in. */
  add(did: string, home: string): void {
    this.lines.set(did, { home, online: true, loses: false, sockets: new Map() })
  }

  /** Whether the line between the services is cut. Then nobody reaches another service than its own. */
  get cut(): boolean {
    return this.severed
  }

  /** Cuts the line between the services, or mends it. */
  async sever(cut: boolean): Promise<void> {
    const [one, other] = this.services
    if (other === undefined || cut === this.severed) return
    this.severed = cut
    await this.network.cut(one, other, cut)
    if (!cut) return
    for (const line of this.lines.values()) {
      for (const [socket, { did }] of line.sockets) if (did !== line.home) socket.destroy()
    }
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
    if (!line.online) for (const socket of line.sockets.keys()) socket.destroy()
  }

  /** Answers a request of a person: /xrpc/METHOD?PARAMETERS. */
  async answer(did: string, path: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const line = this.lines.get(did)
    if (!line?.online) return void request.socket.destroy()
    const method = /^\/xrpc\/([A-Za-z0-9.-]+)/.exec(path)?.[1] ?? ""
    if (method === resolveHandle) return this.answerHandle(path, response)
    const body = request.method === "POST" ? await read(request) : undefined
    const [aud] = String(request.headers["atproto-proxy"] ?? this.network.url).split("#", 1)
    const service = this.services.find((one) => one.did === aud)
    const isCut = this.severed && service !== undefined && service.did !== line.home
    const answer = isCut ? undefined : await this.pass(did, method, path, request, body, service)
    if (answer === undefined) return upstreamFailure(response)
    let bytes = Buffer.from(await answer.arrayBuffer())
    if (method === getTicket && answer.ok && service !== undefined) bytes = Buffer.from(this.keepTicket(bytes.toString(), did, service, request))
    const lost = line.loses && method === send && answer.ok
    if (lost) line.loses = false
    reply(response, answer, bytes, lost)
  }

  /** Passes a WebSocket on to the service. Its ticket says whose it is. */
  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    const ticket = new URL(request.url ?? "/", this.network.url).searchParams.get("ticket") ?? ""
    const { did = "", service } = this.tickets.get(ticket) ?? {}
    const line = this.lines.get(did)
    this.tickets.delete(ticket)
    if (!line?.online || service === undefined || (this.severed && service.did !== line.home)) return void socket.destroy()
    line.sockets.set(socket, service)
    const upstream = connect(Number(new URL(service.url).port), "127.0.0.1")
    upstream.write(headOf(request))
    upstream.write(head)
    socket.pipe(upstream).pipe(socket)
    for (const [one, other] of [[socket, upstream], [upstream, socket]] as const) {
      one.on("error", () => other.destroy())
      one.on("close", () => other.destroy())
    }
    socket.on("close", () => line.sockets.delete(socket))
  }

  private answerHandle(path: string, response: ServerResponse): void {
    const did = this.resolve(new URL(path, this.network.url).searchParams.get("handle") ?? "")
    response.writeHead(did === undefined ? 400 : 200, { "content-type": "application/json" })
    response.end(JSON.stringify(did === undefined ? { error: "HandleNotFound", message: "nobody has this handle" } : { did }))
  }

  // keepTicket remembers whose a ticket is. Its address is that of the page, which may call no other.
  private keepTicket(text: string, did: string, service: Place, { headers }: IncomingMessage): string {
    const answer = JSON.parse(text) as { ticket: string; url: string }
    this.tickets.set(answer.ticket, { did, service })
    const url = new URL(answer.url)
    url.host = headers.host ?? ""
    return JSON.stringify({ ...answer, url: url.href })
  }

  // pass returns what the service answers, or undefined if it does not answer. A request for no service
  // is for the PDS itself, whose part mlsd-dev plays.
  private async pass(
    did: string, lxm: string, path: string, { method = "GET", headers }: IncomingMessage, body: Buffer<ArrayBuffer> | undefined,
    service: Place = { did: this.services[0].did, url: this.network.url },
  ): Promise<Response | undefined> {
    const token = await this.network.token(did, service.did, lxm)
    try {
      return await fetch(service.url + path, {
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
function reply(response: ServerResponse, answer: Response, bytes: Buffer, lost: boolean): void {
  const retryAfter = answer.headers.get("retry-after")
  response.writeHead(answer.status, {
    "content-type": answer.headers.get("content-type") ?? "application/json", "content-length": bytes.length,
    ...(retryAfter !== null && { "retry-after": retryAfter }),
  })
  if (!lost) response.end(bytes)
  else response.write(bytes.subarray(0, bytes.length / 2), () => response.destroy())
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
