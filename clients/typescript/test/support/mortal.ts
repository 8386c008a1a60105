// A device in a process of its own, which is killed at a chosen step: node mortal.js DID FILE KILL
// CONVO COUNT TEXT.
//
// It joins the convo, and sends COUNT messages "TEXT 0", "TEXT 1" … over all its lives. If it is not
// killed before, it ends when all are accepted and read.

import { FileStore } from "../../src/store-file.js"
import { get, put } from "../../src/store.js"
import { asConvoId, asDid } from "../../src/ids.js"
import { transportOf } from "./dev.js"
import { gullible } from "./everyone.js"
import { acceptAll, bytesOf, openPhone } from "./phone.js"
import { Steps } from "./steps.js"

const [did = "", file = "", kill = "0", convo = "", count = "0", text = ""] = process.argv.slice(2)

const steps = new Steps(Number(kill))
const store = steps.store(await FileStore.open(file))
const phone = await openPhone(asDid(did), store, {
  accounts: gullible(asDid(did)),
  transport: steps.transport(transportOf(asDid(did))),
  events: {
    onFailure: (err) => fail(err),
    onStop: (err) => fail(err),
    onRequest: () => {},
  },
})

function fail(err: unknown): never {
  console.error(err)
  process.exit(1)
}

if (convo === "") await phone.replenish()
else {
  await acceptAll(phone)
  const { sent } = (await get<{ sent: number }>(store, "app/sent")) ?? { sent: 0 }
  for (let i = sent; i < Number(count); i++) {
    const changes = new Map<string, Uint8Array | undefined>()
    put(changes, "app/sent", { sent: i + 1 })
    await phone.send(asConvoId(convo), bytesOf(`${text} ${i}`), { changes })
  }
  await phone.outbox.idle()
  await phone.sync(asConvoId(convo))
}
await phone.close()
await store.close()
