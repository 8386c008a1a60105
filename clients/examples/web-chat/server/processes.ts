// The two processes behind the page. `mlsd-dev` makes the people and signs in their names. The service
// is an mlsd with a database on the disk: it can be killed, and has everything when it is back.

import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { chmod, mkdtemp, rm } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { freePort } from "./listen.js"

/** What reports of abuse are sealed to: docs/clients/DEV.md has the private half. */
const reportKey = "mlsd-report-public-XwUmXPp77xzZX_nHLkaVPB9tKATYAxbR3ztr7ToWoSM"

/** How long a process may take until it answers, in milliseconds. */
const longestStart = 120_000

/** Where a service is. */
export interface Place {
  readonly did: string
  readonly url: string
}

/** `mlsd-dev`: a directory of made-up people, and their keys. */
export class Network {
  private constructor(
    private readonly child: ChildProcess,
    /** Where it answers. */
    readonly url: string,
  ) {}

  /** @param services how many services are in its network */
  static async start(binary: string, services = 1): Promise<Network> {
    const child = run(binary, ["--listen", "127.0.0.1:0", "--services", String(services)], {})
    for await (const line of createInterface({ input: child.stdout })) {
      const url = /^mlsd-dev on (\S+)$/.exec(line)?.[1]
      if (url === undefined) continue
      child.stdout.resume()
      return new Network(child, url)
    }
    throw new Error("mlsd-dev has ended")
  }

  /** Makes a person. People live at one service of the network after the other. */
  async person(handle: string): Promise<{ did: string; home: string }> {
    const { accounts } = await this.post<{ accounts: { did: string; deliveryService: string }[] }>("/dev/accounts", { handle })
    const [account] = accounts
    if (account === undefined) throw new Error(`mlsd-dev made no ${handle}`)
    return { did: account.did, home: account.deliveryService }
  }

  /** The services of a network of several. */
  async services(): Promise<Place[]> {
    const { services = [] } = (await (await fetch(new URL("/dev", this.url))).json()) as { services?: Place[] }
    return services
  }

  /** Cuts the line between two services, or mends it: neither takes a request of the other. */
  async cut(one: Place, other: Place, cut: boolean): Promise<void> {
    for (const [at, from] of [[one, other], [other, one]] as const) {
      if (cut) await this.post("/dev/faults", { kind: "cut", times: 0, did: from.did }, at.url)
      else await fetch(new URL("/dev/faults", at.url), { method: "DELETE" })
    }
  }

  /** Makes a service-auth token of a person. */
  async token(did: string, aud: string, lxm: string): Promise<string> {
    return (await this.post<{ token: string }>("/dev/token", { did, aud, lxm })).token
  }

  /** Writes into the directory where a service is. */
  async place(did: string, url: string): Promise<void> {
    await this.post(`/${did}`, { services: { atproto_mls: { type: "AtprotoMlsService", endpoint: url } } })
  }

  stop(): Promise<void> {
    return end(this.child, "SIGTERM")
  }

  private async post<T>(path: string, body: object, at = this.url): Promise<T> {
    const answer = await fetch(new URL(path, at), { method: "POST", body: JSON.stringify(body) })
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`)
    return (await answer.json()) as T
  }
}

/** The delivery service. */
export class Service {
  private child: ChildProcess | undefined

  private constructor(
    private readonly binary: string,
    private readonly folder: string,
    readonly port: number,
    /** The audience of tokens. */
    readonly did: string,
    private readonly settings: NodeJS.ProcessEnv,
  ) {}

  /**
   * @param directory where the people's keys are
   * @param options its DID, and where browsers reach it, if not at its own port
   */
  static async start(binary: string, directory: string, options: { did?: string; publicUrl?: string }): Promise<Service> {
    const port = await freePort()
    const folder = await mkdtemp(join(tmpdir(), "web-chat-"))
    await chmod(folder, 0o711) // as root, PostgreSQL runs as another account
    const service = new Service(binary, folder, port, options.did ?? `did:web:localhost%3A${port}`, {
      MLSD_DATA_DIR: join(folder, "data"), MLSD_ADMIN_LISTEN: "127.0.0.1:0", MLSD_PLC_URL: directory, MLSD_SERVICES: "all",
      MLSD_REPORT_KEY: reportKey,
      MLSD_PUBLIC_URL: options.publicUrl ?? `http://localhost:${port}`,
    })
    await service.start()
    return service
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`
  }

  get running(): boolean {
    return this.child !== undefined
  }

  /** Starts it. It has the data that it had. */
  async start(): Promise<void> {
    if (this.child !== undefined) return
    const child = run(this.binary, [], {
      ...this.settings, MLSD_LISTEN: `127.0.0.1:${this.port}`, MLSD_SERVICE_DID: this.did,
    })
    child.stdout.resume()
    this.child = child
    const until = Date.now() + longestStart
    while (!(await this.answers())) {
      if (child.exitCode !== null || Date.now() > until) throw new Error("mlsd does not start")
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }

  /** Kills it with SIGKILL: it can finish nothing. */
  async kill(): Promise<void> {
    const child = this.child
    this.child = undefined
    await end(child, "SIGKILL")
  }

  /** Stops it, and deletes its data. */
  async stop(): Promise<void> {
    await end(this.child, "SIGTERM")
    await rm(this.folder, { recursive: true })
  }

  private async answers(): Promise<boolean> {
    try {
      return (await fetch(`${this.url}/xrpc/_health`)).ok
    } catch {
      return false
    }
  }
}

// run starts a process without the settings of other servers: mlsd refuses those that it does not know.
function run(binary: string, args: string[], settings: NodeJS.ProcessEnv) {
  const others = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("MLSD_")))
  const env = { ...others, MLSD_LOG_LEVEL: "error", ...settings }
  return spawn(binary, args, { stdio: ["ignore", "pipe", "inherit"], env })
}

/** Ends a process. */
export async function end(child: ChildProcess | undefined, signal: NodeJS.Signals): Promise<void> {
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
  const exit = once(child, "exit")
  child.kill(signal)
  await exit
}
