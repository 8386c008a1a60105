// The panel that breaks things, and shows what the client hears.

import { useCallback, useEffect, useState } from "react"
import type { Session } from "../model/session.js"
import { clock } from "../model/words.js"
import { changeLine, cutServices, lookAtWorld, runService, type World } from "../model/world.js"
import { IconButton } from "./icons.js"
import { useAction } from "./use-action.js"
import { useChanges } from "./use-changes.js"

/** @param breaks whether the page's server can break things */
export function Faults({ session, breaks, onClose }: { session: Session; breaks: boolean; onClose: () => void }) {
  return (
    <section className="faults" aria-label="Faults">
      <header className="bar"><h2>Faults and events</h2><IconButton icon="close" label="Close the panel" onClick={onClose} /></header>
      {breaks && <Buttons session={session} />}
      <Events session={session} />
    </section>
  )
}

function Buttons({ session }: { session: Session }) {
  useChanges(session) // an attempt that fails can have used up a fault
  const { did } = session.account
  const [world, setWorld] = useState<World>()
  const { busy, problem, run } = useAction()
  const attempts = session.retrying.size
  useEffect(() => {
    lookAtWorld().then(setWorld, session.fail)
  }, [session, attempts])
  const change = useCallback((make: () => Promise<World>, isBack: boolean) => void run(async () => {
    setWorld(await make())
    if (isBack) session.resume()
  }), [session])
  const line = world?.people.find((person) => person.did === did)
  if (world === undefined || line === undefined) return null
  const { running, cut } = world
  return (
    <div className="fault-buttons">
      <p className="hint">Break what you like: each message arrives, and once.</p>
      <button type="button" aria-pressed={line.loses} onClick={() => change(() => changeLine(did, { loses: !line.loses }), false)}>Lose next answer</button>
      <button type="button" aria-pressed={!line.online} onClick={() => change(() => changeLine(did, { online: !line.online }), !line.online)}>Offline</button>
      {cut === undefined
        ? <>
          <button type="button" aria-pressed={!running} disabled={busy} onClick={() => change(() => runService(!running), !running)}>{running ? "Kill the server" : "Start it again"}</button>
          <p className="status" role="status" data-good={running || undefined}>{running ? "Server is running" : "Server was killed"}</p>
        </>
        : <>
          <button type="button" aria-pressed={cut} disabled={busy} onClick={() => change(() => cutServices(!cut), cut)}>Cut the line</button>
          <p className="status" role="status" data-good={!cut || undefined}>{cut ? "The line is cut" : "Services are connected"}</p>
        </>}
      {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
    </div>
  )
}

function Events({ session }: { session: Session }) {
  useChanges(session.events)
  return (
    <ol className="events" aria-label="Events" tabIndex={0}>
      {session.events.all().map(({ number, at, what, details }) => (
        <li key={number}><time>{clock(at, true)}</time> <b>{what}</b> {details}</li>
      ))}
    </ol>
  )
}
