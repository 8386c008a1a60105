// Somebody who has signed in: one device, and all that a screen shows of it.

import {
  type Client, type ClientEvents, type ConvoId, type ConvoRequest, type Did, type Doubt, encodeContent, type Store, type Write, body,
} from "mlsd-client"
import { ChatList } from "./chat-list.js"
import { Conversation } from "./conversation.js"
import { EventLog } from "./event-log.js"
import { Files } from "./files.js"
import { Observable } from "./observable.js"
import { type Account, openPhone, openStore } from "./phone.js"
import { People } from "./people.js"
import { names, readText, textChange } from "./records.js"
import { describeEvent, describeFailure, sentenceOf } from "./words.js"

/** A question that only the person can answer. */
export interface Question extends Doubt {
  readonly key: Uint8Array
}

export class Session extends Observable {
  readonly events = new EventLog()
  /** The ids of the writes whose last attempt has failed. */
  readonly retrying = new Set<string>()
  private client_!: Client
  private chats_!: ChatList
  private files_!: Files
  private readonly conversations = new Map<string, Conversation>()
  private readonly questions_ = new Map<string, Doubt>()
  private readonly answers = new Map<string, boolean>()
  private readonly away_ = new Set<string>()
  private requests_: readonly ConvoRequest[] = []
  private tellsRead = true
  private isConnected_ = false
  private isInvitable_ = false
  private alert_: string | undefined
  private aheadMs_ = 0
  private ended_: "done" | "removed" | undefined

  private constructor(
    readonly account: Account,
    readonly store: Store,
    readonly people: People,
  ) {
    super()
  }

  /**
   * Opens the device of a person in this browser.
   *
   * @param onElsewhere hears that another tab has it: this one waits until that one closes
   */
  static async open(account: Account, onElsewhere: () => void): Promise<Session> {
    const store = await openStore(account.did, onElsewhere)
    const session = new Session(account, store, new People(account.did, store, account.agent, account.directory))
    await session.start()
    return session
  }

  get client(): Client {
    return this.client_
  }

  get chats(): ChatList {
    return this.chats_
  }

  get files(): Files {
    return this.files_
  }

  get isConnected(): boolean {
    return this.isConnected_
  }

  /** Whether others can invite this person. */
  get isInvitable(): boolean {
    return this.isInvitable_
  }

  /** What the person must know. */
  get alert(): string | undefined {
    return this.alert_
  }

  /** By how much the device's clock is ahead, if that is much. */
  get aheadMs(): number {
    return this.aheadMs_
  }

  /** Set once this device may not go on. */
  get ended(): "done" | "removed" | undefined {
    return this.ended_
  }

  get requests(): readonly ConvoRequest[] {
    return this.requests_
  }

  get questions(): readonly Doubt[] {
    return [...this.questions_.values()]
  }

  /** Other services that do not answer. */
  get away(): readonly string[] {
    return [...this.away_]
  }

  /** Whether others see what this person has read. */
  get receipts(): boolean {
    return this.tellsRead
  }

  /** The conversation of a convo, which is read when it is opened. */
  conversation(convo: ConvoId): Conversation {
    const conversation = this.conversations.get(convo) ?? new Conversation(convo, {
      client: this.client, store: this.store, people: this.people, chats: this.chats, retrying: this.retrying,
      receipts: () => this.tellsRead, onFailure: this.fail,
    })
    this.conversations.set(convo, conversation)
    return conversation
  }

  /** Makes a chat. What a group is called is a message: the service does not read it. */
  async startChat(members: readonly Did[], name: string): Promise<ConvoId> {
    const convo = await this.client.createConvo(members)
    if (name !== "") await this.client.send(convo, encodeContent({ body: body.details({ name }) }))
    await this.chats.update(convo)
    return convo
  }

  /** Adds people, and sends them what the group is called: they cannot read what was sent before. */
  async add(convo: ConvoId, people: readonly Did[]): Promise<void> {
    await this.client.add(convo, people)
    const { name, description, avatar } = this.chats.find(convo) ?? {}
    if (name === undefined && description === undefined && avatar === undefined) return
    const details = {
      ...(name !== undefined && { name }), ...(description !== undefined && { description }),
      ...(avatar !== undefined && { avatar: body.attachment(avatar) }),
    }
    await this.client.send(convo, encodeContent({ body: body.details(details) }))
  }

  async accept({ convoId }: ConvoRequest): Promise<void> {
    await this.client.accept(convoId)
    await this.readRequests()
  }

  async decline({ convoId }: ConvoRequest, block: boolean): Promise<void> {
    await this.client.decline(convoId, { block })
    await this.readRequests()
  }

  async setReceipts(tells: boolean): Promise<void> {
    this.tellsRead = tells
    this.changed()
    await this.store.write(textChange(names.receipts, tells ? "yes" : "no"))
  }

