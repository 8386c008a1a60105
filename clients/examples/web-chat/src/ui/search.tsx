// Search in a conversation.

import { useEffect, useState } from "react"
import type { ConvoId, ShownMessage } from "mlsd-client"
import { isFile, textOf } from "../model/lines.js"
import { searchIn } from "../model/search.js"
import type { Session } from "../model/session.js"
import { whenOf } from "../model/words.js"

export interface SearchProps {
  readonly session: Session
  readonly convo: ConvoId
  readonly onOpen: (message: ShownMessage) => void
  readonly onClose: () => void
}

export function Search({ session, convo, onOpen, onClose }: SearchProps) {
  const [query, setQuery] = useState("")
  const [found, setFound] = useState<readonly ShownMessage[]>([])
  useEffect(() => {
    let isOld = false
    searchIn(session.client, convo, query).then((messages) => !isOld && setFound(messages), session.fail)
    return () => void (isOld = true)
  }, [session, convo, query])
  const { people } = session
  return (
    <search className="search" onKeyDown={({ key }) => key === "Escape" && onClose()}>
      <input type="search" aria-label="Search in this chat" placeholder="Search in what this device has" value={query} autoFocus
        onChange={({ target }) => setQuery(target.value)} />
      {query.trim() !== "" && <p className="hint" role="status">{found.length === 0 ? "Nothing found" : `${found.length} found`}</p>}
      {found.length > 0 && (
        <ul aria-label="Found messages">
          {found.map((message) => (
            <li key={message.seq}>
              <button type="button" onClick={() => onOpen(message)}>
                <b>{message.author === people.self ? "You" : people.nameOf(message.author)}</b>
                <span>{textOf(message) || (isFile(message.body) && message.body.name) || "File"}</span>
                <time dateTime={message.createdAt}>{whenOf(message.createdAt)}</time>
              </button>
            </li>
          ))}
        </ul>
      )}
    </search>
  )
}
