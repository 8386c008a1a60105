// Checks the log of a convo for one device: docs/TRANSPARENCY.md. It needs @noble/curves.

import { type Finding, FindingError, NotSignedError, otherKey, otherSender, ReadAgainError, unsigned, wentBack } from "./log-findings.js"
import { type Head, HeadError, openHead, readHead } from "./log-head.js"
import { type Seen, type Sent, State, type WaitingHead } from "./log-state.js"
import { type Edge, edgeOf, emptyEdge, type Hash, isContinued, isIncluded, kinds, leafHash, recordOf, rootOf, tagOf } from "./log-tree.js"

/** So many entries come without a head before the verifier asks for one. */
export const askEvery = 100
/** So many entries may come without a head, and for so long, before that is a finding. */
const silentAfter = 3 * askEvery
const silentFor = 60_000
/** So long may own entries be in no head, while the service acknowledges others, before that is a finding. */
export const unsignedFor = 3_600_000
/**
 * How much of the time between two acknowledgements counts at most: in a longer time the device was perhaps
 * offline, the service down, or a clock jumped.
 */
export const countedAtMost = 600_000
/** Bounds of what is remembered. */
const mostWaiting = 16 // heads ahead of the entries
const mostSent = 1024 // acknowledged messages that were not shown yet
const mostFindings = 64 // of each kind: the newest ones
const mostTombstones = 64 // of a message to members

const erasedPrefix = "did:erased:" // of the tombstones of erased accounts
const saltSize = 16
const keyLine = "key "
const senderLine = "sender " // of a tombstone: its tag, and its DID
const noProof = "the server has rewritten the log, or its proof is wrong"
const differs = "the log that I was shown is not the one that is signed: "

/** Asks the server. Its errors are those of the way there, and refusals. */
export interface LogSource {
  /** A fresh head, and what stands for the given senders. */
  head(convo: string, senders: readonly string[]): Promise<LogAnswer>
  /** The leaf of an entry, and the proof that it is in the tree of a size. */
  inclusion(convo: string, seq: number, size: number): Promise<{ leaf: Hash; proof: Hash[] }>
  /** The proof that a tree begins with a smaller one. */
  consistency(convo: string, from: number, size: number): Promise<Hash[]>
}

/** The answer of getLogHead. */
export interface LogAnswer {
  readonly head: string
  readonly keys: readonly string[]
  readonly senders: readonly LogSender[]
}

/** What stands for a sender in the leaves. An erased account has no salt, and the DID of a tombstone. */
export interface LogSender {
  readonly did: string
  readonly salt?: Uint8Array
  readonly tag: Hash
}

/**
 * Checks the log of one convo. Its methods must not run at the same time. They throw a
 * {@link FindingError} or a {@link ReadAgainError}, or what the source throws. After a lie every method
 * throws it.
 */
export class Verifier {
  private constructor(
    private readonly s: State,
    private readonly source: LogSource,
    private readonly now: () => number,
  ) {}

  /** A verifier of a convo on the service with the DID. */
  static create(service: string, convo: string, source: LogSource, now: () => number = Date.now): Verifier {
    return new Verifier(new State(service, convo), source, now)
  }

  /** The verifier whose state {@link save} returned. */
  static restore(state: string, source: LogSource, now: () => number = Date.now): Verifier {
    return new Verifier(State.restore(state), source, now)
  }

  /** The state, to be stored with what was read. */
  save(): string {
    return this.s.save()
  }

  /** How many entries were checked. */
  get size(): number {
    return this.s.edge.size
  }

  /** The newest head that was checked. `""` if there is none. */
  get newest(): string {
    return this.s.head
  }

  /** Whether an entry that was shown or acknowledged is not in the newest head. */
  get isBehind(): boolean {
    return this.s.headSize < Math.max(this.s.edge.size, this.s.acked)
  }

  /** What was found so far, also the restores with which nothing was lost. */
  get findings(): Finding[] {
    const { lie, unsigned: wait, backs, otherKeys, otherSenders } = this.s
    return [...[lie, wait].filter((one) => one !== undefined), ...backs, ...otherKeys, ...otherSenders]
  }

