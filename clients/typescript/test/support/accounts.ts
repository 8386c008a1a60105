// Doubles of PDSes and of the PLC directory, on loopback, with real repositories.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http"
import type { AddressInfo } from "node:net"
import type { TestContext } from "node:test"
import { lexParse, lexStringify, type LexValue } from "../../src/json.js"
import type { PdsAgent } from "../../src/transport.js"
import type { Repository } from "./repositories.js"

type Answer = { status: number; body: string | Uint8Array; headers?: Record<string, string> }
type Fault = (request: IncomingMessage, response: ServerResponse) => void

/** A server that counts what it is asked, and that can be faulty. */
class Host {
  /** What it was asked, in order: methods of a PDS, `document` of a directory. */
  asked: string[] = []
  /** Answers instead of the host. */
  fault?: Fault | undefined

  protected constructor(
    protected readonly server: Server,
    readonly url: string,
  ) {}

  protected static async listen(t: TestContext): Promise<[Server, string]> {
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
    t.after(() => {
      server.closeAllConnections()
      server.close()
    })
    return [server, `http://127.0.0.1:${(server.address() as AddressInfo).port}`]
  }

  protected serve(handle: (url: URL, body: string) => Promise<Answer>): void {
    this.server.on("request", async (request, response) => {
      const url = new URL(request.url ?? "", this.url)
      this.asked.push(url.pathname.startsWith("/xrpc/") ? url.pathname.slice("/xrpc/".length) : "document")
      if (this.fault !== undefined) return this.fault(request, response)
      let text = ""
      for await (const chunk of request.setEncoding("utf8")) text += chunk
      const { status, body, headers } = await handle(url, text)
      response.writeHead(status, headers).end(body)
    })
  }
}

const json = (value: unknown, status = 200): Answer => ({ status, body: lexStringify(value as LexValue) })
const refusal = (error: string) => json({ error, message: "the double says so" }, 400)

/** A PDS with the repositories of accounts. */
export class PdsDouble extends Host {
  readonly repositories = new Map<string, Repository>()
  /** What getRepoStatus says. */
  status: object = { active: true }
  /** The records of a page of listRecords. */
  page = 100

  static async start(t: TestContext): Promise<PdsDouble> {
    const pds = new PdsDouble(...(await PdsDouble.listen(t)))
    pds.serve(async (url, body) => pds.answer(url, body))
    return pds
  }

  /** The session of the person with an account here. */
  get agent(): PdsAgent {
    return { fetchHandler: (path, init) => fetch(this.url + path, init) }
  }

  private async answer(url: URL, body: string): Promise<Answer> {
    const { did = "", repo = did, collection = "", rkey = "", cursor = "", record } =
      (body === "" ? Object.fromEntries(url.searchParams) : lexParse(body)) as Record<string, string> & { record: { [name: string]: LexValue } }
    const repository = this.repositories.get(repo)
    if (repository === undefined) return refusal("RepoNotFound")
    switch (url.pathname) {
      case "/xrpc/com.atproto.sync.getRecord":
        return { status: 200, body: await repository.proof(collection, rkey) }
      case "/xrpc/com.atproto.sync.getRepoStatus":
        return json({ did, ...this.status })
      case "/xrpc/com.atproto.repo.getRecord": {
        const value = await repository.get(collection, rkey)
        return value === null ? refusal("RecordNotFound") : json({ uri: `at://${repo}/${collection}/${rkey}`, value })
      }
      case "/xrpc/com.atproto.repo.listRecords": {
        const all = (await repository.list(collection)).filter(({ rkey }) => rkey > cursor).slice(0, this.page)
        const records = all.map(({ rkey, record }) => ({ uri: `at://${repo}/${collection}/${rkey}`, value: record }))
        return json({ records, ...(all.length > 0 && { cursor: all.at(-1)!.rkey }) })
      }
      case "/xrpc/com.atproto.repo.putRecord":
        await repository.put(collection, rkey, record)
        return json({ uri: `at://${repo}/${collection}/${rkey}` })
      case "/xrpc/com.atproto.repo.deleteRecord":
        await repository.delete(collection, rkey)
        return json({})
      default:
        return refusal("MethodNotImplemented")
    }
  }
}

/** A PLC directory, which answers for did:web:127.0.0.1 too. */
export class DirectoryDouble extends Host {
  /** `undefined` is a tombstone. */
  readonly documents = new Map<string, object | undefined>()

  static async start(t: TestContext): Promise<DirectoryDouble> {
    const directory = new DirectoryDouble(...(await DirectoryDouble.listen(t)))
    directory.serve(async ({ pathname }) => {
      const did = pathname === "/.well-known/did.json" ? directory.web : pathname.slice(1)
      if (!directory.documents.has(did)) return json({ message: `DID not registered: ${did}` }, 404)
      const document = directory.documents.get(did)
      return document === undefined ? json({ message: `DID not available: ${did}` }, 410) : json(document)
    })
    return directory
  }

  /** The did:web that the directory's own host has. */
  get web(): string {
    return `did:web:${new URL(this.url).host.replace(":", "%3A")}`
  }

  /** Says where a repository is. */
  place({ did, multikey }: Repository, pds: string): void {
    this.documents.set(did, {
      id: did,
      verificationMethod: [{ id: `${did}#atproto`, type: "Multikey", controller: did, publicKeyMultibase: multikey }],
      service: [{ id: "#atproto_pds", type: "AtprotoPersonalDataServer", serviceEndpoint: pds }],
    })
  }
}
