// npm start [-- [--two] [PORT]]

import { compile, start, stopAtSignal } from "./world.js"

const words = process.argv.slice(2)
const port = words.find((word) => word !== "--two") ?? 8090
const { url, stop } = await start(process.env.MLSD_BINARIES ?? compile(), Number(port), words.includes("--two") ? 2 : 1)
console.log(`web chat on ${url}`)
stopAtSignal(stop)