  /**
   * What is sent to other members inside an encrypted message: the keys that the device has for the
   * service, which tombstones it was shown, and the newest head that was checked. Their verifiers take it
   * with {@link head}.
   */
  get message(): string {
    const { keys, tags, head } = this.s
    const tombstones = Object.keys(tags).filter(isTombstone).sort().slice(0, mostTombstones)
    return [...keys.map((key) => keyLine + key), ...tombstones.map((did) => `${senderLine}${tags[did]} ${did}`), head].join("\n")
  }

  /**
   * Remembers a message that the server has acknowledged, until it is shown. If it was shown before the
   * acknowledgement came, the two are compared.
   */
  async sent(m: Seen): Promise<void> {
    this.throwLie()
    const { s } = this
    if (this.isEarly(m)) {
      if (s.lost) return // the app has heard that such entries are lost
    } else {
      s.acked = Math.max(s.acked, m.seq)
    }
    if (m.seq > s.edge.size) {
      if (Object.keys(s.sent).length < mostSent) s.sent[m.seq] = m
      return
    }
    const shown = s.leafAt(m.seq)
    if (shown === undefined || (m.seq > 1 && (await s.rootAt(m.seq - 1)) === undefined)) return
    const tag = await this.tag(m.sender)
    for (const kind of m.kind === 0 ? [kinds.application, kinds.proposal, kinds.commit] : [m.kind]) {
      if ((await leafOf({ ...m, kind }, tag)) === shown) return
    }
    const sentence = `entry ${m.seq} is mine, and was shown as another one`
    if (this.isEarly(m)) throw this.lostMine(m, sentence)
    s.sent[m.seq] = m
    try {
      await this.doubt([], sentence)
    } catch (err) {
      if (err instanceof ReadAgainError && m.seq <= s.edge.size) await this.rewind(s.head, m.seq - 1) // compared then
      throw err
    }
  }

  /**
   * Checks an entry that the server shows. Entries come in the order of the log, without gaps; one that
   * was shown before can come again. After a {@link ReadAgainError} or the finding that the server went
   * back, the entries behind `size` come again; after an error of the source, the same entry.
   */
  async entry(m: Seen): Promise<void> {
    this.throwLie()
    const { s } = this
    const leaf = await leafOf(m, await this.tag(m.sender))
    if (!s.started) await this.start(m.seq - 1)
    if (m.seq <= s.edge.size) return this.shownAgain(m.seq, leaf)
    if (m.seq > s.edge.size + 1) {
      return this.doubt([], `entries are left out: after entry ${s.edge.size} the server shows entry ${m.seq}`)
    }
    await this.checkSent(m)
    await s.take(leaf)
    await this.meet()
    s.unheaded++
    if (s.unheaded >= askEvery) await this.askInPassing()
  }

  /**
   * Compares the root of the first entries with the one that the log of the successor names, after a reset.
   *
   * @param size how many entries. If the device was not shown so many, nothing is compared
   */
  async named(size: number, root: Hash): Promise<void> {
    await this.refresh() // the server can have gone back
    const mine = await this.s.rootAt(size)
    if (mine === undefined || mine === root) return
    throw this.lie([this.s.head], `the convo was reset, and its successor names another log of ${size} entries than I was shown`)
  }

  private async shownAgain(seq: number, leaf: Hash): Promise<void> {
    const before = this.s.leafAt(seq)
    const same = before === undefined ? await this.includes(seq, leaf) : before === leaf
    if (!same) await this.doubt([], `entry ${seq} is not what the server has shown before`)
    await this.meet()
  }

  // includes reports whether the server can prove that an entry is in the tree of what was shown.
  private async includes(seq: number, leaf: Hash): Promise<boolean> {
    const { edge, convoId } = this.s
    const { proof } = await this.source.inclusion(convoId, seq, edge.size)
    return isIncluded(proof, edge.size, await rootOf(edge), seq, leaf)
  }

  // checkSent compares an entry with what the server has acknowledged to this device.
  private async checkSent(m: Seen): Promise<void> {
    const { sent } = this.s
    const elsewhere = Object.values(sent).find(({ seq, body }) => body === m.body && seq !== m.seq)
    if (elsewhere !== undefined) {
      await this.notMine(elsewhere, `my message was acknowledged as entry ${elsewhere.seq} and is shown as entry ${m.seq}`)
    }
    const mine = sent[m.seq]
    if (mine === undefined) return
    const shown = `entry ${m.seq} is mine, `
    if (mine.body !== m.body) await this.notMine(mine, `${shown}and is shown with other bytes`)
    if (mine.sender !== m.sender) await this.notMine(mine, `${shown}and is shown as one of ${m.sender}`)
    if (mine.at !== m.at) {
      await this.notMine(mine, `${shown}was acknowledged at ${stamp(mine.at)} and is shown with the time ${stamp(m.at)}`)
    }
    delete sent[m.seq]
  }

