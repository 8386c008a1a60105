// Ways to reach a service: directly with service-auth tokens, and through the user's PDS.

import { NoAnswerError, XrpcError } from "./errors.js"

/** One call of an XRPC method. */
export interface Call {
  /** The method's NSID, such as `blue.catbird.mls.sendMessage`. */
  readonly method: string
  /** The parameters of a query. A call with a body is a procedure. */
  readonly params?: URLSearchParams
  /** The input of a procedure, JSON. `""` is a procedure without an input. */
  readonly body?: string
  /** The input of a procedure that takes bytes, instead of `body`. Its parameters are in `params`. */
  readonly bytes?: Uint8Array
  /** Ends the call, which then throws {@link NoAnswerError}. */
  readonly signal?: AbortSignal
  /** Hears the answer's header `Date`, in milliseconds of Unix time, if it has one. A transport calls it. */
  readonly onDate?: (date: number) => void
}

/**
 * A way to reach a service. The same call may be sent many times: a transport uses a fresh token each
 * time.
 */
export interface Transport {
  /**
   * Makes a call, and returns the JSON of a 2xx.
   *
   * @throws XrpcError if the service refused it
   * @throws NoAnswerError if no answer of the service came
   */
  call(call: Call): Promise<string>
  /** Makes a call whose answer is bytes, and returns those of a 2xx. It throws as `call` does. */
  receive?(call: Call): Promise<Uint8Array>
  /** Opens an event stream of server-sent events, where the way passes them on. */
  stream?(call: Call): Promise<ReadableStream<Uint8Array>>
}

/** `fetch`, or a function that does the same. */
export type Fetch = (input: string, init: RequestInit) => Promise<Response>

/** How long a call may take, in milliseconds. */
const callTimeout = 60_000

/** Sends calls to a service with service-auth tokens of the user. */
export class DirectTransport implements Transport {
  private readonly find: () => Promise<string>

  /**
   * @param service the service's URL, such as `https://mls.example.com`, or what finds it: see {@link endpointOf}
   * @param token makes a service-auth token for a method, each time another one, for example with
   *   `com.atproto.server.getServiceAuth`. If it throws an {@link XrpcError} with status 401, the client
   *   stops; after any other error it tries again
   */
  constructor(
    service: string | (() => Promise<string>),
    private readonly token: (method: string) => Promise<string>,
    private readonly fetch: Fetch = (input, init) => globalThis.fetch(input, init),
  ) {
    this.find = found(service)
  }

  async call(call: Call): Promise<string> {
    return textOf(await this.send(call, timeoutOf(call)))
  }

  async receive(call: Call): Promise<Uint8Array> {
    return bytesOf(await this.send(call, timeoutOf(call)))
  }

  async stream(call: Call): Promise<ReadableStream<Uint8Array>> {
    return streamOf(await this.send(call, call.signal))
  }

  private async send(call: Call, signal?: AbortSignal): Promise<Response> {
    const service = await this.find()
    const authorization = `Bearer ${await tokenOf(this.token(call.method))}`
    return request(this.fetch, new URL(pathOf(call), service).href, call, { authorization }, signal)
  }
}

// found remembers what a function has found.
function found(service: string | (() => Promise<string>)): () => Promise<string> {
  let url: string | undefined
  return async () => {
    try {
      return (url ??= typeof service === "string" ? service : await service())
    } catch (err) {
      throw new NoAnswerError("the service is not found", { cause: err })
    }
  }
}

// What fails on the way to a token is no answer of the service, as if the network were gone.
async function tokenOf(token: Promise<string>): Promise<string> {
  try {
    return await token
  } catch (err) {
    if (err instanceof XrpcError || err instanceof NoAnswerError) throw err
    throw new NoAnswerError("no token", { cause: err })
  }
}

/** What a PDS agent has: for example `Agent` of `@atproto/api`, or an OAuth session. */
export interface PdsAgent {
  /** Sends a request to the user's PDS, with the user's session. */
  fetchHandler(path: string, init: RequestInit): Promise<Response>
}

