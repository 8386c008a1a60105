// The app of somebody who has signed in: the list of chats, and the open one.

import { type ReactNode, useEffect, useState, useSyncExternalStore } from "react"
import type { Session } from "../model/session.js"
import { Avatar } from "./avatar.js"
import { ChatList } from "./chat-list.js"
import { ConversationView } from "./conversation-view.js"
import { Faults } from "./faults.js"
import { GroupDialog } from "./group-dialog.js"
import { IconButton } from "./icons.js"
import { MeDialog } from "./me-dialog.js"
import { NewChat } from "./new-chat.js"
import { Notices } from "./notices.js"
import { Requests } from "./requests.js"
import { useChanges } from "./use-changes.js"

export interface AppProps {
  readonly session: Session
  /** Whether the page's server can break things. */
  readonly breaks: boolean
  /** What the person's own screen says about the way in. */
  readonly way?: ReactNode
}

export function App({ session, breaks, way }: AppProps) {
  useChanges(session)
  useChanges(session.chats)
  useChanges(session.people)
  const [open, setOpen] = useOpenChat()
  const [dialog, setDialog] = useState<"new" | "info" | "me">()
  const [shows, setShows] = useState(false)
  const { people, isConnected, chats } = session
  const chat = open === undefined ? undefined : chats.find(open)
  const close = () => setDialog(undefined)
  useEffect(() => {
    const unread = chats.all().reduce((sum, one) => sum + one.unread, 0)
    document.title = `${unread > 0 ? `(${unread}) ` : ""}${people.nameOf(people.self)} · Web chat`
  })
  if (session.ended !== undefined) return <Ended why={session.ended} onSignOut={() => session.client.signOut()} />
  return (
    <main className="app" data-open={chat !== undefined || undefined} data-faults={shows || undefined} data-invitable={session.isInvitable || undefined}>
      <h1 className="hidden">Web chat</h1>
      <Notices session={session} />
      <nav className="side" aria-label="Chats and requests">
        <header className="bar">
          <button type="button" className="who me" aria-label={`${people.nameOf(people.self)}, me and my devices`} onClick={() => setDialog("me")}>
            <Avatar small name={people.nameOf(people.self)} id={people.self} />
            <b>{people.nameOf(people.self)}</b>
          </button>
          <small className="status" role="status" data-good={isConnected || undefined}>{isConnected ? "connected" : "connecting"}</small>
          {!isConnected && <button type="button" className="link" onClick={() => session.resume()}>Try now</button>}
          <IconButton icon="bolt" label="Faults and events" aria-pressed={shows} onClick={() => setShows(!shows)} />
          <IconButton icon="plus" label="New chat" onClick={() => setDialog("new")} />
        </header>
        <div className="side-body">
          <Requests session={session} />
          <ChatList session={session} open={open} onOpen={setOpen} />
        </div>
      </nav>
      <div className="stage">
        {chat !== undefined
          ? <ConversationView key={chat.convo} session={session} chat={chat} onBack={() => setOpen(undefined)} onInfo={() => setDialog("info")} />
          : <div className="nothing"><p>Choose a chat, or begin a new one.</p></div>}
      </div>
      {shows && <Faults session={session} breaks={breaks} onClose={() => setShows(false)} />}
      {dialog === "new" && <NewChat session={session} onOpen={setOpen} onClose={close} />}
      {dialog === "info" && chat !== undefined && <GroupDialog session={session} chat={chat} onClose={close} />}
      {dialog === "me" && <MeDialog session={session} onClose={close}>{way}</MeDialog>}
    </main>
  )
}

// useOpenChat keeps the open chat in the address, so that the browser's Back closes it, and a reload does not.
function useOpenChat(): [string | undefined, (convo: string | undefined) => void] {
  const hash = useSyncExternalStore((follower) => {
    addEventListener("hashchange", follower)
    return () => removeEventListener("hashchange", follower)
  }, () => location.hash)
  const open = hash.length > 1 ? decodeURIComponent(hash.slice(1)) : undefined
  return [open, (convo) => (location.hash = convo === undefined ? "" : encodeURIComponent(convo))]
}

function Ended({ why, onSignOut }: { why: "done" | "removed"; onSignOut: () => Promise<void> }) {
  return (
    <main className="card">
      <h1>{why === "done" ? "Signed out" : "This device was removed"}</h1>
      <p>{why === "done" ? "Nothing of your chats is on this device any more." : "Another device of yours has removed this one. It gets no messages any more."}</p>
      {why === "removed" && <button type="button" className="main" onClick={() => void onSignOut()}>Delete what is here</button>}
      <a href={location.pathname}>Sign in</a>
    </main>
  )
}
