// What waits for this person's answer.

import type { ConvoRequest } from "mlsd-client"
import { listOf } from "../model/people.js"
import type { Session } from "../model/session.js"
import { serviceName, whenOf } from "../model/words.js"
import { Avatar } from "./avatar.js"
import { useAction } from "./use-action.js"

export function Requests({ session }: { session: Session }) {
  if (session.requests.length === 0) return null
  return (
    <section className="requests" aria-label="Requests">
      <h2>Requests</h2>
      {session.requests.map((request) => <Request key={request.convoId} session={session} request={request} />)}
    </section>
  )
}

function Request({ session, request }: { session: Session; request: ConvoRequest }) {
  const { people } = session
  const { invitedBy, since, service } = request
  const { busy, problem, run } = useAction()
  const others = request.people.filter((did) => did !== invitedBy && did !== people.self)
  const withWhom = others.length > 0 ? ` to a chat with ${listOf(others.map((did) => people.nameOf(did)))}` : ""
  return (
    <article className="request" aria-label={`Request of ${people.nameOf(invitedBy)}`}>
      <Avatar name={people.nameOf(invitedBy)} id={invitedBy} />
      <div>
        <p><b>{people.nameOf(invitedBy)}</b> invites you{withWhom}</p>
        <p><small>{people.handleOf(invitedBy)}{service !== undefined && ` at ${serviceName(service)}`} · {whenOf(since)}</small></p>
        <div className="buttons">
          <button type="button" className="main" disabled={busy} onClick={() => void run(() => session.accept(request))}>Accept</button>
          <button type="button" disabled={busy} onClick={() => void run(() => session.decline(request, false))}>Decline</button>
          <button type="button" disabled={busy} onClick={() => void run(() => session.decline(request, true))}>Block</button>
        </div>
        {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
      </div>
    </article>
  )
}
