// The list of chats, and the requests above it.

import type { ListedChat } from "../model/chat-list.js"
import type { Session } from "../model/session.js"
import { whenOf } from "../model/words.js"
import { Avatar } from "./avatar.js"
import { hueIdOf, isPair, titleOf } from "./names.js"
import { useAvatar } from "./use-file.js"

export function ChatList({ session, open, onOpen }: { session: Session; open: string | undefined; onOpen: (convo: string) => void }) {
  const chats = session.chats.all()
  if (chats.length === 0) return <p className="hint">No chats yet. Begin one with “New chat”.</p>
  return (
    <ul className="chats" aria-label="Chats">
      {chats.map((chat) => <Row key={chat.convo} session={session} chat={chat} isOpen={chat.convo === open} onOpen={onOpen} />)}
    </ul>
  )
}

function Row({ session, chat, isOpen, onOpen }: { session: Session; chat: ListedChat; isOpen: boolean; onOpen: (convo: string) => void }) {
  const { people } = session
  const title = titleOf(chat, people)
  const { last, unread, isOver } = chat
  const src = useAvatar(session, chat)
  const author = last === undefined || isPair(chat) && last.author !== people.self ? "" : last.author === people.self ? "You: " : `${people.nameOf(last.author)}: `
  return (
    <li>
      <button type="button" className="chat-row" aria-current={isOpen ? "true" : undefined} data-convo={chat.convo} onClick={() => onOpen(chat.convo)}>
        <Avatar name={title} id={hueIdOf(chat)} src={src} />
        <span className="row-text">
          <span className="row-title">{title}</span>
          <span className="row-last">{last === undefined ? (isOver ? "Over" : "No messages yet") : author + last.text}</span>
        </span>
        <span className="row-side">
          <time dateTime={last?.at ?? chat.since}>{whenOf(last?.at ?? chat.since)}</time>
          {unread > 0 && <span className="unread">{unread > 99 ? "99+" : unread}<span className="hidden"> unread</span></span>}
        </span>
      </button>
    </li>
  )
}
