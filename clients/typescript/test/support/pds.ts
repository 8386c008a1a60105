// A real PDS: a process with the packages in TEST_PDS, whose accounts are in the directory of `mlsd-dev`.

import assert from "node:assert/strict"
import { type ChildProcess, spawn } from "node:child_process"
import { copyFile, mkdtemp, rm, symlink } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { createInterface } from "node:readline"
import type { Did } from "../../src/ids.js"
import type { PdsAgent } from "../../src/transport.js"
import { serverURL } from "./dev.js"

/** Folders of PDSes of several versions: each has node_modules, and possibly a newer Node in it. */
export const pdsFolders = (process.env.TEST_PDS ?? "").split(":").filter((folder) => folder !== "")

const program = new URL("../../../../../cmd/mlsd/testdata/pds/pds.mjs", import.meta.url)

const adminPassword = "admin-password"

export class Pds {
  private constructor(
    private readonly child: ChildProcess,
    private readonly folder: string,
    private readonly url: string,
  ) {}

  static async start(packages: string): Promise<Pds> {
    const folder = await mkdtemp(join(tmpdir(), "mlsd-client-pds-"))
    await copyFile(program, join(folder, "pds.mjs"))
    await symlink(join(packages, "node_modules"), join(folder, "node_modules"))
    const bin = join(packages, "node_modules", ".bin")
    const child = spawn("node", [join(folder, "pds.mjs")], {
      cwd: folder, stdio: ["pipe", "pipe", "inherit"],
      env: {
        ...process.env, PATH: `${bin}:${process.env.PATH}`, NODE_OPTIONS: "", PDS_HOSTNAME: "localhost", PDS_DATA_DIRECTORY: folder,
        PDS_BLOBSTORE_DISK_LOCATION: join(folder, "blobs"), PDS_DID_PLC_URL: serverURL(), PDS_JWT_SECRET: "jwt-secret",
        PDS_ADMIN_PASSWORD: adminPassword, PDS_DEV_MODE: "true", PDS_INVITE_REQUIRED: "false", PDS_SERVICE_HANDLE_DOMAINS: ".test",
        PDS_PLC_ROTATION_KEY_K256_PRIVATE_KEY_HEX: "11".repeat(32), LOG_ENABLED: "false",
      },
    })
    for await (const line of createInterface(child.stdout)) {
      const url = /^PDS on (http:\S+)$/.exec(line)?.[1]
      if (url !== undefined) return new Pds(child, folder, url)
    }
    throw new Error("the PDS does not start")
  }

  /** Makes an account, and returns an agent with its session. */
  async account(handle: string): Promise<{ did: Did; agent: PdsAgent }> {
    const response = await fetch(`${this.url}/xrpc/com.atproto.server.createAccount`, {
      method: "POST", headers: { "content-type": "application/json" },
      body: JSON.stringify({ handle, email: `${handle}@example.com`, password: "password" }),
    })
    const text = await response.text()
    assert.ok(response.ok, text)
    const { did, accessJwt } = JSON.parse(text) as { did: Did; accessJwt: string }
    const fetchHandler = (path: string, init: RequestInit) =>
      fetch(this.url + path, { ...init, headers: { ...init.headers, authorization: `Bearer ${accessJwt}` } })
    return { did, agent: { fetchHandler } }
  }

  /** Deletes an account, as the operator does. */
  async deleteAccount(did: Did): Promise<void> {
    const response = await fetch(`${this.url}/xrpc/com.atproto.admin.deleteAccount`, {
      method: "POST", body: JSON.stringify({ did }),
      headers: { "content-type": "application/json", authorization: `Basic ${btoa(`admin:${adminPassword}`)}` },
    })
    assert.ok(response.ok, await response.text())
  }

  async end(): Promise<void> {
    const ended = new Promise((resolve) => this.child.on("exit", resolve))
    this.child.kill("SIGKILL")
    await ended
    await rm(this.folder, { recursive: true })
  }
}
