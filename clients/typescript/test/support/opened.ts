// A process that has opened a device, and says whether ts-mls was corrected before it was loaded.

import { openDevice } from "../../src/device-node.js"
import { asDid } from "../../src/ids.js"
import { accountsOf } from "./everyone.js"
import { MemoryStore } from "../../src/store.js"

const transport = { call: () => Promise.reject(new Error("nothing is called")) }
const client = await openDevice({ did: asDid("did:plc:alice"), store: new MemoryStore(), transport, accounts: accountsOf(asDid("did:plc:alice")) })
const { validateRatchetTree } = await import("ts-mls/clientState.js")
console.log(String(validateRatchetTree).includes("dp.indexOf(parentIdx)"))
await client.close()
