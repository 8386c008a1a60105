// A real mlsd with a PostgreSQL of its own, and clients that make it work.

import { execFile, spawn } from "node:child_process"
import { chmodSync, mkdtempSync, readFileSync, rmSync } from "node:fs"
import { createServer } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { promisify } from "node:util"

export const token = "the-admin-token-of-this-check"
export const readToken = "the-read-token-of-this-check"

/** A port that nobody listens on. */
function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer().once("error", reject)
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })
}

/** Starts mlsd. The clients need its directory of accounts, so its port is chosen before. */
export async function startServer() {
  const data = mkdtempSync(join(tmpdir(), "mlsd-console-"))
  chmodSync(data, 0o755) // as root PostgreSQL runs as another user
  const plc = `127.0.0.1:${await freePort()}`
  const args = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", data, "--allow-loopback",
    "--plc-url", `http://${plc}`, "--service-did", "did:web:localhost%3A8080"]
  const env = { PATH: process.env.PATH, HOME: process.env.HOME, MLSD_ADMIN_TOKEN: token, MLSD_ADMIN_READ_TOKEN: readToken, MLSD_LOG_LEVEL: "error" }
  const child = spawn(process.env.MLSD_BINARY, args, { env, stdio: ["ignore", "pipe", "inherit"] })
  const ended = new Promise((resolve) => child.once("exit", resolve))
  const [admin, url] = await new Promise((resolve, reject) => {
    let out = ""
      ended.then((code) => reject(new Error(`mlsd has ended with ${code}`)))
    child.stdout.on("data", (text) => {
      out += text
      const found = /admin on (\S+)\n.*listening on (\S+)\n/.exec(out)
      if (found) resolve([found[1], found[2]])
    })
  })
  return {
    admin,
    pid: child.pid,
    /** Plays scenarios of the simulator. */
    async play(...scenarios) {
      const args = ["--server", url, "--service-did", "did:web:localhost%3A8080", "--plc-listen", plc,
        "--scenario", scenarios.join(","), "--clients", "5", "--messages", "60", "--seed", "7"]
      await promisify(execFile)(process.env.CLIENTSIM_BINARY, args)
    },
    /** Runs the SQL of a file beside this one in the server's database. */
    async plant(file) {
      const running = promisify(execFile)(process.env.PLANT_BINARY, [data])
      running.child.stdin.end(readFileSync(new URL(file, import.meta.url)))
      await running
    },
    async stop() {
      child.kill("SIGTERM")
      await ended
      rmSync(data, { recursive: true, force: true })
    },
  }
}
