// Opening a person's device: until it is there, the page says what it waits for.

import { type ReactNode, useEffect, useState } from "react"
import type { Account } from "../model/phone.js"
import { Session } from "../model/session.js"
import { sentenceOf } from "../model/words.js"
import { App } from "./app.js"

export function Opening({ account, breaks, way }: { account: Account; breaks: boolean; way?: ReactNode }) {
  const [session, setSession] = useState<Session>()
  const [elsewhere, setElsewhere] = useState(false)
  const [problem, setProblem] = useState<string>()
  useEffect(() => {
    Session.open(account, () => setElsewhere(true)).then(setSession, (err: unknown) => setProblem(sentenceOf(err)))
  }, [account])
  if (session !== undefined) return <App session={session} breaks={breaks} way={way} />
  if (problem !== undefined) return <main className="card"><h1>Web chat</h1><p role="alert">{problem}</p></main>
  return (
    <main className="card">
      <h1>Web chat</h1>
      {elsewhere ? <p role="status">Your chats are open in another tab. This one goes on when you close that one.</p> : <p>Opening …</p>}
    </main>
  )
}
