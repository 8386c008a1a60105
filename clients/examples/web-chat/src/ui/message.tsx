// One message.

import type { ShownMessage } from "mlsd-client"
import { isFile, type MessageLine, textOf } from "../model/lines.js"
import type { Session } from "../model/session.js"
import type { State } from "../model/sendings.js"
import { clock } from "../model/words.js"
import { Avatar } from "./avatar.js"
import { FileView } from "./file-view.js"
import { IconButton } from "./icons.js"
import { RichText } from "./rich-text.js"
import type { Conversation } from "../model/conversation.js"

/** What a person can do with a message. */
export interface MessageActions {
  reply(message: ShownMessage): void
  edit(message: ShownMessage): void
  remove(message: ShownMessage): void
  react(message: ShownMessage, emoji: string): void
  discard(write: string): void
  jump(message: ShownMessage): void
}

const states: Readonly<Record<State, string>> = {
  queued: "queued", sending: "sending", retrying: "retrying", sent: "sent", read: "read", refused: "not sent", received: "",
}

/** The emojis that are offered. */
const emojis = ["👍", "❤️", "😂", "🎉", "😮", "😢"]

export interface MessageProps {
  readonly line: MessageLine
  readonly session: Session
  readonly conversation: Conversation
  readonly actions: MessageActions
  /** Whether the author's name stands above it. */
  readonly named: boolean
}

export function MessageRow({ line, session, conversation, actions, named }: MessageProps) {
  const { message, state, first, write } = line
  const { people } = session
  const own = state !== "received"
  const name = own ? "You" : people.nameOf(message.author)
  return (
    <li className="message" data-state={state} data-seq={message.seq} data-first={first || undefined} data-own={own || undefined} id={`m-${message.id}`}>
      {!own && named && (first ? <Avatar small name={name} id={message.author} /> : <span className="avatar small none" />)}
      <article className="bubble" aria-label={`${name}, ${clock(new Date(message.createdAt))}`} tabIndex={-1}>
        {!own && named && first && <b className="author">{name}</b>}
        <Quote message={message} conversation={conversation} session={session} onJump={actions.jump} />
        <Body message={message} session={session} conversation={conversation} />
        <small className="meta">
          {message.edited !== undefined && <span title={`First: ${message.edited.first}`}>edited</span>}
          {message.from !== undefined && <span>from {people.nameOf(message.from)}’s history</span>}
          <time dateTime={message.createdAt}>{clock(new Date(message.createdAt))}</time>
          {own && <span className="state">{states[state]}</span>}
          {write !== undefined && state === "refused" && <button type="button" className="link" onClick={() => actions.discard(write)}>Drop</button>}
        </small>
        {message.reactions.length > 0 && <Reactions line={line} session={session} actions={actions} />}
        {write === undefined && message.state === "shown" && <Actions message={message} own={own} actions={actions} />}
      </article>
    </li>
  )
}

function Body({ message, session, conversation }: { message: ShownMessage; session: Session; conversation: Conversation }) {
  const { state, body } = message
  if (state === "deleted") return <p className="gone">This message was deleted</p>
  if (body === undefined) return <p className="gone">This version cannot show this message</p>
  const { self } = session.people
  if (!isFile(body)) return <p className="text"><RichText text={body.text} facets={body.facets} self={self} /></p>
  return (
    <>
      <FileView session={session} convo={conversation.convo} body={body} />
      {body.caption !== undefined && <p className="text"><RichText text={body.caption.text} facets={body.caption.facets} self={self} /></p>}
    </>
  )
}

function Quote({ message: { replyTo }, conversation, session, onJump }: {
  message: ShownMessage; conversation: Conversation; session: Session; onJump: (message: ShownMessage) => void
}) {
  if (replyTo === undefined) return null
  const quoted = conversation.find(replyTo)
  const author = replyTo.author === session.people.self ? "You" : session.people.nameOf(replyTo.author)
  if (quoted === undefined) return <p className="quote"><b>{author}</b> An earlier message</p>
  const text = quoted.state === "deleted" ? "This message was deleted" : textOf(quoted) || "A file"
  return <button type="button" className="quote" onClick={() => onJump(quoted)}><b>{author}</b> {text}</button>
}

function Reactions({ line: { message }, session: { people }, actions }: { line: MessageLine; session: Session; actions: MessageActions }) {
  return (
    <ul className="reactions" aria-label="Reactions">
      {message.reactions.map(({ emoji, by }) => {
        const shown = by.length > 1 ? `${emoji} ${by.length}` : emoji
        const names = by.map((did) => (did === people.self ? "you" : people.nameOf(did))).join(", ")
        return (
          <li key={emoji}>
            <button type="button" aria-pressed={by.includes(people.self)} aria-label={`${shown} by ${names}`} title={names}
              onClick={() => actions.react(message, emoji)}>{shown}</button>
          </li>
        )
      })}
    </ul>
  )
}

function Actions({ message, own, actions }: { message: ShownMessage; own: boolean; actions: MessageActions }) {
  return (
    <div className="actions" role="group" aria-label="What to do with this message">
      <details className="emojis" name="emojis" onBlur={({ currentTarget, relatedTarget }) => {
        if (!currentTarget.contains(relatedTarget)) currentTarget.open = false
      }}>
        <summary aria-label="React" title="React"><span className="icon-button"><SmileIcon /></span></summary>
        <div className="palette">
          {emojis.map((emoji) => (
            <button key={emoji} type="button" onClick={({ currentTarget }) => {
              currentTarget.closest("details")?.removeAttribute("open")
              actions.react(message, emoji)
            }}>{emoji}</button>
          ))}
        </div>
      </details>
      <IconButton icon="reply" label="Reply" onClick={() => actions.reply(message)} />
      {own && <IconButton icon="edit" label="Edit" onClick={() => actions.edit(message)} />}
      {own && <IconButton icon="delete" label="Delete" onClick={() => actions.remove(message)} />}
    </div>
  )
}

function SmileIcon() {
  return <svg className="icon" viewBox="0 0 24 24" aria-hidden="true"><path d="M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM8.5 14.5a4.5 4.5 0 0 0 7 0M9 9.5v.5M15 9.5v.5" fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinecap="round" /></svg>
}
