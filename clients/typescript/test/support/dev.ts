// A server for tests: `mlsd-dev`, at the URL in TEST_SERVER.

import assert from "node:assert/strict"
import type { Did } from "../../src/ids.js"
import { DirectTransport, type PdsAgent } from "../../src/transport.js"

const base = process.env.TEST_SERVER

/** Options of a test that needs the server. check.sh starts one. */
export const needsServer = base === undefined ? { skip: "TEST_SERVER is not set: run check.sh" } : {}

/** The server's URL. */
export function serverURL(): string {
  assert.ok(base, "TEST_SERVER")
  return base
}

/** Calls a method of `mlsd-dev` itself. */
export async function dev<T>(method: string, path: string, body?: object): Promise<T> {
  const response = await fetch(new URL(path, serverURL()), {
    method, ...(body && { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${path}: ${response.status} ${text}`)
  return (text === "" ? undefined : JSON.parse(text)) as T
}

/** Makes accounts, and returns their DIDs. */
export async function newAccounts(count: number): Promise<Did[]> {
  const { accounts } = await dev<{ accounts: { did: Did }[] }>("POST", "/dev/accounts", { count })
  return accounts.map(({ did }) => did)
}

/** A fault of `mlsd-dev`. */
export interface Fault {
  lxm?: string
  did?: string
  kind: "loseAnswer" | "delay" | "status" | "cut" | "slow" | "pdsAway" | "pdsSlow" | "recordMissing" | "recordOtherKey" | "badProof"
  status?: number
  retryAfter?: number
  ms?: number
  times?: number
}

/** Plans a fault. */
export function plan(fault: Fault): Promise<void> {
  return dev("POST", "/dev/faults", fault)
}

/** Removes all faults, and returns how many requests they met. */
export async function clearFaults(): Promise<number> {
  const { faults } = await dev<{ faults: { struck: number }[] }>("GET", "/dev/faults")
  await dev("DELETE", "/dev/faults")
  return faults.reduce((sum, { struck }) => sum + struck, 0)
}

/** A direct transport of an account, to another server than `mlsd-dev` itself if there is one. */
export function transportOf(did: Did, service = serverURL(), aud?: string): DirectTransport {
  return new DirectTransport(service, async (lxm) => {
    const { token } = await dev<{ token: string }>("POST", "/dev/token", { did, lxm, ...(aud && { aud }) })
    return token
  })
}

/** The session of an account at its PDS, which `mlsd-dev` is. */
export function agentOf(did: Did): PdsAgent {
  return {
    fetchHandler: async (path, init) => {
      const { token } = await dev<{ token: string }>("POST", "/dev/token", { did, lxm: "com.atproto.repo.putRecord" })
      return fetch(serverURL() + path, { ...init, headers: { ...init.headers, authorization: `Bearer ${token}` } })
    },
  }
}
