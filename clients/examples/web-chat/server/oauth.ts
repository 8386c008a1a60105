// The page on which people sign in at a real PDS, and what it needs: a PLC directory, a PDS, and the
// service.

import { join } from "node:path"
import { isOwn, sendFile } from "./http.js"
import { listen } from "./listen.js"
import { Network, Service } from "./processes.js"
import { type Account, RealPds } from "./real-pds.js"
import type { Running } from "./world.js"

// The DID of a real service has no port, and this one's must not: when a PDS (0.5.35) looks up what a
// permission set allows, it takes the `%3A` of did:web:localhost%3A8080 for a colon, and grants nothing.
const did = "did:plc:webchat2oauth2service234"

/** What the page asks first. In a real app these are constants. */
export interface Settings {
  /** The service's DID and its id: the audience of a scope, and the header atproto-proxy. */
  readonly service: string
  /** Where the service is, for direct calls. */
  readonly url: string
  /** A server that resolves handles. Here it is everybody's PDS. */
  readonly pds: string
  /** The PLC directory. */
  readonly directory: string
  /** Who has an account. Each of the two chats with the other. */
  readonly people: readonly Account[]
}

/** A PDS calls no address by number. */
function byName(url: string): string {
  return url.replace("127.0.0.1", "localhost")
}

/** The running page. */
export interface OAuthWorld extends Running {
  readonly settings: Settings
  readonly pds: RealPds
}

/**
 * Starts everything.
 *
 * @param binaries the folder of the programs mlsd and mlsd-dev
 * @param packages the folder of a PDS
 * @param wanted the port of the page; 0 is a free one
 */
export async function startOAuth(binaries: string, packages: string, wanted: number): Promise<OAuthWorld> {
  const { server, port } = await listen(wanted)
  const network = await Network.start(join(binaries, "mlsd-dev"))
  const directory = byName(network.url)
  const service = await Service.start(join(binaries, "mlsd"), network.url, { did })
  const serviceUrl = byName(service.url)
  await network.place(did, serviceUrl)
  const pds = await RealPds.start(packages, directory)
  const settings: Settings = {
    service: `${service.did}#atproto_mls`, url: serviceUrl, pds: pds.url, directory,
    people: [await pds.account("alice.test"), await pds.account("bob.test")],
  }
  server.on("request", (request, response) => {
    const { pathname } = new URL(request.url ?? "/", "http://localhost")
    if (!isOwn(request)) response.writeHead(403).end("another site's page, or another name of this host")
    else if (pathname === "/settings") response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(settings))
    else void sendFile(pathname === "/" ? "/oauth.html" : pathname, response)
  })
  const stop = async () => {
    server.close()
    server.closeAllConnections()
    await Promise.all([pds.stop(), service.stop(), network.stop()])
  }
  // The address of a page that comes back from a PDS is one by number.
  return { url: `http://127.0.0.1:${port}`, settings, pds, stop }
}
