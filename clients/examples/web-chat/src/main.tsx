// The page where everybody is made up: ?as=alice is Alice.

import { createRoot } from "react-dom/client"
import { asDid, type PdsAgent, PdsTransport } from "mlsd-client"
import type { Account } from "./model/phone.js"
import { lookAtWorld, makePerson, type Person, type World } from "./model/world.js"
import { Opening } from "./ui/opening.js"
import { SignIn } from "./ui/sign-in.js"
import "./style/all.css"

const root = createRoot(document.querySelector("#root")!)
const as = new URLSearchParams(location.search).get("as")
const world = await (as === null ? lookAtWorld() : makePerson(as))
const person = world.people.find(({ handle }) => handle === `${as}.test`)

if (person === undefined) root.render(<SignIn world={world} onName={(name) => location.assign(`?${new URLSearchParams({ as: name })}`)} />)
else root.render(<Opening account={accountOf(person, world)} breaks />)

/** Here the page's server is the PDS. In oauth.tsx it is a real one. */
function accountOf({ did, home }: Person, { directory, cut }: World): Account {
  const agent: PdsAgent = { fetchHandler: (path, init) => fetch(`/pds/${encodeURIComponent(did)}${path}`, init) }
  const way = (service: string) => new PdsTransport(agent, `${service}#atproto_mls`)
  // With two services a person also reaches the other one, and says which is its own.
  return { did: asDid(did), agent, directory, way: way(home), ...(cut !== undefined && { services: { home: asDid(home), way } }) }
}
