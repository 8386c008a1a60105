// Who is in a chat, and what a person can do about it.

import { useEffect, useState } from "react"
import { body, type Did, encodeContent, type Missing } from "mlsd-client"
import type { ListedChat } from "../model/chat-list.js"
import { isPicture } from "../model/files.js"
import { listOf } from "../model/people.js"
import type { Session } from "../model/session.js"
import { Avatar } from "./avatar.js"
import { Confirm, type ConfirmProps } from "./confirm.js"
import { Dialog } from "./dialog.js"
import { isPair, titleOf } from "./names.js"
import { PeopleField } from "./people-field.js"
import { ReportDialog } from "./report-dialog.js"
import { SafetyDialog } from "./safety-dialog.js"
import { useAction } from "./use-action.js"
import { useAvatar } from "./use-file.js"

export function GroupDialog({ session, chat, onClose }: { session: Session; chat: ListedChat; onClose: () => void }) {
  const { people } = session
  const [question, ask] = useState<Omit<ConfirmProps, "onClose">>()
  const [compares, compare] = useState<Did>()
  const [reports, setReports] = useState(false)
  const [edits, setEdits] = useState(false)
  const title = titleOf(chat, people)
  const src = useAvatar(session, chat)
  const bob = isPair(chat) ? (chat.others[0] as Did) : undefined
  return (
    <Dialog title={bob === undefined ? "Group" : "Chat"} onClose={onClose}>
      <div className="group-head">
        <Avatar name={title} id={bob ?? chat.convo} src={src} />
        <div>
          <p className="big">{title}</p>
          {chat.description !== undefined && <p>{chat.description}</p>}
          <p><small>Encrypted end to end. The name, the picture and the description are messages too.</small></p>
        </div>
      </div>
      {edits ? <Details session={session} chat={chat} onDone={() => setEdits(false)} />
        : !chat.isOver && <button type="button" onClick={() => setEdits(true)}>Edit name and picture</button>}
      <Members session={session} chat={chat} ask={ask} compare={compare} />
      <GroupCode session={session} chat={chat} />
      <div className="buttons">
        {bob !== undefined && (
          <button type="button" className="danger" onClick={() => ask({
            title: `Block ${people.nameOf(bob)}?`, yes: "Block", onYes: () => session.client.block(bob),
            text: `${people.nameOf(bob)} cannot invite you any more, and does not learn of it. This chat stays: leave it too, if you want.`,
          })}>Block {people.nameOf(bob)}</button>
        )}
        <button type="button" className="danger" onClick={() => setReports(true)}>Report</button>
        {!chat.isOver && (
          <button type="button" className="danger" onClick={() => ask({
            title: "Leave this chat?", yes: "Leave", text: "You can still read what is here. To come back, somebody must add you.",
            onYes: async () => { await session.client.leave(chat.convo); await session.chats.update(chat.convo); onClose() },
          })}>Leave</button>
        )}
      </div>
      {question !== undefined && <Confirm {...question} onClose={() => ask(undefined)} />}
      {compares !== undefined && <SafetyDialog session={session} did={compares} onClose={() => compare(undefined)} />}
      {reports && <ReportDialog session={session} chat={chat} onClose={() => setReports(false)} />}
    </Dialog>
  )
}

interface MembersProps {
  readonly session: Session
  readonly chat: ListedChat
  readonly ask: (question: Omit<ConfirmProps, "onClose">) => void
  readonly compare: (did: Did) => void
}

