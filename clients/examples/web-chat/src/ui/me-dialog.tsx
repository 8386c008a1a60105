// This person's devices and settings.

import { type ReactNode, useEffect, useState } from "react"
import type { Did, InvitationPolicy, OwnDevice } from "mlsd-client"
import type { Session } from "../model/session.js"
import { Confirm, type ConfirmProps } from "./confirm.js"
import { Dialog } from "./dialog.js"
import { useAction } from "./use-action.js"
import { useChanges } from "./use-changes.js"

export interface MeDialogProps {
  readonly session: Session
  /** What belongs to the way in which the person has signed in. */
  readonly children?: ReactNode
  readonly onClose: () => void
}

export function MeDialog({ session, children, onClose }: MeDialogProps) {
  useChanges(session)
  const { people, client } = session
  const [question, ask] = useState<Omit<ConfirmProps, "onClose">>()
  return (
    <Dialog title={people.nameOf(people.self)} onClose={onClose}>
      <p className="hint">{people.handleOf(people.self)}</p>
      {children}
      <Devices session={session} ask={ask} />
      <section aria-label="Privacy">
        <h3>Privacy</h3>
        <label className="check">
          <input type="checkbox" role="switch" checked={session.receipts} onChange={({ target }) => void session.setReceipts(target.checked).catch(session.fail)} />
          <span>Read receipts <small>Others see up to where you have read.</small></span>
        </label>
        <Policy session={session} />
        <Blocks session={session} />
      </section>
      <button type="button" className="danger" onClick={() => ask({
        title: "Sign this device out?", yes: "Sign out", onYes: () => client.signOut(),
        text: "Its messages are deleted here, also those that were not sent yet. If it is your only device, you leave all chats.",
      })}>Sign out on this device</button>
      {question !== undefined && <Confirm {...question} onClose={() => ask(undefined)} />}
    </Dialog>
  )
}

function Devices({ session, ask }: { session: Session; ask: (question: Omit<ConfirmProps, "onClose">) => void }) {
  const { client } = session
  const [devices, setDevices] = useState<readonly OwnDevice[]>()
  const read = async () => setDevices([...(await client.devices())].sort((a, b) => Number(b.own) - Number(a.own)))
  useEffect(() => {
    read().catch(session.fail)
  }, [session])
  return (
    <section aria-label="My devices">
      <h3>My devices</h3>
      {devices === undefined && <p className="hint">Reading …</p>}
      <ul className="members">
        {devices?.map(({ deviceId, name = "A device without a name", own, listed, convos }) => (
          <li key={deviceId}>
            <span className="member-name">
              <b>{name}</b> {own && <span className="badge">this one</span>}
              <small><code>{deviceId.slice(0, 8)}</code> · {convos.length} {convos.length === 1 ? "chat" : "chats"}{listed ? "" : " · not listed"}</small>
            </span>
            {!own && (
              <button type="button" className="danger" aria-label={`Remove the device ${deviceId.slice(0, 8)}`} onClick={() => ask({
                title: "Remove this device?", yes: "Remove", text: "It is taken out of all chats, and can read nothing that is sent from then on.",
                onYes: async () => { await client.removeDevice(deviceId); await read() },
              })}>Remove</button>
            )}
          </li>
        ))}
      </ul>
    </section>
  )
}

function Policy({ session: { client, fail } }: Pick<MeDialogProps, "session">) {
  const [policy, setPolicy] = useState<InvitationPolicy>()
  useEffect(() => {
    client.invitationPolicy().then(setPolicy, fail)
  }, [client, fail])
  if (policy === undefined) return null
  const choose = async (next: InvitationPolicy) => {
    await client.setInvitationPolicy(next)
    setPolicy(next)
  }
  return (
    <label className="check">
      <input type="checkbox" role="switch" checked={policy === "shared"} onChange={({ target }) => void choose(target.checked ? "shared" : "everyone").catch(fail)} />
      <span>Only people of my chats may invite me <small>Others cannot ask.</small></span>
    </label>
  )
}

function Blocks({ session: { client, people, fail } }: Pick<MeDialogProps, "session">) {
  const [blocks, setBlocks] = useState<readonly Did[]>([])
  const { busy, run } = useAction()
  const read = async () => setBlocks(await client.blocks())
  useEffect(() => {
    read().catch(fail)
  }, [client])
  if (blocks.length === 0) return null
  return (
    <>
      <h3>Blocked people</h3>
      <ul className="members">
        {blocks.map((did) => (
          <li key={did}>
            <span className="member-name"><b>{people.nameOf(did)}</b><small>{people.handleOf(did)}</small></span>
            <button type="button" disabled={busy} onClick={() => void run(async () => { await client.unblock(did); await read() })}>Unblock {people.nameOf(did)}</button>
          </li>
        ))}
      </ul>
    </>
  )
}
