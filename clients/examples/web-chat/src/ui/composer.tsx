// Where a person writes. Enter sends, Shift and Enter begin a new line.

import { type KeyboardEvent, useEffect, useRef, useState } from "react"
import type { ShownMessage } from "mlsd-client"
import type { Conversation } from "../model/conversation.js"
import { textOf } from "../model/lines.js"
import { IconButton } from "./icons.js"

/** What is written about: a message that is answered or edited. */
export type Subject = { readonly to: "reply" | "edit"; readonly message: ShownMessage }

export interface ComposerProps {
  readonly conversation: Conversation
  readonly title: string
  readonly subject: Subject | undefined
  readonly nameOf: (did: string) => string
  readonly onDone: () => void
  readonly onFile: (file: File) => void
  readonly onFailure: (err: unknown) => void
  /** Takes the person's last message, to edit it. */
  readonly onUp: () => void
}

export function Composer({ conversation, title, subject, nameOf, onDone, onFile, onFailure, onUp }: ComposerProps) {
  const input = useRef<HTMLTextAreaElement>(null)
  const picker = useRef<HTMLInputElement>(null)
  const [text, setText] = useState("")

  useEffect(() => {
    conversation.draft().then((draft) => draft !== undefined && setText((now) => (now === "" ? draft : now)), onFailure)
  }, [conversation, onFailure])
  useEffect(() => {
    if (subject !== undefined) input.current?.focus()
    if (subject?.to === "edit") setText(textOf(subject.message))
  }, [subject])

  const write = (value: string) => {
    setText(value)
    if (subject?.to === "edit") return
    if (value !== "") conversation.types()
    conversation.keepDraft(value).catch(onFailure)
  }
  const done = () => {
    setText("")
    onDone()
  }
  const submit = async () => {
    const said = text.trim()
    if (said === "") return
    done()
    try {
      if (subject?.to === "edit") await conversation.edit(subject.message, said)
      else await conversation.send(said, subject && { id: subject.message.id, author: subject.message.author as never })
    } catch (err) {
      setText(said)
      onFailure(err)
    }
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
      event.preventDefault()
      void submit()
    }
    if (event.key === "Escape" && subject !== undefined) done()
    if (event.key === "ArrowUp" && text === "" && subject === undefined) {
      event.preventDefault()
      onUp()
    }
  }
  return (
    <form className="composer" onSubmit={(event) => { event.preventDefault(); void submit() }}>
      {subject !== undefined && (
        <div className="subject">
          <p><b>{subject.to === "edit" ? "Edit" : `Reply to ${nameOf(subject.message.author)}`}</b> {textOf(subject.message) || "a file"}</p>
          <IconButton icon="close" label={subject.to === "edit" ? "Do not edit" : "Do not reply"} onClick={done} />
        </div>
      )}
      <div className="writing">
        <IconButton icon="file" label="Send a file" onClick={() => picker.current?.click()} />
        <input ref={picker} type="file" hidden aria-label="File" onChange={({ target }) => {
          for (const file of target.files ?? []) onFile(file)
          target.value = ""
        }} />
        <div className="grow" data-text={text}>
          <textarea ref={input} rows={1} aria-label={`Message to ${title}`} placeholder="Message" value={text} maxLength={20_000}
            onChange={({ target }) => write(target.value)} onKeyDown={onKeyDown}
            onPaste={({ clipboardData }) => { for (const file of clipboardData.files) onFile(file) }} />
        </div>
        <button className="icon-button main" aria-label="Send" title="Send" aria-disabled={text.trim() === ""}><SendIcon /></button>
      </div>
    </form>
  )
}

function SendIcon() {
  return <svg className="icon" viewBox="0 0 24 24" aria-hidden="true"><path d="M4 20V4l17 8zM4 12h9" fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinejoin="round" /></svg>
}