  // isEarly reports whether an entry was acknowledged before the first head of the generation. If the server
  // went back in between, the entry can be lost, and that is no lie.
  private isEarly({ at, early }: Sent): boolean {
    return early === true || at < this.s.since
  }

  // markEarly marks what was acknowledged so far. Not every clock of a service is right, so times do not say it.
  private markEarly(): void {
    for (const mine of Object.values(this.s.sent)) this.s.sent[mine.seq] = { ...mine, early: true }
  }

  private notMine(mine: Sent, sentence: string): Promise<never> {
    return this.isEarly(mine) ? Promise.reject(this.lostMine(mine, sentence)) : this.doubt([], sentence)
  }

  // lostMine says that an early entry is not in the log. The app hears it once in a generation.
  private lostMine({ seq }: Seen, why: string): FindingError {
    const { s } = this
    s.lost = true
    s.sent = Object.fromEntries(Object.entries(s.sent).filter(([, sent]) => !this.isEarly(sent)))
    const { generation, headSize, head } = s
    return this.wentBack({ from: seq, to: headSize, common: seq - 1, generation, evidence: [head], why })
  }

  // tag returns what stands for a sender in the leaves, and asks the server the first time.
  private async tag(did: string): Promise<Hash> {
    const known = this.s.tags[did]
    if (known !== undefined) return known
    try {
      await this.askFor([did])
    } catch (err) {
      return isFound(err) ? raise(err) : this.unanswered(err)
    }
    return this.s.tags[did] ?? raise(this.lie([], `the server shows entries of ${did}, and does not say what stands for it in the log`))
  }

  // doubt is called when something that was shown does not fit. If the server went back meanwhile, that
  // is why. Else the entries are read again, and the second time it is a lie.
  private async doubt(evidence: string[], sentence: string): Promise<never> {
    const { text, head } = await this.again()
    return this.doubtUnder(text, head, evidence, sentence)
  }

  // doubtUnder is doubt, if there is a fresh head of the same generation. What the server has signed
  // before is never read again: a head that does not begin with it is a lie.
  private async doubtUnder(text: string, head: Head, evidence: string[], sentence: string): Promise<never> {
    const { s } = this
    await this.extends(text, head)
    if (s.doubted) return this.accuse([...evidence, text], sentence)
    const common = await this.common(head)
    for (const w of s.waiting) {
      const root = await s.rootAt(w.size)
      if (root !== undefined && w.size <= common && root !== w.root) throw this.lie([w.text, text], twoLogs(w.size, w.from))
    }
    await this.rewind(text, common)
    s.doubted = true
    s.tags = {} // an account that was erased and has returned has another one
    throw new ReadAgainError()
  }

  // again asks for a head, to see whether the generation is still the same. If it is not, it takes the
  // head, and throws that the server went back or that entries are read again.
  private async again(): Promise<{ text: string; head: Head }> {
    const answer = await this.source.head(this.s.convoId, []).catch((err: unknown) => this.unanswered(err))
    const head = await this.open(answer.head)
    if (head.generation <= this.s.generation) return { text: answer.head, head }
    await this.newGeneration(answer.head, head)
    throw new ReadAgainError()
  }

  // accuse says that the server has lied with a proof, unless it went back meanwhile: then the proof is
  // of another log than the head.
  private async accuse(evidence: string[], sentence: string): Promise<never> {
    await this.again()
    throw this.lie(evidence, sentence)
  }

  private newestHead(): Head | undefined {
    return this.s.head === "" ? undefined : readHead(this.s.head)
  }

