// The agent of ts-mls: devices.mjs with the library as corrections.mjs corrects it.

import { register } from "node:module"

register("./corrections.mjs", import.meta.url)
await import("./devices.mjs")
