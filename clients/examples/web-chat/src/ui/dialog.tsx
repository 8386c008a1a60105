// A window over the page. The browser keeps the focus in it, and Escape closes it.

import { type ReactNode, useEffect, useId, useRef } from "react"
import { IconButton } from "./icons.js"

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const element = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => element.current?.showModal(), [])
  return (
    <dialog ref={element} aria-labelledby={id} onClose={onClose} onClick={(event) => event.target === element.current && onClose()}>
      <div className="sheet">
        <header><h2 id={id}>{title}</h2><IconButton icon="close" label="Close" onClick={onClose} /></header>
        <div className="sheet-body">{children}</div>
      </div>
    </dialog>
  )
}