  // extends checks that a head of the server's begins with the newest one of the generation that was
  // checked.
  private async extends(text: string, head: Head): Promise<void> {
    const before = this.newestHead()
    if (before === undefined || before.generation !== head.generation) return
    if (await this.isPrefix(head, before.size, before.root)) return
    const evidence = [this.s.head, text]
    if (head.size < before.size) {
      await this.accuse(evidence, `the head is stale: it has ${head.size} entries, and an earlier one ${before.size}`)
    }
    await this.accuse(evidence, `${noProof}: its head of ${head.size} entries does not begin with the ${before.size} of an earlier one`)
  }

  // rewind goes back to the tree of the first entries that were shown.
  private async rewind(text: string, size: number): Promise<void> {
    const { s } = this
    if (size === s.edge.size || !s.started) return
    if (size === 0) return s.begin(emptyEdge, false)
    const root = await s.rootAt(size)
    const edge = await this.edgeAt(size)
    if ((await rootOf(edge)) !== root) {
      await this.accuse([s.head, text], `the proof is wrong: that of entry ${size} in the tree of ${size} entries`)
    }
    s.goBack(edge)
  }

  // unanswered counts a question without an answer while entries come. It throws the error, or a lie if
  // there have been too many.
  private unanswered(err: unknown): never {
    const { s } = this
    s.silent ??= this.now()
    s.unheaded++
    const quiet = this.now() - s.silent
    if (s.unheaded < silentAfter || quiet < silentFor) throw err
    const sentence = `the server is silent: it shows entries, and has given no head for ${duration(quiet)} (${messageOf(err)})`
    throw this.lie([s.head], sentence)
  }

  // askInPassing asks for a head. That the server refuses one does not keep the entries from being read, until
  // it is a finding.
  private async askInPassing(): Promise<void> {
    try {
      await this.askFor([])
    } catch (err) {
      if (isFound(err)) throw err
      try {
        this.unanswered(err)
      } catch (found) {
        if (isFound(found)) throw found
      }
    }
  }

  // open reads a head of the server's.
  private async open(text: string): Promise<Head> {
    const { s } = this
    const head = await openHead(text, s.keys).catch((err: unknown) =>
      raise(this.lie([text], `the server's head is not signed with the key that it had: ${messageOf(err)}`)))
    if (head.service !== s.service || head.convoId !== s.convoId) {
      throw this.lie([text], `the server gives a head of another log: ${head.service}/${head.convoId}`)
    }
    if (head.generation >= s.generation || s.head === "") return head
    throw this.lie([s.head, text], `the server gives a head of generation ${head.generation} after one of generation ${s.generation}`)
  }

  /** Asks for a head of the whole log, and checks that it continues what was shown. */
  async refresh(): Promise<void> {
    this.throwLie()
    await this.askFor([]).catch((err: unknown) => (isFound(err) ? raise(err) : this.notSigned(err)))
  }

  // notSigned counts how long own entries are in no head, because the server gives none. Time counts from one
  // acknowledgement to the next: they show that the device is online and that the service works.
  private notSigned(err: unknown): never {
    const { s } = this
    if (s.acked <= s.headSize || (s.wait !== undefined && s.acked <= s.wait.acked)) throw err
    const now = this.now()
    const more = s.wait === undefined ? 0 : Math.min(Math.max(now - s.wait.at, 0), countedAtMost)
    s.wait = { time: (s.wait?.time ?? 0) + more, at: now, acked: s.acked }
    if (s.wait.time < unsignedFor || s.unsigned !== undefined) throw err
    const of = { acknowledged: s.acked, signed: s.headSize, evidence: s.head === "" ? [] : [s.head] }
    s.unsigned = unsigned(of, duration(s.wait.time), messageOf(err))
    throw new FindingError(s.unsigned)
  }

  private async askFor(senders: readonly string[]): Promise<void> {
    const { s } = this
    const atLeast = Math.max(s.edge.size, s.acked)
    const answer = await this.source.head(s.convoId, senders)
    if (s.keys.length === 0) s.keys = answer.keys
    const head = await this.open(answer.head)
    await this.learn(answer)
    await this.fresh(answer.head, head, atLeast)
    if (senders.length === 0 && s.edge.size === head.size) s.doubted = false // not while entries are read
    for (const sender of answer.senders) if (senders.includes(sender.did)) await this.learnSender(sender)
  }

