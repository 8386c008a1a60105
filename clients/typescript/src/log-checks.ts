// Checks the logs of a client's convos: docs/TRANSPARENCY.md. It needs @noble/curves.

import { fromBase64 } from "@atproto/lex-data"
import { hex, sha256 } from "./bytes.js"
import type { Core } from "./core.js"
import { NoAnswerError, verdictOf } from "./errors.js"
import { seenOf } from "./log.js"
import { type Finding, FindingError, NotSignedError, ReadAgainError } from "./log-findings.js"
import type { Seen } from "./log-state.js"
import type { Hash } from "./log-tree.js"
import { type LogAnswer, type LogSource, Verifier } from "./log-verifier.js"
import { names, type Thread } from "./records.js"
import { type Changes, get, put } from "./store.js"
import * as mls from "#lexicons"

export { type Finding, NotSignedError }

const pageSize = 100
/** How often the entries are read again in one check. The first time can be because of a restore. */
const mostReadings = 3
/** After how many milliseconds new entries make the client ask for the next head of a convo. */
const headEvery = 60_000

/** What the checks report. */
export interface LogCheckEvents {
  onFinding?(convo: string, finding: Finding): void
  onFailure?(err: unknown): void
}

/** Makes the checks of a client. */
export type MakeLogChecks = (core: Core, events: LogCheckEvents) => LogChecks

/**
 * Checks the logs of a client's convos: pass it to `Client.open`.
 *
 * @param service the DID of the person's service, such as `did:web:mls.example.com`. Convos of other
 *   services are checked against theirs
 */
export function logChecks(service: string): MakeLogChecks {
  return (core, events) => new LogChecks(core, service, events)
}

/** The state of a verifier, as it is stored. */
interface Kept {
  readonly state: string
  /** Set while entries have to be read again. */
  readonly again?: true
}

/** One check. It is stored in one step. */
interface Check {
  readonly convo: string
  readonly verifier: Verifier
  readonly thread: Thread
  readonly changes: Changes
  again: boolean
}

/** Checks that the server shows all members of a convo the same log. */
export class LogChecks {
  private readonly running = new Set<Promise<void>>()
  private readonly waiting = new Set<string>() // convos whose check has not begun
  private readonly asked = new Map<string, number>() // when the client last asked for a head of a convo

  constructor(
    private readonly core: Core,
    private readonly service: string,
    private readonly events: LogCheckEvents,
  ) {}

  /**
   * What to send to the other members inside an encrypted message: the newest head that was checked,
   * and the service's keys. It is `undefined` before there is one.
   */
  async message(convo: string): Promise<string | undefined> {
    try {
      await this.run(convo, async (verifier) => {
        if (verifier.newest === "" || verifier.isBehind) await verifier.refresh()
      })
    } catch (err) {
      verdictOf(err) // the server does not answer now: an older head is good too
    }
    const verifier = await this.verifier(convo)
    return verifier === undefined || verifier.newest === "" ? undefined : verifier.message
  }

  /**
   * Compares the {@link message} that a member has sent inside an encrypted message.
   *
   * @param member the DID in the credential of the message's sender: `sender` of its item
   * @throws NotSignedError if it is none that the service has signed: the member could have made it up
   * @throws XrpcError or NoAnswerError if the server gives no head or proof now: compare it later
   */
  async compare(convo: string, member: string, message: string): Promise<void> {
    await this.run(convo, (verifier) => verifier.head(message, member))
  }

  /**
   * Asks for a head now, and returns what was found in this convo so far.
   *
   * @throws XrpcError or NoAnswerError if the server gives none
   */
  async check(convo: string): Promise<Finding[]> {
    await this.run(convo, (verifier) => verifier.refresh())
    return this.findings(convo)
  }

  /** What was found in a convo so far: also restores with which nothing was lost. */
  async findings(convo: string): Promise<Finding[]> {
    return (await this.verifier(convo))?.findings ?? []
  }

