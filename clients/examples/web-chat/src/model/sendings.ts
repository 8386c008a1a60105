// Messages that are on their way: what the outbox has, and the log has not.

import { bodyAs, type BodyOf, type Client, type ConvoId, decodeContent, type MessageName, type SendContent, type Write } from "mlsd-client"

/**
 * | state | |
 * |---|---|
 * | `queued` | it is stored here, and waits for what stands before it |
 * | `sending` | its ciphertext is stored, and an attempt is under way |
 * | `retrying` | an attempt has failed. The same bytes are sent again |
 * | `sent` | the service has it |
 * | `read` | the others have read it |
 * | `refused` | the service does not take it |
 * | `received` | somebody else has written it |
 */
export type State = "queued" | "sending" | "retrying" | "sent" | "read" | "refused" | "received"

/** A message that the log does not show yet. */
export interface Sending {
  /** Of the outbox. */
  readonly write: string
  readonly id: string
  readonly at: string
  readonly state: State
  readonly body: BodyOf<"text"> | BodyOf<"attachment">
  readonly replyTo?: MessageName
}

export class Sendings {
  /** The ids of what was on its way when it was read last. Before that, anything can be. */
  private before: ReadonlySet<string> | undefined

  constructor(
    private readonly client: Client,
    private readonly convo: ConvoId,
    /** The ids of the writes whose last attempt has failed. */
    private readonly retrying: ReadonlySet<string>,
  ) {}

  /**
   * Reads them. Read the log after this, because that is the way on which a message goes: it is in one of them
   * at any time. The service can have a message, and the answer be lost: so what is in the log too counts as
   * on its way.
   *
   * @param isInLog whether the log that was read has a message, or is younger than it
   */
  async read(isInLog: (id: string, createdAt: number) => boolean): Promise<Sending[]> {
    const { outbox } = this.client
    const pending = outbox.pending(this.convo).flatMap((write) => sendingOf(write, stateOf(write, this.retrying)))
    const refused = (await outbox.refused()).flatMap(({ write }) => (write.queue === this.convo ? sendingOf(write, "refused") : []))
    const ids = new Set(pending.map(({ id }) => id))
    const { before } = this
    // What was pending a moment ago was accepted: until the log shows it, it is among the kept ones.
    const hasMoved = before === undefined || [...before].some((id) => !ids.has(id))
    const kept = hasMoved ? (await outbox.kept.of(this.convo)).flatMap(({ write }) => sendingOf(write, "sent")) : []
    const accepted = kept.filter(({ id, at }) => !ids.has(id) && before?.has(id) !== false && !isInLog(id, Date.parse(at)))
    this.before = new Set([...ids, ...accepted.map(({ id }) => id)])
    return [...refused, ...accepted, ...pending]
  }
}

function stateOf(write: Write, retrying: ReadonlySet<string>): State {
  if (retrying.has(write.id)) return "retrying"
  return write.sealed === undefined ? "queued" : "sending"
}

function sendingOf(write: Write, state: State): Sending[] {
  if (write.kind !== "send") return []
  const { id, content } = write.content as unknown as SendContent
  const said = decodeContent(content)
  const body = bodyAs("text", said) ?? bodyAs("attachment", said)
  if (body === undefined) return []
  const replyTo = said?.replyTo
  return [{ write: write.id, id, at: new Date(write.createdAt).toISOString(), state, body, ...(replyTo && { replyTo }) }]
}
