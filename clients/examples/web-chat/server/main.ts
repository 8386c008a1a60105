// npm start [-- PORT]

import { compile, start, stopAtSignal } from "./world.js"

const { url, stop } = await start(process.env.MLSD_BINARIES ?? compile(), Number(process.argv[2] ?? 8090))
console.log(`web chat on ${url}`)
stopAtSignal(stop)