  /**
   * Checks what was read of a convo or sent to it, in the background. If entries are not in the newest head, and
   * the client has not asked for a head of the convo in the last minute, it asks for one. The client calls it.
   */
  soon(convo: string): void {
    if (this.waiting.has(convo)) return
    this.waiting.add(convo)
    const running = this.inBackground(convo, async (verifier) => {
      const since = this.core.clock.now() - (this.asked.get(convo) ?? -Infinity)
      if (verifier.isBehind && since >= headEvery) await verifier.refresh()
    }).finally(() => this.running.delete(running))
    this.running.add(running)
  }

  /**
   * Compares the log of a convo that was reset with what the first entry of its successor's log says of it, in
   * the background. The client calls it.
   */
  reset(convo: string, successor: string): void {
    const running = this.inBackground(convo, async (verifier) => {
      const page = await this.core.api.query(mls.getMessages.main, { convoId: successor, messageType: "all", limit: 1, sinceSeq: 0 })
      const text = new TextDecoder().decode(page.messages[0]?.ciphertext)
      const [, size, root] = /^mlsd convo opened by reset\n[^]*^size (\d+)\nroot (\S+)$/m.exec(text) ?? []
      if (root !== undefined) await verifier.named(Number(size), hashOf(fromBase64(root)))
    }).finally(() => this.running.delete(running))
    this.running.add(running)
  }

  /** Waits for the checks in the background. */
  async idle(): Promise<void> {
    while (this.running.size > 0) await Promise.all(this.running)
  }

  // inBackground is one check. What the server does not answer is asked again with the next one.
  private async inBackground(convo: string, then: (verifier: Verifier) => Promise<void>): Promise<void> {
    try {
      await this.run(convo, then)
    } catch (err) {
      try {
        verdictOf(err)
      } catch {
        this.events.onFailure?.(err)
      }
    }
  }

  private async verifier(convo: string): Promise<Verifier | undefined> {
    const kept = await get<Kept>(this.core.store, names.verifier(convo))
    return kept && Verifier.restore(kept.state, this.source)
  }

  // run shows the verifier of a convo what was read since the last time, and lets it do something.
  private run(convo: string, then: (verifier: Verifier) => Promise<void>): Promise<void> {
    return this.core.locks.run(`verifier:${convo}`, async () => {
      this.waiting.delete(convo)
      const { store, clock } = this.core
      const thread = await get<Thread>(store, names.thread(convo))
      if (thread === undefined || thread.left) return
      const kept = await get<Kept>(store, names.verifier(convo))
      const time = () => clock.now()
      const verifier = kept === undefined
        ? Verifier.create(this.core.services.of(convo) ?? this.core.services.home ?? this.service, convo, this.source, time)
        : Verifier.restore(kept.state, this.source, time)
      const check: Check = { convo, verifier, thread, changes: new Map(), again: kept?.again === true }
      if (verifier.findings.some(({ kind }) => kind === "lie")) return this.forgetSeen(check)
      const { found, failure } = await this.tryAll(check, then)
      const now: Kept = { state: verifier.save(), ...(check.again && { again: true }) }
      if (now.state !== kept?.state || now.again !== kept.again) put(check.changes, names.verifier(convo), now)
      if (check.changes.size > 0) await store.write(check.changes)
      for (const finding of found) this.events.onFinding?.(convo, finding)
      if (failure !== undefined) throw failure
    })
  }

  // tryAll reads again what the verifier asks for. It returns what was found, and why it did not come
  // to the end.
  private async tryAll(check: Check, then: (verifier: Verifier) => Promise<void>): Promise<{ found: Finding[]; failure?: unknown }> {
    const found: Finding[] = []
    for (let readings = 0; readings <= mostReadings; readings++) {
      try {
        if (check.again) await this.readAgain(check)
        await this.showAll(check)
        await then(check.verifier)
        return { found }
      } catch (err) {
        if (err instanceof FindingError) found.push(err.finding)
        else if (!(err instanceof ReadAgainError)) return { found, failure: err }
        if (!mustReadAgain(err)) return { found }
        check.again = true
        for (const name of await this.core.store.list(names.seenOf(check.convo))) check.changes.set(name, undefined)
      }
    }
    return { found }
  }

