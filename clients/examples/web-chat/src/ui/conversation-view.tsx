// A conversation: its head, its messages, and where the person writes.

import { useEffect, useMemo, useState } from "react"
import type { ShownMessage } from "mlsd-client"
import type { ListedChat } from "../model/chat-list.js"
import { listOf } from "../model/people.js"
import type { Session } from "../model/session.js"
import { Avatar } from "./avatar.js"
import { Composer, type Subject } from "./composer.js"
import { Confirm } from "./confirm.js"
import { FileDialog } from "./file-dialog.js"
import { IconButton } from "./icons.js"
import { hueIdOf, isPair, titleOf } from "./names.js"
import { Search } from "./search.js"
import { Timeline } from "./timeline.js"
import { Uploads } from "./uploads.js"
import { useChanges } from "./use-changes.js"
import { useAvatar } from "./use-file.js"
import type { MessageActions } from "./message.js"

export interface ConversationViewProps {
  readonly session: Session
  readonly chat: ListedChat
  readonly onBack: () => void
  readonly onInfo: () => void
}

export function ConversationView({ session, chat, onBack, onInfo }: ConversationViewProps) {
  const { people } = session
  const conversation = session.conversation(chat.convo)
  useChanges(conversation)
  const [subject, setSubject] = useState<Subject>()
  const [deleting, setDeleting] = useState<ShownMessage>()
  const [file, setFile] = useState<File>()
  const [searches, setSearches] = useState(false)
  const title = titleOf(chat, people)
  const nameOf = (did: string) => (did === people.self ? "you" : people.nameOf(did))

  useEffect(() => {
    conversation.open().catch(session.fail)
  }, [conversation, session])
  const { isReady } = conversation
  // A message of this person can stand below it: it is on its way.
  const last = conversation.lines().findLast((line) => line.kind === "message" && line.state === "received")?.key
  useEffect(() => {
    const see = () => {
      if (isReady && document.visibilityState === "visible") conversation.isSeen().catch(session.fail)
    }
    see()
    document.addEventListener("visibilitychange", see)
    return () => document.removeEventListener("visibilitychange", see)
  }, [conversation, session, isReady, last])

  const jump = useMemo(() => (message: ShownMessage) => {
    conversation.readTo(message.seq).then(() => requestAnimationFrame(() => {
      const element = document.getElementById(`m-${message.id}`)
      element?.scrollIntoView({ block: "center" })
      element?.querySelector<HTMLElement>(".bubble")?.focus()
    }), session.fail)
  }, [conversation, session])
  const actions = useMemo((): MessageActions => ({
    reply: (message) => setSubject({ to: "reply", message }),
    edit: (message) => setSubject({ to: "edit", message }),
    remove: setDeleting,
    react: (message, emoji) => void conversation.react(message, emoji).catch(session.fail),
    discard: (write) => void conversation.discard(write).catch(session.fail),
    jump,
  }), [conversation, session, jump])
  const editLast = () => {
    const line = conversation.lines().findLast((one) => one.kind === "message" && one.state !== "received" && one.message.state === "shown" && one.write === undefined)
    if (line?.kind === "message") setSubject({ to: "edit", message: line.message })
  }

  return (
    <section className="conversation" aria-label={title}>
      <header className="bar">
        <IconButton icon="back" label="Back to the chats" className="icon-button back" onClick={onBack} />
        <button type="button" className="who" onClick={onInfo}>
          <Avatar name={title} id={hueIdOf(chat)} src={useAvatar(session, chat)} />
          <span><b>{title}</b> <small>{subtitleOf(chat, session)}</small></span>
        </button>
        <IconButton icon="search" label="Search in this chat" aria-pressed={searches} onClick={() => setSearches(!searches)} />
        <IconButton icon="info" label={isPair(chat) ? "About this chat" : "About this group"} onClick={onInfo} />
      </header>
      {searches && <Search session={session} convo={chat.convo} onOpen={jump} onClose={() => setSearches(false)} />}
      <Timeline session={session} conversation={conversation} actions={actions} named={!isPair(chat)} label={`Messages with ${title}`} />
      <p className="typing" role="status">{typingOf(conversation.typing, nameOf)}</p>
      <Uploads session={session} convo={chat.convo} />
      {chat.isOver
        ? <p className="over">You are not in this chat any more. You can still read it.</p>
        : <Composer key={chat.convo} conversation={conversation} title={title} subject={subject} nameOf={nameOf} onDone={() => setSubject(undefined)}
            onFile={setFile} onFailure={session.fail} onUp={editLast} />}
      {file !== undefined && (
        <FileDialog file={file} onClose={() => setFile(undefined)} onSend={(described) => {
          setFile(undefined)
          session.files.send(chat.convo, file, described).catch(session.fail)
        }} />
      )}
      {deleting !== undefined && (
        <Confirm title="Delete this message?" text="It is taken back for everyone. Who has read it can have kept it." yes="Delete"
          onYes={() => conversation.delete(deleting)} onClose={() => setDeleting(undefined)} />
      )}
    </section>
  )
}

function subtitleOf(chat: ListedChat, { people }: Session): string {
  if (isPair(chat)) return people.handleOf(chat.others[0]!)
  return `${listOf(chat.others.map((did) => people.nameOf(did)))} and you`
}

function typingOf(typists: readonly string[], nameOf: (did: string) => string): string {
  return typists.length === 0 ? "" : `${listOf(typists.map(nameOf))} ${typists.length > 1 ? "are" : "is"} typing …`
}
