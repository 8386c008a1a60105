// Pictures that others have sent. They are shown from a Blob of a picture's type, never as HTML or SVG.

import { useEffect, useState } from "react"
import type { BodyOf, ConvoId } from "mlsd-client"
import type { ListedChat } from "../model/chat-list.js"
import { isPicture } from "../model/files.js"
import type { Session } from "../model/session.js"

type File = Pick<BodyOf<"attachment">, "file" | "mimeType">

/** The address of a picture, once it is here; or that it cannot be shown. */
export function usePicture(session: Session, convo: ConvoId, file: File | undefined): { src?: string; failed?: true } {
  const [state, setState] = useState<{ src?: string; failed?: true }>({})
  const id = file?.file.id
  useEffect(() => {
    if (file === undefined || !isPicture(file.mimeType)) return
    let url: string | undefined
    let isHere = true
    session.files.content(convo, file).then((bytes) => {
      if (!isHere) return
      url = URL.createObjectURL(new Blob([bytes as Uint8Array<ArrayBuffer>], { type: file.mimeType }))
      setState({ src: url })
    }, () => isHere && setState({ failed: true }))
    return () => {
      isHere = false
      if (url !== undefined) URL.revokeObjectURL(url)
    }
  }, [session, convo, id])
  return state
}

/** The address of a group's picture, if it has one. */
export function useAvatar(session: Session, { convo, avatar }: ListedChat): string | undefined {
  return usePicture(session, convo, avatar as File | undefined).src
}

/** Lets the browser store a file. Its type says nothing that the browser would open. */
export function saveFile(bytes: Uint8Array, name: string): void {
  const url = URL.createObjectURL(new Blob([bytes as Uint8Array<ArrayBuffer>], { type: "application/octet-stream" }))
  const link = document.createElement("a")
  link.href = url
  link.download = name.replace(/[/\\\0]/g, "_")
  link.click()
  setTimeout(() => URL.revokeObjectURL(url), 60_000)
}
