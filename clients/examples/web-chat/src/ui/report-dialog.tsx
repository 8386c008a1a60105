// Reporting a chat to the operator of the service.

import { useEffect, useState } from "react"
import { Api, systemClock, withIdempotencyKey, type ShownMessage } from "mlsd-client"
import * as mls from "mlsd-client/lexicons"
import type { ListedChat } from "../model/chat-list.js"
import { textOf } from "../model/lines.js"
import type { Session } from "../model/session.js"
import { Dialog } from "./dialog.js"
import { useAction } from "./use-action.js"

const reasons = {
  spam: "Spam", harassment: "Harassment", threats: "Threats", sexual: "Sexual content", childSafety: "A child is in danger",
  selfHarm: "Somebody may harm themselves", fraud: "Fraud", other: "Something else",
} as const

/** So many of the last messages are offered. */
const offered = 20

export function ReportDialog({ session, chat, onClose }: { session: Session; chat: ListedChat; onClose: () => void }) {
  const { people } = session
  const [messages, setMessages] = useState<readonly ShownMessage[]>([])
  const [marked, setMarked] = useState<ReadonlySet<number>>(new Set())
  const [reason, setReason] = useState<string>("spam")
  const [text, setText] = useState("")
  const [reportId, setReportId] = useState<string>()
  const { busy, problem, run } = useAction()
  useEffect(() => {
    const conversation = session.conversation(chat.convo)
    conversation.open().then(() => setMessages(conversation.lines().flatMap((line) => (
      line.kind === "message" && line.state === "received" && textOf(line.message) !== "" ? [line.message] : []
    )).slice(-offered)), session.fail)
  }, [session, chat.convo])
  const send = () => run(async () => {
    const { sealReport } = await import("mlsd-client/report")
    const { client, account: { did } } = session
    const api = new Api(client.transport, systemClock, new AbortController().signal)
    const key = await api.query(mls.getReportKey.main, {})
    const chosen = messages.filter(({ seq }) => marked.has(seq))
      .map((message) => ({ seq: message.seq, sender: message.author as typeof did, plaintext: textOf(message) }))
    const sealedReport = await sealReport(key, chat.convo, did, { text, messages: chosen })
    const input = withIdempotencyKey({ convoId: chat.convo, reason, sealedReport, keyId: key.keyId }, systemClock)
    setReportId((await api.procedure(mls.reportConvo.main, input)).reportId)
  })
  const toggle = (seq: number) => setMarked((before) => {
    const after = new Set(before)
    if (!after.delete(seq)) after.add(seq)
    return after
  })
  if (reportId !== undefined) {
    return <Dialog title="Reported" onClose={onClose}><p>The operator has your report. Its number is <code>{reportId}</code>.</p></Dialog>
  }
  return (
    <Dialog title="Report this chat" onClose={onClose}>
      <form className="fields" onSubmit={(event) => { event.preventDefault(); void send() }}>
        <p>The service’s operator learns who reports, which chat, and what you mark here: nothing else. A report does not block anybody, and you stay in the chat.</p>
        <label>Reason
          <select value={reason} onChange={({ target }) => setReason(target.value)}>
            {Object.entries(reasons).map(([value, label]) => <option key={value} value={value}>{label}</option>)}
          </select>
        </label>
        <label>What has happened<textarea rows={3} value={text} onChange={({ target }) => setText(target.value)} maxLength={2000} /></label>
        <fieldset>
          <legend>Messages that you show to the operator</legend>
          {messages.map((message) => (
            <label key={message.seq} className="check">
              <input type="checkbox" checked={marked.has(message.seq)} onChange={() => toggle(message.seq)} />
              <span><b>{people.nameOf(message.author)}</b> {textOf(message)}</span>
            </label>
          ))}
        </fieldset>
        {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
        <button className="danger" disabled={busy}>Send the report</button>
      </form>
    </Dialog>
  )
}