function Members({ session, chat, ask, compare }: MembersProps) {
  const { client, people } = session
  const [admins, setAdmins] = useState<readonly string[]>([])
  const [missing, setMissing] = useState<readonly Missing[]>([])
  const [without, setWithout] = useState<readonly string[]>([])
  const [added, setAdded] = useState<readonly Did[]>([])
  const { busy, problem, run } = useAction()
  const read = async () => {
    setMissing(await client.missing(chat.convo))
    if (chat.isOver) return
    setAdmins(await client.admins(chat.convo))
    setWithout((await client.withoutDevice(chat.convo)).filter((did) => !chat.others.includes(did)))
  }
  const act = (action: () => Promise<unknown>) => void run(async () => {
    await action()
    await session.chats.update(chat.convo)
    await read()
  })
  useEffect(() => {
    read().catch(session.fail)
  }, [session, chat.convo, chat.others.join()])
  const isAdmin = admins.includes(people.self)
  const all = [people.self, ...[...chat.others].sort((a, b) => people.nameOf(a).localeCompare(people.nameOf(b)))] as Did[]
  const later = missing.map(({ did }) => did)
  return (
    <section aria-label="Members">
      <h3>{all.length} {all.length === 1 ? "member" : "members"}</h3>
      <ul className="members">
        {all.map((did) => (
          <li key={did} aria-label={people.nameOf(did)}>
            <Avatar small name={people.nameOf(did)} id={did} />
            <span className="member-name">
              <b>{people.nameOf(did)}{did === people.self && " (you)"}</b> {admins.includes(did) && <span className="badge">admin</span>}
              <small>{people.handleOf(did)}</small>
            </span>
            <span className="buttons">
              {did !== people.self && <button type="button" onClick={() => compare(did)} aria-label={`Verify ${people.nameOf(did)}`}>Verify</button>}
              {isAdmin && !isPair(chat) && (admins.includes(did)
                ? <button type="button" disabled={busy} onClick={() => act(() => client.demoteAdmin(chat.convo, did))} aria-label={`Make member: ${people.nameOf(did)}`}>Make member</button>
                : <button type="button" disabled={busy} onClick={() => act(() => client.promoteAdmin(chat.convo, did))} aria-label={`Make admin: ${people.nameOf(did)}`}>Make admin</button>)}
              {isAdmin && did !== people.self && (
                <button type="button" className="danger" aria-label={`Remove ${people.nameOf(did)}`} onClick={() => ask({
                  title: `Remove ${people.nameOf(did)}?`, yes: "Remove", text: `${people.nameOf(did)} can read nothing that is sent from then on.`,
                  onYes: async () => { await client.remove(chat.convo, did); await session.chats.update(chat.convo) },
                })}>Remove</button>
              )}
            </span>
          </li>
        ))}
      </ul>
      {later.length > 0 && <p className="hint">{listOf(later.map((did) => people.nameOf(did)))}: no device yet. The invitation is sent as soon as there is one.</p>}
      {without.filter((did) => !later.includes(did as Did)).length > 0 && (
        <p className="hint">{listOf(without.map((did) => people.nameOf(did)))}: not joined yet, or without a device.</p>
      )}
      {!chat.isOver && (
        <form className="fields" aria-label="Add people" onSubmit={(event) => {
          event.preventDefault()
          act(async () => { await session.add(chat.convo, added); setAdded([]) })
        }}>
          <PeopleField session={session} chosen={added} present={chat.others} onChange={setAdded} />
          {added.length > 0 && <button className="main" disabled={busy}>{busy ? "Adding …" : `Add ${listOf(added.map((did) => people.nameOf(did)))}`}</button>}
        </form>
      )}
      {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
    </section>
  )
}

function GroupCode({ session, chat }: { session: Session; chat: ListedChat }) {
  const [code, setCode] = useState<string>()
  useEffect(() => {
    if (!chat.isOver) session.client.groupCode(chat.convo).then(({ digits }) => setCode(digits), session.fail)
  }, [session, chat])
  if (code === undefined) return null
  return (
    <section aria-label="Group code">
      <h3>Group code</h3>
      <p className="digits">{code.match(/.{5}/g)?.map((five, i) => <span key={i}>{five}</span>)}</p>
      <p><small>All members see the same code, until somebody enters or leaves, or keys are renewed.</small></p>
    </section>
  )
}

function Details({ session, chat, onDone }: { session: Session; chat: ListedChat; onDone: () => void }) {
  const [name, setName] = useState(chat.name ?? "")
  const [description, setDescription] = useState(chat.description ?? "")
  const [picture, setPicture] = useState<File>()
  const { busy, problem, run } = useAction()
  const save = () => run(async () => {
    const { files, client } = session
    const avatar = picture === undefined ? (chat.avatar && body.attachment(chat.avatar))
      : body.attachment({ file: await files.upload(chat.convo, picture), mimeType: picture.type, size: picture.size })
    const details = { ...(name.trim() && { name: name.trim() }), ...(description.trim() && { description: description.trim() }), ...(avatar && { avatar }) }
    const options = avatar && { embedUri: avatar.file.uri }
    await client.send(chat.convo, encodeContent({ body: body.details(details) }), options)
    onDone()
  })
  return (
    <form className="fields" aria-label="Name and picture" onSubmit={(event) => { event.preventDefault(); void save() }}>
      <label>Name<input value={name} onChange={({ target }) => setName(target.value)} maxLength={128} /></label>
      <label>Description<textarea rows={2} value={description} onChange={({ target }) => setDescription(target.value)} maxLength={2000} /></label>
      <label>Picture<input type="file" accept="image/png,image/jpeg,image/webp" onChange={({ target }) => {
        const file = target.files?.[0]
        setPicture(file !== undefined && isPicture(file.type) ? file : undefined)
      }} /></label>
      {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
      <div className="buttons"><button className="main" disabled={busy}>Save</button><button type="button" onClick={onDone}>Cancel</button></div>
    </form>
  )
}
