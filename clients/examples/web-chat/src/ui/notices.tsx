// What a person must know or decide, above everything.

import type { Doubt } from "mlsd-client"
import type { Session } from "../model/session.js"
import { serviceName } from "../model/words.js"
import { IconButton } from "./icons.js"
import { titleOf } from "./names.js"

export function Notices({ session }: { session: Session }) {
  const { alert, aheadMs, questions, away } = session
  return (
    <div className="notices">
      {alert !== undefined && <p className="notice bad" role="alert"><span>{alert}</span><IconButton icon="close" label="Close the notice" onClick={() => session.dismiss()} /></p>}
      {Math.abs(aheadMs) >= 60_000 && (
        <p className="notice" role="status">The clock of this device is {lengthOf(Math.abs(aheadMs))} {aheadMs > 0 ? "ahead" : "behind"}. Set it, so that your account lets this app in.</p>
      )}
      {away.map((service) => <p key={service} className="notice" role="status">{serviceName(service)} does not answer: the chat waits there</p>)}
      {questions.map((doubt) => <Question key={`${doubt.convo} ${doubt.did} ${doubt.why}`} session={session} doubt={doubt} />)}
    </div>
  )
}

function Question({ session, doubt }: { session: Session; doubt: Doubt }) {
  const name = session.people.nameOf(doubt.did)
  const chat = session.chats.find(doubt.convo)
  const where = chat === undefined ? "a chat" : titleOf(chat, session.people)
  const [text, yes] = doubt.why === "left"
    ? [`The service says that ${name} has left ${where}. Nobody else says so.`, `Remove ${name}`]
    : [`${name} has entered ${where}, and nobody of it has added them. Messages wait until you decide.`, `Let ${name} in`]
  return (
    <div className="notice" role="group" aria-label={text}>
      <span>{text}</span>
      <span className="buttons">
        <button type="button" onClick={() => void session.answer(doubt, true).catch(session.fail)}>{yes}</button>
        <button type="button" onClick={() => void session.answer(doubt, false).catch(session.fail)}>Not now</button>
      </span>
    </div>
  )
}

function lengthOf(ms: number): string {
  const minutes = Math.round(ms / 60_000)
  return minutes < 120 ? `${minutes} min` : `${Math.round(minutes / 60)} h`
}
