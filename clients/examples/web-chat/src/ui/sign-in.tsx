// Signing in as a made-up person.

import { useState } from "react"
import type { World } from "../model/world.js"
import { Avatar } from "./avatar.js"

export function SignIn({ world, onName }: { world: World; onName: (name: string) => void }) {
  const [name, setName] = useState("")
  const nameOf = (handle: string) => handle.split(".")[0] ?? handle
  return (
    <main className="card">
      <h1>Web chat</h1>
      <p>End-to-end encrypted with MLS. Everybody here is made up: be who you like, and open a second window for somebody else.</p>
      <form className="fields" onSubmit={(event) => { event.preventDefault(); onName(name.trim().toLowerCase()) }}>
        <label>Your name
          <input value={name} onChange={({ target }) => setName(target.value)} pattern="[A-Za-z][A-Za-z0-9\-]{0,30}" required
            autoCapitalize="none" autoComplete="off" spellCheck={false} placeholder="carol" />
        </label>
        <button className="main">Sign in</button>
      </form>
      <ul className="people" aria-label="Who is here">
        {world.people.map(({ handle, did }) => (
          <li key={did}><button type="button" onClick={() => onName(nameOf(handle))}><Avatar small name={handle} id={did} />{handle}</button></li>
        ))}
      </ul>
    </main>
  )
}
