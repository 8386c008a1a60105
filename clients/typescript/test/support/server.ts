// A server whose database can be set back: the binary in TEST_BINARY, with a PostgreSQL of its own and
// the accounts of `mlsd-dev`.

import assert from "node:assert/strict"
import { type ChildProcess, execFileSync, spawn } from "node:child_process"
import { chmod, mkdtemp, rm } from "node:fs/promises"
import { createServer } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { serverURL } from "./dev.js"

const binary = process.env.TEST_BINARY ?? ""

/** Options of a test that needs the binary. */
export const needsBinary = binary === "" ? { skip: "TEST_BINARY is not set: run check.sh" } : {}

const startTimeout = 120_000 // milliseconds

export class Server {
  private child: ChildProcess | undefined

  private constructor(
    private readonly folder: string,
    private readonly port: number,
    private readonly settings: NodeJS.ProcessEnv,
  ) {}

  /** @param settings further settings of the server */
  static async start(settings: NodeJS.ProcessEnv = {}): Promise<Server> {
    const folder = await mkdtemp(join(tmpdir(), "mlsd-client-server-"))
    await chmod(folder, 0o711) // PostgreSQL may run as another account
    const server = new Server(folder, await freePort(), settings)
    await server.run()
    return server
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`
  }

  get did(): string {
    return `did:web:localhost%3A${this.port}`
  }

  /** Keeps what the server has now, and nothing of before. */
  async backUp(): Promise<void> {
    await rm(this.data + ".backup", { recursive: true, force: true })
    this.command("backup")
  }

  /** Sets the server back to the backup. */
  async restore(): Promise<void> {
    await this.stop()
    await rm(this.data, { recursive: true })
    this.command("restore")
    await this.run()
  }

  private command(name: "backup" | "restore"): void {
    execFileSync(binary, [name, this.data + ".backup"], { stdio: "ignore", env: this.environment })
  }

  async end(): Promise<void> {
    await this.stop()
    await rm(this.folder, { recursive: true })
  }

  private get data(): string {
    return join(this.folder, "data")
  }

  private get environment(): NodeJS.ProcessEnv {
    return {
      ...cleanEnvironment(), MLSD_DATA_DIR: this.data, MLSD_LISTEN: `127.0.0.1:${this.port}`, MLSD_ADMIN_LISTEN: "127.0.0.1:0",
      MLSD_SERVICE_DID: this.did, MLSD_PUBLIC_URL: this.url, MLSD_PLC_URL: serverURL(), MLSD_DATABASE_URL: "",
      MLSD_SERVICES: "all", MLSD_SERVICE_KEY_FILE: join(this.folder, "service.key"), ...this.settings, // no backup has the key
    }
  }

  private async run(): Promise<void> {
    this.child = spawn(binary, [], { stdio: ["ignore", "ignore", "inherit"], env: this.environment })
    const until = Date.now() + startTimeout
    while (!(await this.isUp())) {
      assert.equal(this.child.exitCode, null, "the server has ended")
      assert.ok(Date.now() < until, "the server does not answer")
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }

  private async isUp(): Promise<boolean> {
    try {
      return (await fetch(`${this.url}/xrpc/_health`)).ok
    } catch {
      return false
    }
  }

  private async stop(): Promise<void> {
    const child = this.child
    if (child === undefined || child.exitCode !== null) return
    const ended = new Promise((resolve) => child.on("exit", resolve))
    child.kill("SIGTERM")
    await ended
  }
}

// cleanEnvironment leaves out settings of other servers: mlsd refuses those that it does not know.
function cleanEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("MLSD_")))
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.on("error", reject)
    server.listen(0, "127.0.0.1", () => {
      const address = server.address()
      server.close(() => (typeof address === "object" && address !== null ? resolve(address.port) : reject(new Error("no port"))))
    })
  })
}
