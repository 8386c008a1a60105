// What a signed-in page may do: the test loads it into the page.

import { type PdsAgent, XrpcError } from "mlsd-client"
import type { Settings } from "../server/oauth.js"
import { SignIn } from "../src/model/sign-in.js"
import { serviceAuth } from "../src/model/ways.js"

/**
 * Asks the PDS for a service-auth token for each method, and returns the methods for which it gives one.
 * Those for which it does not it must not pass on either.
 *
 * @param methods the verb of each method
 */
export async function allowed(settings: Settings, methods: Readonly<Record<string, "GET" | "POST">>): Promise<string[]> {
  const session = await new SignIn(settings).session()
  if (session === undefined) throw new Error("nobody has signed in")
  const [withoutId = ""] = settings.service.split("#")
  if (!(await isRefused(serviceAuth(session, withoutId, "blue.catbird.mls.getConvos")))) throw new Error("a PDS need not be asked with the id")
  const got: string[] = []
  for (const [nsid, method] of Object.entries(methods)) {
    if (!(await isRefused(serviceAuth(session, settings.service, nsid)))) {
      got.push(nsid)
      continue
    }
    const answer = await session.fetchHandler(`/xrpc/${nsid}`, { method, headers: { "atproto-proxy": settings.service } })
    const { error } = (await answer.json()) as { error?: string }
    if (error !== "ScopeMissingError") throw new Error(`${nsid} through the PDS: ${answer.status} ${error}`)
  }
  return got
}

/** Reports whether the app may list a device of the person, and takes the device off the list again. */
export async function listsDevices(settings: Settings): Promise<boolean> {
  const session = await new SignIn(settings).session()
  if (session === undefined) throw new Error("nobody has signed in")
  const collection = "blue.catbird.mls.device"
  const at = { repo: session.did, collection, rkey: "mmg42klgyqzwneiskrelxms3j72bfje4" }
  const record = {
    $type: collection, signatureKey: { $bytes: "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8" },
    cipherSuite: "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", createdAt: new Date().toISOString(),
  }
  const write = (verb: string, body: object) => statusOf(session, verb, body)
  const profile = { ...at, collection: "app.bsky.actor.profile", rkey: "self", record: { $type: "app.bsky.actor.profile" } }
  if ((await write("putRecord", profile)) !== 403) throw new Error("the app may write other records")
  const statuses = [await write("createRecord", { ...at, record }), await write("putRecord", { ...at, record }), await write("deleteRecord", at)]
  if (statuses.every((status) => status === 200)) return true
  if (statuses.every((status) => status === 403)) return false
  throw new Error(`create, update, delete: ${statuses.join(", ")}`)
}

/** Reports whether the app may name the person's service. It may not take the name away again. */
export async function namesService(settings: Settings): Promise<boolean> {
  const session = await new SignIn(settings).session()
  if (session === undefined) throw new Error("nobody has signed in")
  const at = { repo: session.did, collection: "blue.catbird.mls.profile", rkey: "self" }
  const record = { $type: at.collection, deliveryService: session.did, createdAt: new Date().toISOString() }
  const status = await statusOf(session, "putRecord", { ...at, record })
  if ((await statusOf(session, "deleteRecord", at)) !== 403) throw new Error("the app may delete the record")
  if (status !== 200 && status !== 403) throw new Error(`update: ${status}`)
  return status === 200
}

async function statusOf(session: PdsAgent, verb: string, body: object): Promise<number> {
  const init = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }
  return (await session.fetchHandler(`/xrpc/com.atproto.repo.${verb}`, init)).status
}

async function isRefused(token: Promise<string>): Promise<boolean> {
  try {
    await token
    return false
  } catch (err) {
    if (err instanceof XrpcError && err.status === 403 && err.error === "ScopeMissingError") return true
    throw err
  }
}
