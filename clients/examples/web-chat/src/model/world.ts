// What the page's server makes, breaks and mends.

import type { World } from "../../server/http.js"
import type { Line } from "../../server/pds.js"

export type { Person, World } from "../../server/http.js"

/** What the world is now. */
export async function lookAtWorld(): Promise<World> {
  return worldOf(await fetch("/world"))
}

/** Makes a person of a name, unless there is one. */
export function makePerson(person: string): Promise<World> {
  return change({ person })
}

/** Kills the service, or starts it again. */
export function runService(running: boolean): Promise<World> {
  return change({ running })
}

/** Cuts the line between two services, or mends it. */
export function cutServices(cut: boolean): Promise<World> {
  return change({ cut })
}

/** Changes the line of a person to its PDS. */
export function changeLine(did: string, line: Partial<Line>): Promise<World> {
  return change({ did, line })
}

async function change(body: object): Promise<World> {
  return worldOf(await fetch("/world", { method: "POST", body: JSON.stringify(body) }))
}

async function worldOf(answer: Response): Promise<World> {
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`)
  return (await answer.json()) as World
}
