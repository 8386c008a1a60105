// openDevice in Node: corrects ts-mls, and loads it then.

import { register } from "node:module"
import type { Client } from "./client.js"
import type { DeviceOptions } from "./device.js"

register("./mls-ts-tree.js", import.meta.url)

export async function openDevice(options: DeviceOptions): Promise<Client> {
  const device = await import("./device.js")
  return device.openDevice(options)
}
