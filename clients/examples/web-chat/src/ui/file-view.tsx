// A file in a message: a picture, or a name to download.

import { useState } from "react"
import type { BodyOf, ConvoId } from "mlsd-client"
import { isPicture } from "../model/files.js"
import type { Session } from "../model/session.js"
import { sizeOf } from "../model/words.js"
import { Dialog } from "./dialog.js"
import { Icon } from "./icons.js"
import { saveFile, usePicture } from "./use-file.js"

interface FileProps {
  readonly session: Session
  readonly convo: ConvoId
  readonly body: BodyOf<"attachment">
}

export function FileView(props: FileProps) {
  return isPicture(props.body.mimeType) ? <Picture {...props} /> : <Download {...props} />
}

function Picture({ session, convo, body }: FileProps) {
  const { src, failed } = usePicture(session, convo, body)
  const [isOpen, open] = useState(false)
  const { width = 4, height = 3, alt = "", name = "Picture" } = body
  if (failed) return <Download session={session} convo={convo} body={body} />
  // The place is there before the picture is: nothing moves when it comes.
  const style = { aspectRatio: `${width} / ${height}`, width: `min(100%, ${Math.min(320, Math.round((300 * width) / height))}px)` }
  return (
    <>
      <button type="button" className="picture" style={style} aria-label={`Open ${alt || name}`} onClick={() => open(true)}>
        {src !== undefined && <img src={src} alt={alt} />}
      </button>
      {isOpen && src !== undefined && (
        <Dialog title={name} onClose={() => open(false)}>
          <img className="whole-picture" src={src} alt={alt} />
          {alt !== "" && <p>{alt}</p>}
          <Download session={session} convo={convo} body={body} />
        </Dialog>
      )}
    </>
  )
}

function Download({ session, convo, body }: FileProps) {
  const [progress, setProgress] = useState<number>()
  const { name = "file", size, file } = body
  const save = async () => {
    setProgress(0)
    try {
      saveFile(await session.files.content(convo, body, (bytes) => setProgress(bytes / file.size)), name)
    } catch (err) {
      session.fail(err)
    }
    setProgress(undefined)
  }
  return (
    <button type="button" className="file" onClick={() => void save()}>
      <Icon name="down" />
      <span><span className="hidden">Download </span><b>{name}</b> <small>{progress === undefined ? sizeOf(size) : `${Math.round(progress * 100)} %`}</small></span>
    </button>
  )
}