  // learnSender takes what stands for a sender. A salt has one size, so that no tag can stand for two
  // DIDs. An account that was erased and has returned has another one.
  private async learnSender({ did, salt, tag }: LogSender): Promise<void> {
    const { s } = this
    if (salt === undefined && !isTombstone(did)) {
      throw this.lie([s.head], `the server does not say why its tag stands for ${did} in the log: the salt is absent, and the account was not erased`)
    }
    if (salt !== undefined && (salt.length !== saltSize || (await tagOf(salt, did)) !== tag)) {
      throw this.lie([s.head], `what the server says stands for ${did} in the log does not`)
    }
    const before = s.tags[did]
    if (before !== undefined && before !== tag && salt === undefined) {
      throw this.lie([s.head], `the server has changed what stands for ${did} in the log`)
    }
    s.tags[did] = tag
  }

  // learn accepts new keys with which a head is signed beside a known one.
  private async learn({ head, keys }: LogAnswer): Promise<void> {
    for (const key of keys) {
      if (!this.s.keys.includes(key) && (await isOpenedBy(head, [key]))) this.s.keys = [...this.s.keys, key]
    }
  }

  // fresh checks a head that the server has just given.
  private async fresh(text: string, head: Head, atLeast: number): Promise<void> {
    const { s } = this
    let least = atLeast
    let back: FindingError | undefined
    if (s.head === "" && !s.started) {
      s.generation = head.generation // the first one
      if (head.generation > 0) { // the acknowledgements are perhaps of an earlier one
        s.since = head.at
        this.markEarly()
        const { generation, size: to } = head
        if (to < s.acked) {
          back = this.wentBack({ from: s.acked, to, common: 0, generation, evidence: [text] })
          s.lost = true
          s.sent = {}
        }
        s.acked = least = Math.min(s.acked, to)
      }
    } else if (head.generation > s.generation) {
      return this.newGeneration(text, head)
    }
    // Two signed heads need no reading to be compared. If what was shown has the earlier one, continues
    // compares it.
    const before = this.newestHead()
    if (before !== undefined) {
      const root = s.started ? await s.rootAt(before.size) : undefined
      if (root !== before.root || head.size < before.size) await this.extends(text, head)
    }
    if (head.size < least) {
      const sentence = `the head is stale: it has ${head.size} entries, and the server has shown or acknowledged ${least}`
      await this.doubtUnder(text, head, [s.head], sentence)
    }
    await this.continues(text, head)
    await this.remember(text, head, "")
    s.head = text
    s.headSize = head.size
    s.unheaded = 0
    s.silent = s.wait = s.unsigned = undefined
    if (back !== undefined) throw back
  }

  // continues checks that a head is of a log that begins with what was shown.
  private async continues(text: string, head: Head): Promise<void> {
    const { s } = this
    if (!s.started || (await this.isPrefix(head, s.edge.size, await rootOf(s.edge)))) return
    this.compareWaiting(text, head, "") // two heads need no reading to be compared
    await this.doubtUnder(text, head, [s.head], await this.explain(head))
  }

  // isPrefix reports whether the server can prove that the tree of a head begins with a tree.
  private async isPrefix(head: Head, size: number, root: Hash): Promise<boolean> {
    if (size === 0) return true
    if (size > head.size) return false
    if (size === head.size) return root === head.root
    const proof = await this.source.consistency(this.s.convoId, size, head.size)
    return isContinued(proof, head.size, head.root, size, root)
  }

  // explain says which of the entries that were shown is not under a head.
  private async explain(head: Head): Promise<string> {
    const { edge, leaves, convoId } = this.s
    let seq = edge.size - leaves.length
    for (const shown of leaves) {
      if (++seq > head.size) break
      const answer = await this.source.inclusion(convoId, seq, head.size).catch(messageOf)
      if (typeof answer === "string") return `${differs}the server gives no proof for entry ${seq} (${answer})`
      if (!(await isIncluded(answer.proof, head.size, head.root, seq, answer.leaf))) {
        return `the proof is wrong: that of entry ${seq} in the tree of ${head.size} entries`
      }
      if (answer.leaf !== shown) return `${differs}entry ${seq} is the first that differs in its bytes, sender, time or place`
    }
    return `the proof is wrong: it does not lead from the ${edge.size} entries that I was shown to the signed head of ${head.size}`
  }

