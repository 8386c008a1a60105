// What a signed-in page may do: the test loads it into the page.

import { XrpcError } from "mlsd-client"
import type { Settings } from "../server/oauth.js"
import { SignIn } from "../src/sign-in.js"
import { serviceAuth } from "../src/ways.js"

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

async function isRefused(token: Promise<string>): Promise<boolean> {
  try {
    await token
    return false
  } catch (err) {
    if (err instanceof XrpcError && err.status === 403 && err.error === "ScopeMissingError") return true
    throw err
  }
}
