// Where a person chooses people by their handles.

import { type KeyboardEvent, useState } from "react"
import type { Did } from "mlsd-client"
import type { Session } from "../model/session.js"
import { sentenceOf } from "../model/words.js"
import { IconButton } from "./icons.js"

export interface PeopleFieldProps {
  readonly session: Session
  readonly chosen: readonly Did[]
  /** Who is in the chat already. */
  readonly present?: readonly string[]
  readonly onChange: (chosen: readonly Did[]) => void
}

export function PeopleField({ session, chosen, present = [], onChange }: PeopleFieldProps) {
  const { people } = session
  const [handle, setHandle] = useState("")
  const [problem, setProblem] = useState<string>()
  const choose = async () => {
    if (handle.trim() === "") return
    setProblem(undefined)
    try {
      const did = await people.find(handle)
      if (did === people.self) throw new Error("That is you.")
      if (present.includes(did)) throw new Error(`${people.nameOf(did)} is here already.`)
      onChange(chosen.includes(did) ? chosen : [...chosen, did])
      setHandle("")
    } catch (err) {
      setProblem(sentenceOf(err))
    }
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || handle.trim() === "") return
    event.preventDefault()
    void choose()
  }
  return (
    <div className="people-field">
      <label>Handle
        <span className="with-button">
          <input value={handle} placeholder="alice.example.com" autoCapitalize="none" autoComplete="off" spellCheck={false}
            onChange={({ target }) => setHandle(target.value)} onKeyDown={onKeyDown} />
          <button type="button" onClick={() => void choose()}>Find</button>
        </span>
      </label>
      {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
      {chosen.length > 0 && (
        <ul className="chips" aria-label="Chosen people">
          {chosen.map((did) => (
            <li key={did}>{people.handleOf(did)}
              <IconButton icon="close" label={`Without ${people.handleOf(did)}`} onClick={() => onChange(chosen.filter((one) => one !== did))} />
            </li>
          ))}
        </ul>
      )}
    </div>
  )
}
