// The two ways from a signed-in browser to the service.

import { PdsTransport, type PdsAgent, SessionTransport, XrpcError } from "mlsd-client"
import type { Settings } from "../../server/oauth.js"
import type { Way } from "./phone.js"

/** Through the PDS, which signs each request. */
export function throughPds(session: PdsAgent, { service }: Settings): Way {
  return new PdsTransport(session, service)
}

/** Directly, under a session that a token of the PDS has bought. The scope must have `createSession`. */
export function directly(session: PdsAgent, { service, url }: Settings): Way {
  return (deviceId) => new SessionTransport(url, deviceId, (method) => serviceAuth(session, service, method))
}

/**
 * Gets a service-auth token.
 *
 * @param aud the service's DID with its id, as in the scope: the PDS compares the two
 * @throws XrpcError `ScopeMissingError`, with status 403, if the scope does not have the method
 */
export async function serviceAuth(session: PdsAgent, aud: string, lxm: string): Promise<string> {
  const path = `/xrpc/com.atproto.server.getServiceAuth?${new URLSearchParams({ aud, lxm })}`
  const answer = await session.fetchHandler(path, {})
  const { token, error = "", message = "" } = (await answer.json()) as { token?: string; error?: string; message?: string }
  if (token === undefined) throw new XrpcError(answer.status, error, message)
  return token
}
