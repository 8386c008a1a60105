// A real PDS, @atproto/pds, in a process of its own. Its accounts are in the directory of `mlsd-dev`.

import { type ChildProcess, execFileSync, spawn } from "node:child_process"
import { copyFile, mkdtemp, readFile, rm, symlink } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { end } from "./processes.js"
import { repository } from "./world.js"

/** The permission sets of the service: docs/clients/OAUTH.md. */
const permissionSets = ["authRead", "authMessaging", "authFull"].map((name) => `blue.catbird.mls.${name}`)

const password = "password"

/** Somebody who has an account there. */
export interface Account {
  readonly did: string
  readonly handle: string
}

/** Installs the packages of a PDS, and returns their folder. The first time it takes minutes. */
export function installPds(): string {
  const folder = execFileSync(join(repository, "cmd/mlsd/installpds.sh"), { encoding: "utf8" }).trim()
  if (folder.startsWith("SKIPPED")) throw new Error(folder)
  return folder
}

export class RealPds {
  private child: ChildProcess | undefined
  private at = ""

  private constructor(
    private readonly packages: string,
    private readonly directory: string,
    private readonly folder: string,
  ) {}

  /**
   * Starts a PDS in which people can grant the service's permission sets.
   *
   * @param packages the folder of its packages
   * @param directory the PLC directory
   */
  static async start(packages: string, directory: string): Promise<RealPds> {
    const folder = await mkdtemp(join(tmpdir(), "web-chat-pds-"))
    await copyFile(join(repository, "cmd/mlsd/testdata/pds/pds.mjs"), join(folder, "pds.mjs"))
    await symlink(join(packages, "node_modules"), join(folder, "node_modules"))
    const pds = new RealPds(packages, directory, folder)
    // A PDS asks DNS who publishes a permission set. The setting names the account instead, and it is
    // made before the PDS can be started with it.
    await pds.run({})
    const publisher = await pds.publishSets()
    await end(pds.child, "SIGTERM")
    await pds.run({ PDS_LEXICON_AUTHORITY_DID: publisher })
    return pds
  }

  /** Where it answers. */
  get url(): string {
    return this.at
  }

  /** Makes an account. */
  async account(handle: string): Promise<Account> {
    const { did } = await this.signUp(handle)
    return { did, handle }
  }

  /** Every line that it has logged. */
  async log(): Promise<Record<string, unknown>[]> {
    const lines = (await readFile(join(this.folder, "log"), "utf8")).split("\n").filter((line) => line !== "")
    return lines.map((line) => JSON.parse(line) as Record<string, unknown>)
  }

  /** Stops it, and deletes its data. */
  async stop(): Promise<void> {
    await end(this.child, "SIGTERM")
    await rm(this.folder, { recursive: true })
  }

  private async run(settings: NodeJS.ProcessEnv): Promise<void> {
    const { folder } = this
    const child = spawn(join(this.packages, "node_modules/.bin/node"), [join(folder, "pds.mjs")], {
      cwd: folder, stdio: ["pipe", "pipe", "inherit"],
      env: {
        PATH: process.env.PATH, PDS_HOSTNAME: "localhost", PDS_DATA_DIRECTORY: folder,
        PDS_BLOBSTORE_DISK_LOCATION: join(folder, "blobs"), PDS_DID_PLC_URL: this.directory, PDS_JWT_SECRET: "jwt-secret",
        PDS_ADMIN_PASSWORD: "admin-password", PDS_INVITE_REQUIRED: "false", PDS_SERVICE_HANDLE_DOMAINS: ".test",
        PDS_PLC_ROTATION_KEY_K256_PRIVATE_KEY_HEX: "11".repeat(32), PDS_SERVICE_NAME: "A real PDS",
        PDS_DEV_MODE: "true", // without it, a PDS speaks https only
        LOG_ENABLED: "true", LOG_LEVEL: "info", LOG_DESTINATION: join(folder, "log"), ...settings,
      },
    })
    this.child = child
    for await (const line of createInterface(child.stdout)) {
      this.at = /^PDS on (\S+)$/.exec(line)?.[1] ?? ""
      if (this.at !== "") return
    }
    throw new Error("the PDS does not start")
  }

  // publishSets publishes the permission sets as records of an account, and returns its DID.
  private async publishSets(): Promise<string> {
    const { did, accessJwt } = await this.signUp("lexicons.test")
    for (const name of permissionSets) {
      const lexicon = await readFile(join(repository, "lexicons", `${name.replaceAll(".", "/")}.json`), "utf8")
      const record = { $type: "com.atproto.lexicon.schema", ...(JSON.parse(lexicon) as object) }
      await this.post("com.atproto.repo.putRecord", { repo: did, collection: record.$type, rkey: name, record }, accessJwt)
    }
    return did
  }

  private signUp(handle: string): Promise<{ did: string; accessJwt: string }> {
    return this.post("com.atproto.server.createAccount", { handle, email: `${handle}@example.com`, password })
  }

  private async post<T>(method: string, body: object, token?: string): Promise<T> {
    const answer = await fetch(`${this.url}/xrpc/${method}`, {
      method: "POST", body: JSON.stringify(body),
      headers: { "content-type": "application/json", ...(token !== undefined && { authorization: `Bearer ${token}` }) },
    })
    if (!answer.ok) throw new Error(`${method}: ${answer.status} ${await answer.text()}`)
    return (await answer.json()) as T
  }
}
