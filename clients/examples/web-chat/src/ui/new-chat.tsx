// Beginning a chat with one person, or a group.

import { useState } from "react"
import type { Did } from "mlsd-client"
import type { Session } from "../model/session.js"
import { Dialog } from "./dialog.js"
import { PeopleField } from "./people-field.js"
import { useAction } from "./use-action.js"

export function NewChat({ session, onOpen, onClose }: { session: Session; onOpen: (convo: string) => void; onClose: () => void }) {
  const [chosen, setChosen] = useState<readonly Did[]>([])
  const [name, setName] = useState("")
  const { busy, problem, run } = useAction()
  const start = () => run(async () => {
    onOpen(await session.startChat(chosen, chosen.length > 1 ? name.trim() : ""))
    onClose()
  })
  return (
    <Dialog title="New chat" onClose={onClose}>
      <form className="fields" onSubmit={(event) => { event.preventDefault(); void start() }}>
        <PeopleField session={session} chosen={chosen} onChange={setChosen} />
        {chosen.length > 1 && (
          <label>Name of the group <small>only its members read it</small>
            <input value={name} onChange={({ target }) => setName(target.value)} maxLength={128} />
          </label>
        )}
        {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
        <button className="main" disabled={busy || chosen.length === 0}>{busy ? "Starting …" : chosen.length > 1 ? "Start the group" : "Start the chat"}</button>
      </form>
    </Dialog>
  )
}