  // remember compares a head with the others of its generation: with what was shown, or later, when
  // that many entries were shown.
  private async remember(text: string, head: Head, from: string): Promise<void> {
    const { s } = this
    this.compareWaiting(text, head, from)
    const root = s.started ? await s.rootAt(head.size) : undefined
    if (root === head.root) return this.adopt(text, head.size)
    if (root === undefined && head.size <= s.edge.size) return // too old to be compared
    const waiting: WaitingHead = { text, size: head.size, root: head.root, from }
    s.waiting = [...s.waiting, waiting].slice(-mostWaiting)
    if (root !== undefined) await this.doubt([text], twoLogs(head.size, from))
  }

  // adopt makes a head the newest one that was checked, if it is: what was shown begins with it.
  private adopt(text: string, size: number): void {
    if (size <= this.s.headSize) return
    this.s.head = text
    this.s.headSize = size
  }

  private compareWaiting(text: string, head: Head, from: string): void {
    const other = this.s.waiting.find(({ size, root }) => size === head.size && root !== head.root)
    if (other === undefined) return
    const sentence = `there are two heads of ${head.size} entries: ${nameOf(other.from)} has one, and ${nameOf(from)} another`
    throw this.lie([other.text, text], sentence)
  }

  // meet compares the heads that waited for the entry that was just shown.
  private async meet(): Promise<void> {
    const { s } = this
    for (const w of s.waiting) {
      const root = w.size > s.edge.size ? undefined : await s.rootAt(w.size)
      if (root === undefined) continue
      if (w.root === root) {
        this.adopt(w.text, w.size)
        continue
      }
      const why = await this.explain(readHead(w.text))
      await this.doubt([w.text], w.from === "" ? why : `${twoLogs(w.size, w.from)} (${why})`)
    }
    s.waiting = s.waiting.filter(({ size }) => size > s.edge.size)
  }

  /**
   * Checks the `message` that a member has sent inside an encrypted message. Its head can be older or
   * newer than what was shown.
   *
   * @throws NotSignedError if it has no head of the service
   */
  async head(message: string, from: string): Promise<void> {
    this.throwLie()
    const { s } = this
    if (s.keys.length === 0) await this.askFor([])
    const { keys, tombstones, text } = partsOf(message)
    const head = await this.openMembers(text).catch((err: unknown) => this.unknownKey(message, text, keys, from, err))
    if (head.service !== s.service || head.convoId !== s.convoId) throw new NotSignedError("it is of another log")
    let back: FindingError | undefined // the member's head is compared nevertheless
    if (head.generation > s.generation || head.size > s.headSize) {
      await this.askFor([]).catch((err: unknown) => (back = isBack(err) ? err : raise(err))) // what the server says of it
    }
    if (head.generation > s.generation) {
      const sentence = `${from} has a head of generation ${head.generation}, and the server says it is in generation ${s.generation}`
      throw this.lie([s.head, text], sentence)
    }
    if (head.generation < s.generation) {
      await this.earlier(text, head, from)
    } else if (head.size > s.headSize) {
      const sentence = `${from} has a head of ${head.size} entries, and the server says that there are ${s.headSize}`
      throw this.lie([s.head, text], sentence)
    } else {
      await this.compare(text, head, from)
      await this.remember(text, head, from)
      for (const { did, tag } of tombstones) await this.compareSender(did, tag, from)
    }
    if (back !== undefined) throw back
  }

  // compareSender compares a tombstone that a member was shown with what this device was shown. If that
  // is an account, it was perhaps erased meanwhile: then the server has its salt no more.
  private async compareSender(theirs: string, tag: Hash, member: string): Promise<void> {
    const { s } = this
    for (const mine of Object.keys(s.tags).sort()) {
      if (mine === theirs || s.tags[mine] !== tag) continue
      if (!isTombstone(mine)) {
        delete s.tags[mine]
        await this.askFor([mine])
        if (s.tags[mine] !== tag) continue
      }
      const found = otherSender({ member, mine, theirs, tag })
      if (!s.otherSenders.some(({ sentence }) => sentence === found.sentence) && s.otherSenders.length < mostFindings) {
        s.otherSenders = [...s.otherSenders, found]
      }
      throw new FindingError(found)
    }
  }

  // openMembers opens a member's head. If its key is not known, the service could have another one now.
  private async openMembers(text: string): Promise<Head> {
    try {
      return await openHead(text, this.s.keys)
    } catch (err) {
      if (this.otherKeyOf(err) === undefined) throw err
    }
    await this.askFor([])
    return openHead(text, this.s.keys)
  }