  /** Answers a question. The client asks again soon. */
  async answer(doubt: Doubt, uses: boolean): Promise<void> {
    this.answers.set(keyOf(doubt), uses)
    this.questions_.delete(keyOf(doubt))
    this.changed()
    if (uses) await this.client.sync(doubt.convo)
  }

  /** Tries everything again at once. */
  resume(): void {
    this.client.resume()
  }

  /** Shows what has failed. */
  readonly fail = (err: unknown): void => {
    this.alert_ = typeof err === "string" ? err : sentenceOf(err)
    this.changed()
  }

  dismiss(): void {
    this.alert_ = undefined
    this.changed()
  }

  private async start(): Promise<void> {
    this.tellsRead = (await readText(this.store, names.receipts)) !== "no"
    this.client_ = (await openPhone(this.store, this.account, this.clientEvents(), (doubt) => this.decide(doubt))).client
    this.chats_ = new ChatList(this.client, this.store, this.account.did)
    this.files_ = new Files(this.client, this.store, this.fail)
    await this.chats.open()
    await this.readRequests()
    addEventListener("online", () => this.resume())
    this.client.listen()
    this.publish().catch(this.fail)
    await this.files.open()
  }

  private async publish(): Promise<void> {
    const published = await this.client.replenish()
    if (published > 0) this.events.add("KeyPackages", `published: ${published}`)
    if (this.account.services !== undefined) await this.client.publishProfile(this.account.agent)
    this.isInvitable_ = true
    this.changed()
  }

  private async readRequests(): Promise<void> {
    this.requests_ = await this.client.requests()
    this.changed()
  }

  // decide is asked again and again while a device is not known.
  private decide(doubt: Doubt): boolean {
    const answer = this.answers.get(keyOf(doubt))
    // An unlisted device is taken out by itself, and one that waits is usually listed a moment later.
    if (answer === undefined && (doubt.why === "uninvited" || doubt.why === "left")) {
      this.questions_.set(keyOf(doubt), doubt)
      this.changed()
    }
    return answer ?? false
  }

  private clientEvents(): ClientEvents {
    const log = this.events
    return {
      onChange: (queue) => this.refresh(queue),
      onItems: (convo, items) => {
        void this.chats_?.update(convo, items).catch(this.fail)
        this.refresh(convo)
      },
      onJoined: (convo) => this.update(convo),
      onRequest: () => void this.readRequests().catch(this.fail),
      onRetry: (write, wait, err) => this.onRetry(write, wait, err),
      onSignal: (convo, did) => this.conversations.get(convo)?.hears(did),
      onWelcome: (_, state) => log.add("Welcome", state),
      onEvent: (event) => {
        log.add(event.type, describeEvent(event))
        if ("convoId" in event.body) this.update(event.body.convoId as ConvoId)
        void this.readRequests().catch(this.fail)
      },
      onService: (service, err) => {
        this.away_[err === undefined ? "delete" : "add"](service)
        this.changed()
      },
      onDispute: (_, { change, epoch }) => {
        if (change === "failed") log.add("commit", `of epoch ${epoch} could not be processed: this device enters the group again`)
        if (change === "returned") log.add("commit", "this device is in the group again")
      },
      onDevice: (_, { change, did }) => log.add("device", `of ${did}: ${change}`),
      onMissing: (convo) => this.update(convo),
      onMoved: (convo, successor) => {
        this.update(convo)
        this.update(successor)
      },
      onFinding: (_, { sentence }) => this.fail(sentence),
      onConnect: () => this.connected(true, ""),
      onReconnect: (err) => this.connected(false, describeFailure(err)),
      onClock: ({ aheadMs }) => {
        this.aheadMs_ = aheadMs
        this.changed()
      },
      onSignedOut: (why) => {
        this.ended_ = why
        this.changed()
      },
      onLost: (convo) => void this.conversations.get(convo)?.reset().catch(this.fail),
      onStop: (err) => this.fail(err),
      onFailure: (err) => this.fail(err),
      onWelcomeLost: (_, err) => this.fail(err),
    }
  }

  private onRetry(write: Write, wait: number, err: unknown): void {
    this.retrying.add(write.id)
    this.events.add(write.kind, `${describeFailure(err)}; the same bytes again in ${(wait / 1000).toFixed(1)} s`)
    this.refresh(write.queue)
    this.changed()
  }

  private refresh(convo: string): void {
    void this.conversations.get(convo)?.refresh().catch(this.fail)
  }

  private update(convo: ConvoId): void {
    if (this.chats_ === undefined) return
    this.client.convos().then(async (threads) => {
      if (threads.some(({ convoId }) => convoId === convo)) await this.chats.update(convo)
    }).catch(this.fail)
    this.refresh(convo)
  }

  private connected(connected: boolean, why: string): void {
    this.isConnected_ = connected
    this.events.add(connected ? "connected" : "connecting", why)
    this.changed()
  }
}

function keyOf({ convo, did, key, why }: Doubt): string {
  return [convo, did, key?.join("") ?? "", why].join(" ")
}
