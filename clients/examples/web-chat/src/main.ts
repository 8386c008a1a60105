// The page: a pane for each person, or with ?as=alice for one, and the button that kills the service.

import { asDid, PdsTransport, type Transport } from "mlsd-client"
import { button, el } from "./dom.js"
import { Pane } from "./pane.js"
import { openPhone } from "./phone.js"
import { lookAtWorld, type Person, runService, type World } from "./world.js"

const world = await lookAtWorld()
const as = new URLSearchParams(location.search).get("as")
const panes = world.people.flatMap((person: Person) => {
  const other = world.people.find(({ did }) => did !== person.did)
  if (other === undefined || (as !== null && as !== person.name.toLowerCase())) return []
  return [new Pane(person, other, (events) => openPhone(asDid(person.did), wayOf(person), events), show)]
})

/** Here the page's server is the PDS. In sign-in.ts it is a real one. */
function wayOf({ did }: Person): Transport {
  const fetchHandler = (path: string, init: RequestInit) => fetch(`/pds/${encodeURIComponent(did)}${path}`, init)
  return new PdsTransport({ fetchHandler }, world.service)
}

const serviceState = el("p", { role: "status", class: "status" })
const kill = button("Kill the server", () => void change(false))
const start = button("Start it again", () => void change(true))

/** Shows what is broken. */
function show({ running, ...rest }: World): void {
  serviceState.textContent = running ? "Server is running" : "Server was killed"
  document.body.toggleAttribute("data-running", running)
  kill.hidden = !running
  start.hidden = running
  panes.forEach((pane) => pane.show({ running, ...rest }))
}

async function change(running: boolean): Promise<void> {
  kill.disabled = start.disabled = true
  try {
    show(await runService(running))
  } catch (err) {
    serviceState.textContent = String(err)
  }
  kill.disabled = start.disabled = false
  ;(running ? kill : start).focus()
}

document.querySelector("#server")?.append(serviceState, kill, start)
document.querySelector("main")?.append(...panes.map(({ element }) => element))
show(world)
await Promise.all(panes.map((pane) => pane.open()))
