// Where a person says who it is, and what the app may do.

import { useState } from "react"
import { type SetName, sets, type SignIn } from "../model/sign-in.js"
import { sentenceOf } from "../model/words.js"

const explanations: Readonly<Record<SetName, string>> = {
  authRead: "This page then shows what it may not do.",
  authMessaging: "The chat goes through your PDS.",
  authFull: "The chat also goes directly to the service.",
}

export function OAuthForm({ signIn, problem }: { signIn: SignIn; problem: string | undefined }) {
  const [handle, setHandle] = useState("")
  const [set, setSet] = useState<SetName>("authMessaging")
  const [failure, setFailure] = useState(problem)
  const [busy, setBusy] = useState(false)
  const start = async () => {
    setBusy(true)
    try {
      await signIn.start(handle.trim(), set)
    } catch (err) {
      setFailure(sentenceOf(err))
    }
    setBusy(false)
  }
  return (
    <main className="card">
      <h1>Web chat</h1>
      <p>Sign in at your PDS: it asks you what this app may do.</p>
      {failure !== undefined && <p className="problem" role="alert">{failure}</p>}
      <form className="fields" onSubmit={(event) => { event.preventDefault(); void start() }}>
        <label>Your handle
          <input value={handle} onChange={({ target }) => setHandle(target.value)} autoComplete="username" autoCapitalize="none" spellCheck={false} required />
        </label>
        <fieldset>
          <legend>What this app may do</legend>
          {(Object.keys(sets) as SetName[]).map((name) => (
            <label key={name} className="check">
              <input type="radio" name="set" value={name} checked={set === name} onChange={() => setSet(name)} />
              <span>{sets[name]}<small>{explanations[name]}</small></span>
            </label>
          ))}
        </fieldset>
        <button className="main" disabled={busy}>Sign in</button>
      </form>
    </main>
  )
}
