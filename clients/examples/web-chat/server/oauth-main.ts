// npm run oauth [-- PORT]

import { startOAuth } from "./oauth.js"
import { installPds } from "./real-pds.js"
import { compile, stopAtSignal } from "./world.js"

const { url, settings, stop } = await startOAuth(process.env.MLSD_BINARIES ?? compile(), installPds(), Number(process.argv[2] ?? 8090))
const handles = settings.people.map(({ handle }) => handle).join(" and ")
console.log(`web chat on ${url}, PDS on ${settings.pds}: ${handles}, whose password is "password"`)
stopAtSignal(stop)
