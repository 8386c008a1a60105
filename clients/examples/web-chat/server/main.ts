// npm start [-- PORT]

import { compile, start } from "./world.js"

const { url, stop } = await start(process.env.MLSD_BINARIES ?? compile(), Number(process.argv[2] ?? 8090))
console.log(`web chat on ${url}`)
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => {
    stop().then(() => process.exit(0), (err: unknown) => {
      console.error(err)
      process.exit(1)
    })
  })
}
