// The web server: the page, the stand-in for a PDS, and the page's buttons that break things.

import { readFile } from "node:fs/promises"
import { type IncomingMessage, type Server, type ServerResponse } from "node:http"
import { dirname, extname, join, normalize } from "node:path"
import { fileURLToPath } from "node:url"
import { type Line, type Pds, read } from "./pds.js"
import type { Population } from "./population.js"
import type { Service } from "./processes.js"

/** What the page asks first. */
export interface World {
  /** The URL of the PLC directory, which names people's PDSes. */
  readonly directory: string
  readonly running: boolean
  /** With two services: whether the line between them is cut. */
  readonly cut?: boolean
  readonly people: readonly (Person & Line)[]
}

/** Somebody who chats. */
export interface Person {
  readonly handle: string
  readonly did: string
  /** The DID of the person's service. */
  readonly home: string
}

/** What the buttons change. */
interface Change {
  /** Makes a person of this name, unless there is one. */
  readonly person?: string
  readonly running?: boolean
  readonly cut?: boolean
  readonly did?: string
  readonly line?: Partial<Line>
}

/** The page's files. */
export const pageFolder = join(dirname(fileURLToPath(import.meta.url)), "../page")

const types: Readonly<Record<string, string>> = {
  ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".map": "application/json", ".svg": "image/svg+xml",
}

export class Web {
  constructor(
    private readonly pds: Pds,
    /** The service that can be killed, if there is only one. */
    private readonly service: Service | undefined,
    private readonly people: Population,
    private readonly directory: string,
  ) {}

  /** Answers the requests of a server. */
  serve(server: Server): void {
    server.on("request", (request, response) => {
      this.route(request, response).catch((err: unknown) => {
        console.error(err)
        response.destroy()
      })
    })
    server.on("upgrade", (request, socket, head) => {
      if (isOwn(request)) this.pds.upgrade(request, socket, head)
      else socket.destroy()
    })
  }

  private async route(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, search } = new URL(request.url ?? "/", "http://localhost")
    const [, first, did, ...rest] = pathname.split("/")
    if (!isOwn(request)) response.writeHead(403).end("another site's page, or another name of this host")
    else if (first === "pds") await this.pds.answer(decodeURIComponent(did ?? ""), `/${rest.join("/")}${search}`, request, response)
    else if (first === "world") await this.world(request, response)
    else await sendFile(pathname === "/" ? "/index.html" : pathname, response)
  }

  private async world(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method === "POST") await this.change(JSON.parse((await read(request)).toString()) as Change)
    const world: World = {
      directory: this.directory, running: this.service?.running ?? true, ...(this.service === undefined && { cut: this.pds.cut }),
      people: this.people.all.map((person) => ({ ...person, ...(this.pds.line(person.did) ?? { online: true, loses: false }) })),
    }
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(world))
  }

  private async change({ person, running, cut, did, line }: Change): Promise<void> {
    if (person !== undefined) await this.people.make(person)
    if (running === false) await this.service?.kill()
    if (running === true) await this.service?.start()
    if (cut !== undefined) await this.pds.sever(cut)
    if (did !== undefined && line !== undefined) this.pds.change(did, line)
  }
}

/** Answers with a file of the page. */
export async function sendFile(path: string, response: ServerResponse): Promise<void> {
  try {
    const content = await readFile(join(pageFolder, normalize(path)))
    response.writeHead(200, { "content-type": types[extname(path)] ?? "text/plain", "cache-control": "no-store" }).end(content)
  } catch {
    response.writeHead(404).end("not found")
  }
}

/**
 * Reports whether a request comes from a page of this server, under its own name: nobody else may sign
 * for the people, or kill the service.
 */
export function isOwn({ headers }: IncomingMessage): boolean {
  const host = headers.host ?? ""
  return /^(localhost|127\.0\.0\.1)(:\d+)?$/.test(host) && (headers.origin ?? `http://${host}`) === `http://${host}`
}
