// The page: a pane for each person, or with ?as=alice for one, and the button that kills the service.

import { asDid, type ClientEvents, type PdsAgent, PdsTransport } from "mlsd-client"
import { button, el } from "./dom.js"
import { Pane } from "./pane.js"
import { openPhone, type Phone } from "./phone.js"
import { cutServices, lookAtWorld, type Person, runService, type World } from "./world.js"

const world = await lookAtWorld()
const as = new URLSearchParams(location.search).get("as")
const panes = world.people.flatMap((person: Person) => {
  const other = world.people.find(({ did }) => did !== person.did)
  if (other === undefined || (as !== null && as !== person.name.toLowerCase())) return []
  return [new Pane(person, other, (events) => openPhoneOf(person, events), show)]
})

/** Here the page's server is the PDS. In sign-in.ts it is a real one. */
function pdsOf({ did }: Person): PdsAgent {
  return { fetchHandler: (path, init) => fetch(`/pds/${encodeURIComponent(did)}${path}`, init) }
}

/** Opens a person's device. With two services it also reaches the other one, and says which is its own. */
async function openPhoneOf(person: Person, events: ClientEvents): Promise<Phone> {
  const way = (service: string) => new PdsTransport(pdsOf(person), `${service}#atproto_mls`)
  const services = world.cut === undefined ? undefined : { home: asDid(person.home), way }
  const account = { agent: pdsOf(person), directory: world.directory }
  const phone = await openPhone(asDid(person.did), account, way(person.home), events, services)
  if (services !== undefined) await phone.client.publishProfile(pdsOf(person))
  return phone
}

const line = button("Cut the line", () => void sever(line.getAttribute("aria-pressed") !== "true"), { "aria-pressed": "false" })
const serviceState = el("p", { role: "status", class: "status" })
const kill = button("Kill the server", () => void change(false))
const start = button("Start it again", () => void change(true))

/** Shows what is broken. */
function show(world: World): void {
  const { running, cut } = world
  serviceState.textContent = cut === undefined ? (running ? "Server is running" : "Server was killed")
    : cut ? "The line is cut" : "Services are connected"
  document.body.toggleAttribute("data-running", running && cut !== true)
  line.hidden = cut === undefined
  line.setAttribute("aria-pressed", String(cut === true))
  kill.hidden = !running || cut !== undefined
  start.hidden = running
  panes.forEach((pane) => pane.show(world))
}

/** Cuts the line between the services, or mends it. Then everybody tries again. */
async function sever(cut: boolean): Promise<void> {
  try {
    show(await cutServices(cut))
    if (!cut) panes.forEach((pane) => pane.resume())
  } catch (err) {
    serviceState.textContent = String(err)
  }
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

document.querySelector("#server")?.append(serviceState, line, kill, start)
document.querySelector("main")?.append(...panes.map(({ element }) => element))
show(world)
await Promise.all(panes.map((pane) => pane.open()))