/** Sends calls through the user's PDS, which signs the tokens. It passes no event streams on. */
export class PdsTransport implements Transport {
  /** @param service the service's DID and its id, such as `did:web:mls.example.com#atproto_mls` */
  constructor(
    private readonly agent: PdsAgent,
    private readonly service: string,
  ) {}

  async call(call: Call): Promise<string> {
    return textOf(await this.send(call))
  }

  async receive(call: Call): Promise<Uint8Array> {
    return bytesOf(await this.send(call))
  }

  private send(call: Call): Promise<Response> {
    const fetch: Fetch = (path, init) => this.agent.fetchHandler(path, init)
    return request(fetch, pathOf(call), call, { "atproto-proxy": this.service }, timeoutOf(call))
  }
}

function timeoutOf(call: Call): AbortSignal {
  const timeout = AbortSignal.timeout(callTimeout)
  return call.signal === undefined ? timeout : AbortSignal.any([call.signal, timeout])
}

function pathOf(call: Call): string {
  const query = call.params?.toString() ?? ""
  return `/xrpc/${call.method}${query === "" ? "" : "?" + query}`
}

/** Sends one request. Any failure before the answer's head is a {@link NoAnswerError}. */
export async function request(
  fetch: Fetch, url: string, call: Call, headers: Record<string, string>, signal?: AbortSignal,
): Promise<Response> {
  const init: RequestInit = { headers, ...(signal && { signal }) }
  if (call.body !== undefined) {
    init.method = "POST"
    if (call.body !== "") {
      init.body = call.body
      headers["content-type"] = "application/json"
    }
  }
  if (call.bytes !== undefined) {
    init.method = "POST"
    init.body = call.bytes as Uint8Array<ArrayBuffer>
    headers["content-type"] = "application/octet-stream"
  }
  try {
    const response = await fetch(url, init)
    const date = dateOf(response.headers)
    if (date !== undefined) call.onDate?.(date)
    return response
  } catch (err) {
    throw new NoAnswerError(`${call.method}: no answer`, { cause: err })
  }
}

/** Returns the text of a 2xx, and throws any other answer. */
export async function textOf(response: Response): Promise<string> {
  let text: string
  try {
    text = await response.text()
  } catch (err) {
    throw new NoAnswerError("the answer was cut short", { cause: err })
  }
  if (response.ok) return text
  throw failureOf(response, text)
}

// bytesOf returns the bytes of a 2xx, and throws any other answer.
async function bytesOf(response: Response): Promise<Uint8Array> {
  if (!response.ok) await textOf(response)
  try {
    return new Uint8Array(await response.arrayBuffer())
  } catch (err) {
    throw new NoAnswerError("the answer was cut short", { cause: err })
  }
}

async function streamOf(response: Response): Promise<ReadableStream<Uint8Array>> {
  if (response.ok && response.body !== null) return response.body
  await textOf(response)
  throw new NoAnswerError("a stream without a body")
}

function failureOf(response: Response, text: string): Error {
  const { error, message } = errorOf(text)
  return new XrpcError(response.status, error, message, retryAfterOf(response))
}

// retryAfterOf reads how long an answer asks to wait, in milliseconds: it says seconds, or a time.
function retryAfterOf({ headers }: Response): number | undefined {
  const asked = headers.get("retry-after")
  if (asked === null || asked.trim() === "") return undefined
  const ms = Number(asked) * 1000
  if (!Number.isNaN(ms)) return ms
  const at = Date.parse(asked)
  return Number.isNaN(at) ? undefined : at - (dateOf(headers) ?? Date.now())
}

function dateOf(headers: Headers): number | undefined {
  const date = Date.parse(headers.get("date") ?? "")
  return Number.isNaN(date) ? undefined : date
}

// errorOf reads {"error", "message"}. A proxy on the way can answer anything else.
function errorOf(text: string): { error: string; message: string } {
  try {
    const body: unknown = JSON.parse(text)
    if (typeof body === "object" && body !== null && "error" in body && typeof body.error === "string") {
      return { error: body.error, message: "message" in body ? String(body.message) : "" }
    }
  } catch {
    // not JSON: see below
  }
  return { error: "", message: text.slice(0, 200) }
}