  // otherKeyOf returns the hash of a key that is not known and with which the service is said to have
  // signed a head.
  private otherKeyOf(err: unknown): number | undefined {
    return err instanceof HeadError ? err.unknown.find(({ name }) => name === this.s.service)?.hash : undefined
  }

  // unknownKey throws that a member's head is signed with a key that the device does not know.
  private async unknownKey(message: string, text: string, keys: string[], member: string, err: unknown): Promise<never> {
    if (!(err instanceof HeadError)) throw err
    const { s } = this
    const keyHash = this.otherKeyOf(err)
    if (keyHash === undefined) throw new NotSignedError(err.message)
    const found = otherKey({ member, keyHash, signed: await isOpenedBy(text, keys), evidence: [message, s.head] })
    if (!s.otherKeys.some((other) => other.member === member && other.keyHash === keyHash)) {
      s.otherKeys = [...s.otherKeys, found].slice(-mostFindings)
    }
    throw new FindingError(found)
  }

  // earlier compares a member's head of an earlier generation. If nothing was lost with that, today's
  // log begins with it. Each head is reported once.
  private async earlier(text: string, head: Head, member: string): Promise<void> {
    const { s } = this
    const newest = this.newestHead()
    if (newest === undefined || s.backs.some((back) => back.member === member && back.evidence[0] === text)) return
    if (await this.isPrefix(newest, head.size, head.root)) return
    await this.again()
    const { generation } = newest
    throw this.wentBack({ from: head.size, to: newest.size, common: 0, generation, evidence: [text, s.head], member })
  }

  // compare checks that the newest head continues that of a member.
  private async compare(text: string, head: Head, from: string): Promise<void> {
    const { s } = this
    this.compareWaiting(text, head, from)
    if (s.started && (await s.rootAt(head.size)) === head.root) return
    const newest = this.newestHead()
    if (newest === undefined || (await this.isPrefix(newest, head.size, head.root))) return
    await this.accuse([s.head, text],
      `there are two logs: the server cannot prove that my head of ${newest.size} entries continues the head of ${head.size} that ${from} has`)
  }

  // start begins with the tree of the entries before the first one that is shown: a member who joined
  // later gets its hashes, proven against a head.
  private async start(size: number): Promise<void> {
    const { s } = this
    if (s.head === "") await this.askFor([])
    const edge = await this.edgeAt(size)
    if (size > readHead(s.head).size) await this.askFor([]) // the head is older than the entry
    if (!(await this.isPrefix(readHead(s.head), size, await rootOf(edge)))) {
      await this.accuse([s.head], `the proof is wrong: the ${size} entries before the first one that I was shown are not under the signed head`)
    }
    s.begin(edge, true)
  }

  // edgeAt asks for the edge of the tree of a size.
  private async edgeAt(size: number): Promise<Edge> {
    if (size === 0) return emptyEdge
    const { leaf, proof } = await this.source.inclusion(this.s.convoId, size, size)
    return edgeOf(size, leaf, proof).catch((err: unknown) =>
      this.accuse([this.s.head], `the proof is wrong: that of entry ${size} in the tree of ${size} entries: ${messageOf(err)}`))
  }

  /**
   * Passes entries that the device does not read, because it was not in the convo meanwhile. The tree of
   * all entries up to `seq` must begin with what was shown.
   */
  async skip(seq: number): Promise<void> {
    this.throwLie()
    if (seq <= this.s.edge.size || !this.s.started) return // start takes any beginning
    await this.askFor([]) // the head has what was shown as its beginning
    this.s.started = false
    await this.start(seq)
  }

