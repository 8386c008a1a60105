// Files that are on their way.

import type { ConvoId } from "mlsd-client"
import type { Session } from "../model/session.js"
import { sizeOf } from "../model/words.js"
import { IconButton } from "./icons.js"
import { useChanges } from "./use-changes.js"

export function Uploads({ session, convo }: { session: Session; convo: ConvoId }) {
  useChanges(session.files)
  const uploads = session.files.in(convo)
  if (uploads.length === 0) return null
  return (
    <ul className="uploads" aria-label="Files on their way">
      {uploads.map(({ id, name, size, progress, problem }) => (
        <li key={id}>
          <span><b>{name}</b><small>{problem ?? `${sizeOf(size)}, ${Math.round(progress * 100)} % sent`}</small></span>
          <progress aria-label={`${name}, sent`} value={progress} />
          <IconButton icon="close" label={`Do not send ${name}`} onClick={() => void session.files.cancel(id).catch(session.fail)} />
        </li>
      ))}
    </ul>
  )
}
