// Ports on loopback.

import { once } from "node:events"
import { createServer, type Server } from "node:http"

/** Makes a server that listens on loopback, and says on which port: 0 takes a free one. */
export async function listen(wanted: number): Promise<{ server: Server; port: number }> {
  const server = createServer().listen(wanted, "127.0.0.1")
  await once(server, "listening")
  const address = server.address()
  if (typeof address !== "object" || address === null) throw new Error("no port")
  return { server, port: address.port }
}

/** A port that nobody has now. */
export async function freePort(): Promise<number> {
  const { server, port } = await listen(0)
  server.close()
  await once(server, "close")
  return port
}