  // newGeneration takes the first head of another generation.
  private async newGeneration(text: string, head: Head): Promise<void> {
    const { s } = this
    const common = await this.common(head)
    const from = Math.max(s.edge.size, s.acked, s.headSize)
    const back = { from, to: head.size, common, generation: head.generation, evidence: [s.head, text] }
    let lost = (s.started && common < s.edge.size) || head.size < s.acked
    const before = this.newestHead()
    if (before !== undefined && !lost) lost = !(await this.isPrefix(head, before.size, before.root))
    await this.rewind(text, common)
    const begun: Partial<State> = {
      generation: head.generation, head: text, headSize: head.size, unheaded: 0, doubted: false,
      since: head.at, waiting: [], acked: Math.min(s.acked, common), tags: {}, lost,
    }
    Object.assign(s, begun)
    s.silent = s.wait = s.unsigned = undefined
    this.markEarly()
    if (lost) { // entries behind those that both have are lost, or elsewhere
      s.sent = Object.fromEntries(Object.entries(s.sent).filter(([seq]) => Number(seq) <= common))
    }
    const found = this.wentBack(back) // also if nothing was lost
    await this.remember(text, head, "")
    if (lost) throw found
  }

  private wentBack(of: Parameters<typeof wentBack>[0]): FindingError {
    const found = wentBack(of)
    this.s.backs = [...this.s.backs, found].slice(-mostFindings)
    return new FindingError(found)
  }

  // common is how many of the entries that were shown are under a head: the largest remembered size
  // whose tree it begins with.
  private async common(head: Head): Promise<number> {
    const { s } = this
    const all = s.edge.size
    if (!s.started) return 0
    if (await this.isPrefix(head, all, await rootOf(s.edge))) return all
    const unknown = all - s.roots.length // of this size and below, no root is remembered
    let low = unknown
    let high = Math.min(all, head.size) // the answer is in (low, high], or it is not known
    while (low < high) {
      const middle = Math.floor((low + high + 1) / 2)
      if (await this.isPrefix(head, middle, (await s.rootAt(middle)) ?? "")) low = middle
      else high = middle - 1
    }
    return low <= unknown ? 0 : low
  }

  private lie(evidence: string[], sentence: string): FindingError {
    this.s.lie ??= { kind: "lie", sentence, evidence, at: this.now() }
    return new FindingError(this.s.lie)
  }

  private throwLie(): void {
    if (this.s.lie !== undefined) throw new FindingError(this.s.lie)
  }
}

function leafOf(m: Seen, tag: Hash): Promise<Hash> {
  return leafHash(recordOf({ ...m, tag }))
}

async function isOpenedBy(text: string, keys: readonly string[]): Promise<boolean> {
  return openHead(text, keys).then(() => true, () => false)
}

// partsOf takes what a member has sent apart: keys, tombstones, and a head.
function partsOf(message: string): { keys: string[]; tombstones: { did: string; tag: Hash }[]; text: string } {
  const keys: string[] = []
  const tombstones: { did: string; tag: Hash }[] = []
  let text = message
  for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n")) {
    const line = text.slice(0, end)
    if (line.startsWith(keyLine)) keys.push(line.slice(keyLine.length))
    else if (!line.startsWith(senderLine)) break
    const [, tag, did] = /^sender ([0-9a-f]{64}) (did:erased:.*)$/.exec(line) ?? []
    if (tag !== undefined && did !== undefined && tombstones.length < mostTombstones) tombstones.push({ did, tag })
    text = text.slice(end + 1)
  }
  return { keys, tombstones, text }
}

function isTombstone(did: string): boolean {
  return did.startsWith(erasedPrefix)
}

function twoLogs(size: number, from: string): string {
  return `there are two logs: the head of ${size} entries that ${nameOf(from)} has is not that of the log that I was shown`
}

// nameOf names who has given a head.
function nameOf(from: string): string {
  return from === "" ? "the server" : from
}

function stamp(at: number): string {
  return new Date(at).toISOString()
}

// duration is a time in the form 1h2m3s.
function duration(ms: number): string {
  const all = Math.round(ms / 1000)
  const hours = all >= 3600 ? `${Math.floor(all / 3600)}h` : ""
  const minutes = all >= 60 ? `${Math.floor(all / 60) % 60}m` : ""
  return `${hours}${minutes}${all % 60}s`
}

function messageOf(err: unknown): string {
  return err instanceof Error ? err.message : String(err)
}

// isFound reports whether an error says something of the server, and is not of the way there.
function isFound(err: unknown): boolean {
  return err instanceof FindingError || err instanceof ReadAgainError
}

/** Reports whether an error is the finding that the server went back. */
export function isBack(err: unknown): err is FindingError {
  return err instanceof FindingError && err.finding.kind === "wentBack"
}

function raise(err: unknown): never {
  throw err
}