  private async showAll({ convo, verifier, changes }: Check): Promise<void> {
    const { store } = this.core
    for (const name of await store.list(names.acknowledgedOf(convo))) {
      const acknowledged = changes.has(name) ? undefined : await get<Seen>(store, name)
      if (acknowledged === undefined) continue
      await verifier.sent(acknowledged)
      changes.set(name, undefined)
    }
    for (const name of await store.list(names.seenOf(convo))) {
      const seen = changes.has(name) ? undefined : await get<Seen>(store, name)
      if (seen === undefined) continue
      await show(verifier, seen)
      changes.set(name, undefined)
    }
  }

  // readAgain reads the entries behind those that were checked from the server.
  private async readAgain(check: Check): Promise<void> {
    const { convo: convoId, verifier, thread } = check
    for (;;) {
      const before = verifier.size
      const sinceSeq = Math.max(before, thread.first - 1, 0)
      const page = await this.core.api.queryOnce(mls.getMessages.main, { convoId, messageType: "all", limit: pageSize, sinceSeq })
      for (const entry of page.messages) await show(verifier, seenOf(entry, await sha256(entry.ciphertext)))
      if (page.cursor === undefined || verifier.size === before) break
    }
    await verifier.refresh()
    check.again = false
  }

  // forgetSeen forgets what waits: after a lie nothing is checked any more.
  private async forgetSeen({ convo }: Check): Promise<void> {
    const { store } = this.core
    const seen = [...(await store.list(names.seenOf(convo))), ...(await store.list(names.acknowledgedOf(convo)))]
    if (seen.length > 0) await store.write(new Map(seen.map((name) => [name, undefined])))
  }

  private readonly source: LogSource = {
    head: async (convoId, senders): Promise<LogAnswer> => {
      this.asked.set(convoId, this.core.clock.now())
      const dids = senders as mls.getLogHead.$Params["senders"] // the server has named them so
      const answer = await this.core.api.queryOnce(mls.getLogHead.main, { convoId, ...(senders.length > 0 && { senders: dids }) })
      const stand = (answer.senders ?? []).map(({ did, salt, tag }) => ({ did, tag: hashOf(tag), ...(salt && { salt }) }))
      return { head: answer.head, keys: answer.keys, senders: stand }
    },
    inclusion: async (convoId, seq, size) => {
      const { leaf, hashes } = await this.core.api.queryOnce(mls.getLogProof.main, { convoId, seq, size })
      return { leaf: hashOf(leaf), proof: hashes.map(hashOf) }
    },
    consistency: async (convoId, from, size) => {
      const { hashes } = await this.core.api.queryOnce(mls.getLogProof.main, { convoId, from, size })
      return hashes.map(hashOf)
    },
  }
}

// show shows a verifier an entry. A device that was not in the convo meanwhile has not read what was
// between: within one membership, reading has no gaps.
async function show(verifier: Verifier, seen: Seen): Promise<void> {
  if (verifier.size > 0 && seen.seq > verifier.size + 1) await verifier.skip(seen.seq - 1)
  await verifier.entry(seen)
}

function mustReadAgain(err: unknown): boolean {
  if (!(err instanceof FindingError)) return true
  return err.finding.kind === "wentBack" && err.finding.member === undefined
}

function hashOf(bytes: Uint8Array | undefined): Hash {
  if (bytes?.length !== 32) throw new NoAnswerError(`${bytes?.length ?? 0} bytes are no hash`)
  return hex(bytes)
}
