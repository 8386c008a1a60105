// A lying service as a process, for the tests of other clients: it stands before the `mlsd-dev` of TEST_SERVER, prints
// `liar on URL`, and runs until it is killed. It is honest until it is told to lie:
//
//   POST /liar/T3 {"convo":"…","victim":"did:…","device":"…","member":"did:…"}   tells a lie of lies.ts
//   POST /liar/stale …, POST /liar/again                                        the two halves of a lie: an old GroupInfo
//   POST /liar/device {"member":"did:…"}                                        makes a device of a person: {"key":…}
//   POST /liar/silence {"victim":"did:…"}                                        withholds a person's events
//   POST /liar/forget                                                            is another liar, an honest one
//   GET  /liar/read                                                              what the liar has decrypted

import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import { Readable } from "node:stream"
import { XrpcError } from "../../src/errors.js"
import type { ConvoId, Did } from "../../src/ids.js"
import type { TsMls } from "../../src/mls-ts.js"
import type { Call } from "../../src/transport.js"
import { serverURL } from "./dev.js"
import { staleGroupInfo, strangerEnters, T1, T10, T11, T12, T2, T3, T5, T6, T7, T8, T9, welcomeOfAnother, withheld } from "./lies.js"
import { deviceOf, Liar } from "./liar.js"

/** What a test says of a lie. */
interface Told {
  readonly convo: ConvoId
  readonly victim: Did
  /** The device's id of the victim. */
  readonly device: string
  /** In whose name the liar lies. */
  readonly member: Did
  /** Another convo. */
  readonly another: ConvoId
}

const ours = "/xrpc/blue.catbird.mls."
let liar = new Liar()
let again: () => unknown = () => {}
const devices = new Map<Did, TsMls>() // what `device` has made

const lies: Record<string, (told: Told) => unknown> = {
  T1: ({ member }) => T1(liar, member),
  T2: ({ convo, member }) => T2(liar, convo, member),
  T3: ({ convo, member, ...told }) => T3(liar, convo, personOf(told), member),
  T5: ({ convo, member, ...told }) => T5(liar, convo, personOf(told), member),
  T6: async ({ convo, member, ...told }) => T6(liar, convo, personOf(told), await deviceOf(member)),
  T7: ({ convo, member, ...told }) => T7(liar, convo, personOf(told), member),
  T8: ({ convo, member, ...told }) => T8(liar, convo, personOf(told), member),
  T9: ({ convo, ...told }) => T9(liar, convo, personOf(told)),
  T10: ({ convo, member, ...told }) => T10(liar, convo, personOf(told), member),
  T11: ({ convo, ...told }) => T11(liar, convo, personOf(told)),
  T12: ({ convo, member, ...told }) => T12(liar, convo, personOf(told), member),
  stale: async ({ convo, ...told }) => (again = await staleGroupInfo(liar, convo, personOf(told))),
  again: () => again(),
  another: ({ convo, another, ...told }) => welcomeOfAnother(liar, convo, personOf(told), another),
  device: async ({ member }) => {
    const device = await deviceOf(member)
    devices.set(member, device)
    return { key: Buffer.from(device.signatureKey).toString("base64") }
  },
  stranger: ({ convo, member, ...told }) => strangerEnters(liar, convo, personOf(told), devices.get(member) as TsMls),
  withheld: ({ convo, ...told }) => withheld(liar, convo, personOf(told)),
  silence: ({ victim }) => liar.silence(victim),
  forget: () => {
    liar = new Liar()
  },
}

function personOf({ victim, device }: Pick<Told, "victim" | "device">) {
  return { did: victim, client: { deviceId: () => Promise.resolve(device) } }
}

const server = createServer((request, response) => {
  serve(request, response).catch((err: unknown) => {
    if (err instanceof XrpcError) {
      const headers = err.retryAfter === undefined ? {} : { "retry-after": String(Math.ceil(err.retryAfter / 1000)) }
      return answer(response, err.status, JSON.stringify({ error: err.error, message: err.text }), headers)
    }
    console.error(err)
    response.destroy() // no answer
  })
})
server.listen(0, "127.0.0.1", () => {
  const address = server.address()
  if (address === null || typeof address === "string") throw new Error("no port")
  console.log(`liar on http://127.0.0.1:${address.port}`)
})

async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const url = new URL(request.url ?? "/", serverURL())
  const body = await bytesIn(request)
  if (url.pathname === "/liar/read") {
    await liar.idle()
    return answer(response, 200, JSON.stringify(liar.read))
  }
  if (url.pathname.startsWith("/liar/")) {
    const tell = lies[url.pathname.slice("/liar/".length)]
    if (tell === undefined) return answer(response, 404, "{}")
    const said = await tell(JSON.parse(body.toString()) as Told)
    return answer(response, 200, url.pathname === "/liar/device" ? JSON.stringify(said) : "{}")
  }
  const did = callerOf(request)
  if (did === undefined || !url.pathname.startsWith(ours) || request.headers["content-type"] === "application/octet-stream") {
    return pass(url, request, response, body)
  }
  const call: Call = { method: url.pathname.slice("/xrpc/".length), params: url.searchParams, ...(request.method === "POST" && { body: body.toString() }) }
  const way = liar.way(did)
  if (request.headers.accept !== "text/event-stream") return answer(response, 200, await way.call(call))
  const closed = new AbortController()
  response.on("close", () => closed.abort())
  const stream = await way.stream?.({ ...call, signal: closed.signal })
  response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders()
  Readable.fromWeb(stream as Parameters<typeof Readable.fromWeb>[0]).on("error", () => response.destroy()).pipe(response)
}

// pass hands on what is no call of a person to the service.
async function pass(url: URL, request: IncomingMessage, response: ServerResponse, body: Buffer): Promise<void> {
  const { authorization, "content-type": type } = request.headers
  const real = await fetch(url, {
    method: request.method ?? "GET", headers: { ...(authorization && { authorization }), ...(type && { "content-type": type }) },
    ...(request.method === "POST" && { body: new Uint8Array(body) }),
  })
  response.writeHead(real.status, { "content-type": real.headers.get("content-type") ?? "" }).end(Buffer.from(await real.arrayBuffer()))
}

// callerOf reads whose service-auth token it is.
function callerOf(request: IncomingMessage): Did | undefined {
  const payload = /^Bearer [^.]+\.([^.]+)\./.exec(request.headers.authorization ?? "")?.[1]
  return payload === undefined ? undefined : (JSON.parse(Buffer.from(payload, "base64url").toString()) as { iss: Did }).iss
}

async function bytesIn(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = []
  for await (const part of request) parts.push(part as Buffer)
  return Buffer.concat(parts)
}

function answer(response: ServerResponse, status: number, body: string, headers: Record<string, string> = {}): void {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(body)
}
