// Everything that the page needs, in one process with two children.

import { execFileSync } from "node:child_process"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { Web } from "./http.js"
import { listen } from "./listen.js"
import { Pds } from "./pds.js"
import { Population } from "./population.js"
import { Network, Service } from "./processes.js"

const build = join(dirname(fileURLToPath(import.meta.url)), "..")
/** The folder of mlsd's source. */
export const repository = join(build, "../../../..")

/** A running page. */
export interface Running {
  readonly url: string
  stop(): Promise<void>
}

/** Compiles mlsd and mlsd-dev, and returns the folder of the programs. */
export function compile(): string {
  execFileSync("go", ["build", "-o", build + "/", "./cmd/mlsd", "./cmd/mlsd-dev"], { cwd: repository, stdio: "inherit" })
  return build
}

/**
 * Starts everything.
 *
 * @param binaries the folder of the programs mlsd and mlsd-dev
 * @param wanted the port of the page; 0 is a free one
 * @param services 1: a service of both people, which can be killed. 2: one of each, in mlsd-dev
 */
export async function start(binaries: string, wanted: number, services: 1 | 2 = 1): Promise<Running> {
  const { server, port } = await listen(wanted)
  const url = `http://localhost:${port}`
  const network = await Network.start(join(binaries, "mlsd-dev"), services)
  const service = services === 1 ? await Service.start(join(binaries, "mlsd"), network.url, { publicUrl: url }) : undefined
  const [first, ...others] = service === undefined ? await network.services() : [service]
  if (first === undefined) throw new Error("mlsd-dev names no services")
  const pds = new Pds(network, [first, ...others], (handle) => people.find(handle)?.did)
  const people = new Population(network, service?.did, ({ did, home }) => pds.add(did, home))
  for (const name of ["alice", "bob"]) await people.make(name)
  new Web(pds, service, people, network.url).serve(server)
  const stop = async () => {
    server.close()
    server.closeAllConnections()
    await Promise.all([service?.stop(), network.stop()])
  }
  return { url, stop }
}

/** Stops everything when the process gets SIGINT or SIGTERM. */
export function stopAtSignal(stop: () => Promise<void>): void {
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.once(signal, () => {
      stop().then(() => process.exit(0), (err: unknown) => {
        console.error(err)
        process.exit(1)
      })
    })
  }
}
