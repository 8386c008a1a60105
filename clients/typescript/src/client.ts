// A device of a person: everything that an app does with a service.

import { AccountAwayError, type Accounts } from "./accounts.js"
import { Api, withIdempotencyKey } from "./api.js"
import { ContraryError, groupOf, peopleIn, tellContrary } from "./binding.js"
import { hex, same, sha256 } from "./bytes.js"
import { type CommitChange, peopleOf } from "./changes.js"
import { type Clock, systemClock } from "./clock.js"
import { Consent, type InvitationPolicy } from "./consent.js"
import type { Core, Envelope } from "./core.js"
import { asDid, type ConvoId, type Did } from "./ids.js"
import { idLength, usualEnvelope } from "./envelope.js"
import { type Dispute, Disputes, type Position } from "./disputes.js"
import { Devices } from "./devices.js"
import {
  DiscardedError, errorName, isRefusal, NoAnswerError, OutOfStepError, SignedOutError, StuckError, UnknownConvoError,
  verdictOf, XrpcError,
} from "./errors.js"
import { EventStream, type SignalEvent, type StreamEvent } from "./events.js"
import type { OpenSocket } from "./events-socket.js"
import { ExternalCommits } from "./external-commits.js"
import { type GroupCode, groupCode } from "./group-code.js"
import type { LexValue } from "./json.js"
import { safetyNumber, type SafetyNumber } from "./safety-number.js"
import { deviceIdOf, KeyPackageStock } from "./keypackages.js"
import { History, type HistoryEvents } from "./history.js"
import { Locks } from "./locks.js"
import { Log } from "./log.js"
import type { LogChecks, MakeLogChecks } from "./log-checks.js"
import type { Finding } from "./log-findings.js"
import { type Doubt, Members } from "./members.js"
import { LaterInvitations, type Missing } from "./missing.js"
import { didOf, type Group, type Mls } from "./mls.js"
import { type DeviceNews, NewsQueue } from "./news.js"
import { Outbox, type OutboxEvents } from "./outbox.js"
import { type OwnDevice, OwnDevices } from "./own-devices.js"
import { type ConvoRequest, isStuck, type Item, lockOf, mustRead, names, rejoinQueue, requestQueue, type Thread } from "./records.js"
import { Recovery } from "./recovery.js"
import { type Accepted, Requests } from "./requests.js"
import { Resets } from "./resets.js"
import { type Changes, endOf, get, getAll, getRange, OwnedStore, put, type Store } from "./store.js"
import { type Elsewhere, type OtherServices, Services } from "./services.js"
import { type PdsAgent, textOf, type Transport } from "./transport.js"
import { type ClockOffset, ServerTime } from "./server-time.js"
import { type MemberCursor, Signals } from "./signals.js"
import { type InvitedDevice, WelcomeLostError, Welcomes } from "./welcome.js"
import { type AddContent, type Committed } from "./write-commits.js"
import type { CreateContent } from "./write-convos.js"
import type { SendContent, SentMessage } from "./write-messages.js"
import { ClientWriter } from "./writer.js"
import * as mls from "#lexicons"

/** What an app hears of a client. */
export interface ClientEvents extends Omit<OutboxEvents, "onMoved">, Omit<HistoryEvents, "onFailure"> {
  /** Entries of a convo's log were read and stored. */
  onItems?(convo: ConvoId, items: Item[]): void
  /**
   * A Welcome of this device has another state, in the server's words (docs/WELCOME.md): `available`,
   * `in_flight` once this device has it, `consumed` after this device has joined.
   */
  onWelcome?(convo: ConvoId, state: string): void
  /**
   * The service reports that a person whom this one has added, by its DID, has joined with a device
   * (`consumed`), or could not (`failed`). {@link Client.invited} has the devices. That it has joined MLS shows
   * when it writes: `onDevice` says `joined`.
   */
  onArrived?(convo: ConvoId, did: string, state: string): void
  /** This device has joined a convo. */
  onJoined?(convo: ConvoId): void
  /**
   * This device cannot join with its Welcome, and cannot come back by itself: a member must add the
   * person again.
   */
  onWelcomeLost?(convo: ConvoId, err: Error): void
  /**
   * Members cannot process a commit, or the group is split: docs/clients/DISPUTES.md. The client does
   * what is needed by itself. An app shows it, with the committer's name.
   */
  onDispute?(convo: ConvoId, dispute: Dispute): void
  /**
   * A convo was reset, and goes on under another id: this device is in its successor. Messages that
   * waited go there. The old convo can be read.
   */
  onMoved?(convo: ConvoId, successor: ConvoId): void
  /**
   * A convo waits for this person's answer, {@link Client.accept} or {@link Client.decline}: somebody who shares
   * no convo with this person has invited it, or somebody of another service has. {@link Client.requests} lists
   * what waits. A crash does not lose it.
   */
  onRequest?(request: ConvoRequest): void
  /**
   * People could not be invited, because they have no KeyPackage that can be used. The client invites them later:
   * {@link Client.missing}. A crash does not lose it.
   */
  onMissing?(convo: ConvoId, people: readonly Did[]): void
  /** Any event of the stream, after the client has done what it asks for. */
  onEvent?(event: StreamEvent): void
  /**
   * A member, by its DID, has sent a signal, and is connected as this device is: {@link Client.signal}.
   * Signals can get lost, so what they say must end by itself.
   */
  onSignal?(convo: ConvoId, did: string, content: Uint8Array): void
  /** Members who share their cursors, as this person does, have moved them. */
  onCursors?(convo: ConvoId, cursors: readonly MemberCursor[]): void
  /**
   * The service says what MLS does not show, or the checks of a convo's log have found something: tell the
   * user. {@link LogChecks.findings} keeps what the checks have found.
   */
  onFinding?(convo: ConvoId | undefined, finding: Finding): void
  /**
   * A device has entered a group, or left it, or its account says otherwise than before. A message is
   * encrypted only when all devices of its group are known. A crash does not lose it. There is no convo for a
   * device that would have been added to a new one.
   */
  onDevice?(convo: ConvoId | undefined, device: DeviceNews): void
  /**
   * A person has no device in a convo's group any more, and has not left: the account lists none, or the convo was
   * reset while the person had no KeyPackages. Once the person has a device, {@link Client.add} brings it back.
   * {@link Client.withoutDevice} lists them.
   */
  onWithoutDevice?(convo: ConvoId, did: Did): void
  /**
   * This device has signed out, and its store is empty; or its account does not list it any more, because another
   * device of the person has removed it (`removed`): it enters no convo, and nobody encrypts for it. Then ask the
   * person, and call {@link Client.signOut}.
   */
  onSignedOut?(why: "done" | "removed"): void
  /**
   * The device's clock is off by a minute or more, or it is right again. The client goes by the service's time;
   * other apps do not, and tokens of the person's PDS can be refused: tell the person.
   */
  onClock?(offset: ClockOffset): void
  /** The event stream is connected. */
  onConnect?(): void
  /** The event stream has lost its connection, and connects again. */
  onReconnect?(err: unknown): void
  /** The event stream of another service is connected, or has lost its connection by `err`, and connects again. */
  onService?(service: Did, err?: unknown): void
}

/** What a client works with. */
export interface ClientOptions {
  /** The person's DID. */
  readonly did: Did
  /** Storage of this device alone. */
  readonly store: Store
  /** The way to the person's own service. */
  readonly transport: Transport
  /** Where accounts list their devices: `AtprotoAccounts` of `mlsd-client/accounts`. */
  readonly accounts: Accounts
  /**
   * Decides what only a person can know. About a device for which nothing is encrypted, because its account does
   * not list it, or could not be asked yet, or because its person was not in the group: to return true is to
   * use it from now on. About a person who has left, as only the service says: to return true is to remove
   * them. By default nothing is done. Ask the person, who compares safety numbers.
   */
  readonly decide?: (doubt: Doubt) => boolean | Promise<boolean>
  /** The device's name in its account's record, which everybody can read. */
  readonly deviceName?: string
  /** Ways to other services, for people and convos there: docs/NETWORK.md. Without it there are none. */
  readonly services?: OtherServices
  readonly mls: Mls
  readonly events?: ClientEvents
  /** How a plaintext holds the message's id. All clients of a convo must have the same form. */
  readonly envelope?: Envelope
  /** Makes a WebSocket, where the platform has none and the transport passes no streams on. */
  readonly openSocket?: OpenSocket
  /**
   * False to let this device not enter the convos of its person by itself. By default it does, once it is listed
   * and {@link Client.listen} or {@link Client.syncAll} was called.
   */
  readonly admitOwnDevices?: boolean
  /** How many one-time KeyPackages a full stock has, at most 99. */
  readonly fullStock?: number
  readonly clock?: Clock
  /** Checks the logs of convos, if it is there: `logChecks` of `mlsd-client/log-checks`. */
  readonly logChecks?: MakeLogChecks
}

/** What can go with a message. */
export interface SendOptions extends Pick<SendContent, "embedType" | "embedUri"> {
  readonly changes?: Changes
}

/** Which entries of a log. Without anything: all. */
export interface Page {
  /** At most so many. */
  readonly limit?: number
  /** Only entries before this seq. */
  readonly before?: number
  /** Only entries after this seq. */
  readonly after?: number
}

/** How much of a convo this device has. */
export interface Counts {
  readonly items: number
  /** Messages of others that can be read, after what the person has read on this device. */
  readonly unread: number
}

/** A message that is stored and will be sent. */
export interface Sending {
  /** The message's own id, which its entry of the log has too. */
  readonly id: string
  /**
   * Resolves when the service has it. Rejects with an {@link XrpcError} if it refuses it for good, or a
   * {@link SealError} if it cannot be encrypted: it is then in `outbox.refused()` too, and nobody need
   * wait here.
   */
  readonly sent: Promise<SentMessage>
}

/** So many entries are read at once to be counted. */
const countAtOnce = 1000

/** A device of a person. All its methods can be called at any time, and at the same time. */
export class Client {
  private listening = false
  private stopped = false
  private listed: Promise<void> | undefined
  private readonly streams = new Map<Did | undefined, EventStream>()
  private asked!: Requests
  private readonly consent: Consent
  private readonly laterInvitations: LaterInvitations
  private readonly signals: Signals
  private readonly disputes: Disputes
  private readonly resets: Resets
  private readonly own: OwnDevices
  private leaving: Promise<void> | undefined
  private removed = false // whether the app has heard that another device has removed this one

  private constructor(
    private readonly core: Core,
    private readonly log: Log,
    /** The writes that the service has not accepted yet. */
    readonly outbox: Outbox,
    private readonly recovery: Recovery,
    private readonly welcomes: Welcomes,
    private readonly stock: KeyPackageStock,
    private readonly events: ClientEvents,
    private readonly openSocket: OpenSocket | undefined,
    private readonly closing: AbortController,
    private readonly members: Members,
    private readonly accounts: Accounts,
    private readonly deviceName: string | undefined,
    private readonly decide: (doubt: Doubt) => Promise<boolean>,
    /** Checks that all members are shown the same log, if `ClientOptions` has it. */
    readonly logChecks: LogChecks | undefined,
    /** Messages from before this device joined: docs/clients/HISTORY.md. */
    readonly history: History,
    private readonly store: OwnedStore,
    private readonly admitsOwn: boolean,
  ) {
    this.own = new OwnDevices(core, log, outbox, accounts, closing.signal, {
      list: () => this.list(),
      admits: admitsOwn,
      join: (convo) => this.joinIfInvited(convo, async () => isPresent(await log.thread(convo))),
      entered: (convo) => this.entered(convo),
      later: (done) => this.later(done),
    })
    this.signals = new Signals(core)
    this.consent = new Consent(core)
    this.laterInvitations = new LaterInvitations(core, outbox, closing.signal, async (convo) => {
      const thread = await log.thread(convo)
      const group = thread === undefined || thread.left || thread.successor !== undefined ? undefined : await groupOf(core, convo)
      return group?.active ? group : undefined
    })
    this.disputes = new Disputes(core, log, outbox, closing.signal, {
      onDispute: (convo, dispute) => events.onDispute?.(convo, dispute),
      sync: (convo) => this.syncUnlessGone(convo),
    })
    this.resets = new Resets(core, log, outbox, {
      enter: (convo) => this.enterSuccessor(convo),
      onMoved: (convo, successor) => {
        logChecks?.reset(convo, successor)
        events.onMoved?.(convo, successor)
        this.later(this.tellWithoutDevice(successor))
      },
    })
  }

  /**
   * Opens the client of a device. It goes on with what an earlier life has not finished.
   *
   * @throws StoreOpenError if another client has the store, and is not closed
   */
  static async open(options: ClientOptions): Promise<Client> {
    const store = OwnedStore.take(options.store)
    try {
      return await Client.openWith(store, options)
    } catch (err) {
      await store.release()
      throw err
    }
  }

  private static async openWith(store: OwnedStore, options: ClientOptions): Promise<Client> {
    const { did, transport, mls: library, clock = systemClock, envelope = usualEnvelope } = options
    asDid(did)
    const events = harmless(options.events ?? {})
    const closing = new AbortController()
    const time = new ServerTime(clock, (offset) => {
      events.onClock?.(offset)
      client?.later(client.stock.again())
    })
    library.setTime?.(time.now)
    const locks = new Locks()
    const services = await Services.open({
      store, transport, others: options.services, deviceId: await sha256(library.signatureKey), clock, time, signal: closing.signal,
    })
    const api = new Api(services.transport, clock, closing.signal, (call) => services.reachOf(call))
    const devices = await Devices.open({ did, accounts: options.accounts, store, mls: library, clock, signal: closing.signal })
    const news = new NewsQueue(store, clock, (one) => {
      if ("device" in one) events.onDevice?.(one.convo, one.device)
      else if ("request" in one) events.onRequest?.(one.request)
      else if ("missing" in one) events.onMissing?.(one.convo as ConvoId, one.missing)
      else if ("without" in one) events.onWithoutDevice?.(one.convo as ConvoId, one.without)
      else events.onFinding?.(one.convo, one.finding)
    })
    const core: Core = {
      did, store, api, services, mls: library, devices, news, clock, locks, envelope, checksLogs: options.logChecks !== undefined,
    }
    let history: History | undefined // it needs the outbox, which needs the log
    const log = new Log(core, {
      onItems(convo, items) {
        events.onItems?.(convo, items)
        client?.later(history?.heard(convo, items) ?? Promise.resolve())
        if (items.some(({ change }) => change?.devices.some(isOwnLeft))) client?.later(client.listAgain())
      },
      alongside: async (convo, items, changes) => history?.alongside(convo, items, changes),
      onGroup: (convo) => members.changed(convo),
    })
    const decide = async (doubt: Doubt) => (await options.decide?.(doubt)) === true
    const members = new Members(core, log, () => outbox, closing.signal, {
      decide,
      later: (done) => client?.later(done),
    })
    const writer = new ClientWriter({ ...core, log, members, externalCommits: new ExternalCommits(core, closing.signal) })
    let client: Client | undefined
    const isOwnLeft: (one: CommitChange["devices"][number]) => boolean =
      ({ change, key }) => change === "left" && same(key, library.signatureKey)
    const onLost = (queue: string, err: Error) => client?.lost(queue, err)
    const onMoved = (queue: string, next: string) => client?.moved(lockOf(queue) as ConvoId, next as ConvoId)
    const outbox = await Outbox.open({
      store, transport: services.transport, writer, locks, clock, events: Object.assign(Object.create(events) as ClientEvents, {
        onLost, onMoved, onStop: (err: XrpcError, service?: Did) => client?.onStop(err, service),
      }),
      serviceOf: (convo) => services.of(convo), reachOf: (convo) => services.at(services.of(convo)).reach,
      now: time.now,
    })
    history = new History(core, outbox, events, closing.signal)
    client = new Client(
      core, log, outbox, new Recovery(core, log, outbox, closing.signal),
      new Welcomes(core, (convo, state) => events.onWelcome?.(convo, state)),
      new KeyPackageStock(core, outbox, options.fullStock), events, options.openSocket, closing,
      members, options.accounts, options.deviceName, decide, options.logChecks?.(core, {
        onFinding: (convo, finding) => events.onFinding?.(convo as ConvoId, finding), onFailure: (err) => events.onFailure?.(err),
      }), history, store, options.admitOwnDevices ?? true)
    globalThis.addEventListener?.("online", () => client?.online(), { signal: closing.signal })
    const opened = client
    opened.asked = await Requests.open(core, {
      log, outbox, enter: (convo) => opened.enterAccepted(convo), join: (convo, isIn) => opened.joinUnless(convo, isIn),
      entered(service) {
        opened.follow(service)
        opened.later(opened.signals.shareAt(service))
      },
      ended: (convo) => opened.ended(convo),
      later: (done) => opened.later(done),
    })
    await client.begin()
    return client
  }

  private async begin(): Promise<void> {
    await this.core.news.deliver()
    this.outbox.resume()
    if (await this.own.isSigningOut()) return this.later(this.signOut())
    this.later(this.members.begin())
    await this.goOn()
  }

  // goOn takes up what is not finished: at the start, and after a stop.
  private async goOn(): Promise<void> {
    this.later(this.list())
    await this.own.resume()
    const threads = await this.convos()
    await this.history.resume(threads.map(({ convoId }) => convoId))
    for (const thread of threads) {
      if (thread.successor !== undefined) continue
      if (thread.resetTo !== undefined) this.moved(thread.convoId, thread.resetTo)
      else if (isStuck(thread)) this.later(this.disputes.comeBack(thread.convoId))
      else if (thread.lost || thread.stuck) this.lost(thread.convoId, new OutOfStepError("the server has lost writes"))
    }
    for (const service of this.core.services.others()) this.later(this.signals.shareAt(service))
    for (const former of this.core.services.leaving) this.later(this.leaveHome(former))
    const successors = new Set(threads.map(({ resetTo }) => resetTo))
    for (const { convoId, service, declined } of this.core.services.convos()) {
      if (successors.has(convoId)) continue // it needs no invitation
      if (declined) this.later(this.asked.refuse(convoId))
      else if ((await this.log.thread(convoId)) === undefined) this.later(this.asked.enterElsewhere(convoId, service))
    }
    this.asked.resume()
    this.later(this.laterInvitations.run())
  }

  /** Ends everything, and leaves the store open for another client. What is not done waits for the next life. */
  async close(): Promise<void> {
    const closed = this.outbox.close() // first: what the abort ends is no failure of a write
    this.closing.abort()
    await Promise.all([...this.streams.values()].map((stream) => stream.close()))
    await closed
    await this.logChecks?.idle()
    await this.history.idle()
    await this.store.release()
  }

  /** The way to the services: a call with a convo goes to the convo's service. For {@link Attachments}, and other calls. */
  get transport(): Transport {
    return this.core.api.transport
  }

  /** This device's id, for `registerPushTarget`. */
  deviceId(): Promise<string> {
    return deviceIdOf(this.core)
  }

  // Convos

  /**
   * Makes a convo, and returns its id. Who has no KeyPackages is invited later: {@link Client.missing}.
   *
   * @throws LexValidationError if an argument breaks the lexicon: nothing is stored then. That holds
   *   for all methods
   * @throws XrpcError `KeyPackageNotFound` if nobody has one for this person
   */
  async createConvo(members: readonly Did[], metadata: { name?: string; description?: string } = {}): Promise<ConvoId> {
    await this.list()
    const groupId = this.newId()
    const content: CreateContent = { groupId, members, claim: this.newId(), ...metadata }
    const { convoId } = (await this.write(`create:${groupId}`, "create", content)) as { convoId: ConvoId }
    await this.tellMissing()
    return convoId
  }

  /** The convos that this device has joined, and those that it has left. */
  convos(): Promise<Thread[]> {
    return getAll<Thread>(this.core.store, names.threads)
  }

  /** The MLS group behind a convo, as this device has it. */
  async group(convo: ConvoId): Promise<Group> {
    return this.core.mls.describe(await mustRead(this.core.store, names.group(convo)))
  }

  /**
   * The code of a convo's group at the epoch that this device is in. Members compare it: docs/clients/RECIPES.md.
   *
   * @throws UnknownConvoError if this device is in no such convo
   */
  async groupCode(convo: ConvoId): Promise<GroupCode> {
    const thread = await this.log.thread(convo)
    const group = thread === undefined || thread.left ? undefined : await this.group(convo)
    if (!group?.active) throw new UnknownConvoError(`this device is not in convo ${convo}`)
    return groupCode(group)
  }

  /** The people of a convo who have no device in its group, and have not left: `onWithoutDevice`. */
  async withoutDevice(convo: ConvoId): Promise<Did[]> {
    const { convo: { members } } = await this.core.api.query(mls.getConvo.main, { convoId: convo })
    const [people, thread] = [peopleOf(await this.group(convo)), await this.log.thread(convo)]
    const away = members.map(({ did }) => did as Did).filter((did) => !people.includes(did))
    return [...new Set([...(thread?.withoutDevice ?? []), ...away])]
  }

  private async tellWithoutDevice(convo: ConvoId): Promise<void> {
    const changes: Changes = new Map()
    this.core.news.add(changes, ...(await this.withoutDevice(convo)).map((did) => ({ convo, without: did })))
    await this.core.store.write(changes)
    await this.core.news.deliver()
  }

  /**
   * Adds people. Who has no KeyPackages is invited later: {@link Client.missing}. With `again` it replaces the
   * leaves of people that never joined.
   *
   * @throws XrpcError `KeyPackageNotFound` if nobody has one for this person
   */
  async add(convo: ConvoId, dids: readonly Did[], again = false): Promise<Committed> {
    const content: AddContent = { dids, claim: this.newId(), ...(again && { again }) }
    await this.removeGone(convo, dids)
    const committed = (await this.write(convo, "add", content)) as unknown as Committed
    await this.tellMissing()
    return committed
  }

  // removeGone removes the leaves of people who have left, before they are added again: MLS has one leaf for a key.
  private async removeGone(convo: ConvoId, dids: readonly Did[]): Promise<void> {
    const there = peopleIn(await groupOf(this.core, convo))
    for (const did of dids.filter((one) => one !== this.core.did && there.includes(one))) {
      const { write, settled } = await this.outbox.add(convo, "remove", { did, gone: true })
      settled.catch((err: unknown) => {
        if (!(err instanceof DiscardedError)) this.later(this.outbox.discard(write.id)) // the addition says why
      })
    }
  }

  /** Who could not be invited to a convo yet, and is invited later: until {@link Client.remove}, and for 30 days. */
  missing(convo: ConvoId): Promise<Missing[]> {
    return this.laterInvitations.in(convo)
  }

  private async tellMissing(): Promise<void> {
    this.laterInvitations.look()
    await this.core.news.deliver()
  }

  /** Removes a person with all its devices. */
  async remove(convo: ConvoId, did: Did): Promise<Committed> {
    return (await this.write(convo, "remove", { did })) as unknown as Committed
  }

  /** Renews this device's keys in the group. */
  async update(convo: ConvoId): Promise<Committed> {
    return (await this.write(convo, "update", {})) as unknown as Committed
  }

  /** Leaves a convo, and blocks who invited this person if `block` is set. */
  async leave(convo: ConvoId, block = false): Promise<void> {
    await this.retire(convo)
    await this.write(convo, "leave", { block })
    this.unfollow(convo)
  }

  // retire proposes to remove the leaves of this person: so the others see that it leaves, whatever the
  // service says. If that fails, they must ask its account.
  private async retire(convo: ConvoId): Promise<void> {
    const group = await groupOf(this.core, convo)
    const own = group?.members.filter(({ identity }) => didOf(identity) === this.core.did) ?? []
    if (own.length === group?.members.length) return // nobody is there who could see it, and the last member cannot leave
    for (const { signatureKey } of own) {
      const { write, settled } = await this.outbox.add(convo, "retire", { device: hex(signatureKey) })
      settled.catch((err: unknown) => {
        if (!(err instanceof DiscardedError)) this.later(this.outbox.discard(write.id))
      })
    }
  }

  /** Comes back into a convo of this person by an external commit. */
  async rejoin(convo: ConvoId): Promise<void> {
    await this.list()
    await this.write(rejoinQueue(convo), "rejoin", { convoId: convo })
    await this.settle(convo)
  }

  // settle judges the members of a convo that this device has entered, and reads it.
  private async settle(convo: ConvoId): Promise<void> {
    this.members.changed(convo)
    await this.sync(convo)
  }

  // entered tells the app that this device is in a convo of its person.
  private async entered(convo: ConvoId): Promise<void> {
    this.events.onJoined?.(convo)
    await this.settle(convo)
  }

  /**
   * Replaces a group that is beyond repair, and returns the convo that goes on. It is not for a device that
   * lost its state: {@link Client.rejoin}. The new group has a device of every member who has a KeyPackage; the
   * others enter it by external commit. If another member was faster, its successor is returned.
   *
   * @param reason `forked`, `undecryptable`, `compromised`, `suite` or `other`: all members see it
   */
  reset(convo: ConvoId, reason: string): Promise<ConvoId> {
    return this.resets.make(convo, reason)
  }

  /**
   * Goes on in what the service says is the successor of a convo, though its members have not made it, as far
   * as MLS shows (a finding with `what: "successor"`). Ask the person first.
   */
  moveTo(convo: ConvoId, successor: ConvoId): Promise<void> {
    return this.resets.moveTo(convo, successor)
  }

  // Messages

  /**
   * Stores a message, and sends it as soon as it can. When it returns, the message cannot get lost: it
   * arrives, or it is in `outbox.refused()`. If it rejects, nothing is stored.
   *
   * @throws UnknownConvoError if this device is in no such convo
   * @param options.changes records of the app that are stored in the same step, under names that begin
   *   with `app/`: for example, that the draft is gone. So a crash cannot make the app send it twice.
   */
  async send(convo: ConvoId, content: Uint8Array, options: SendOptions = {}): Promise<Sending> {
    const { changes = new Map(), ...embed } = options
    for (const name of changes.keys()) {
      if (!name.startsWith("app/")) throw new TypeError(`the record ${name} of the app must begin with app/`)
    }
    const id = this.newId()
    const body: SendContent = { id, content, ...embed }
    const { settled } = await this.outbox.add(convo, "send", body as unknown as LexValue, new Map(changes))
    settled.then(() => this.logChecks?.soon(convo), () => {}) // the caller hears why it failed
    return { id, sent: settled as unknown as Promise<SentMessage> }
  }

  /**
   * The entries of a convo's log that this device has read, the oldest first: all, or a page. A page has the last
   * entries, or with `after` the first.
   */
  async items(convo: ConvoId, { limit, before = Infinity, after }: Page = {}): Promise<Item[]> {
    const from = (after ?? 0) + 1
    if (before <= from || (limit !== undefined && limit < 1)) return []
    return getRange<Item>(this.core.store, {
      from: names.item(convo, from), to: before === Infinity ? endOf(names.items(convo)) : names.item(convo, before - 1),
      ...(limit !== undefined && { limit, last: after === undefined }),
    })
  }

  /** Counts the entries of a convo's log that this device has read, and the messages that the person has not: see {@link markRead}. */
  async counts(convo: ConvoId): Promise<Counts> {
    const { store, did } = this.core
    const items = await store.count({ from: names.items(convo), to: endOf(names.items(convo)) })
    let [unread, after] = [0, await this.readUpTo(convo)]
    for (let page: Item[]; (page = await this.items(convo, { after, limit: countAtOnce })).length > 0; after = page.at(-1)!.seq) {
      unread += page.filter(({ kind, state, sender }) => kind === "application" && state === "read" && sender !== did).length
    }
    return { items, unread }
  }

  /** What this device has read and the server has lost, until it comes back. */
  lostItems(convo: ConvoId): Promise<Item[]> {
    return getAll<Item>(this.core.store, names.loose(convo))
  }

  /** Forgets the entries of a convo up to a seq, when the app has them in a store of its own. */
  async forget(convo: ConvoId, upTo: number): Promise<void> {
    const last = names.item(convo, upTo)
    const old = (await this.core.store.list(names.items(convo))).filter((name) => name <= last)
    await this.core.store.write(new Map(old.map((name) => [name, undefined])))
  }

  /**
   * Reads a convo's log to its end, and asks the accounts of devices that are new in it. It waits for the
   * answers, if they come.
   */
  async sync(convo: ConvoId): Promise<void> {
    await this.read(convo)
    await this.members.settled(convo)
  }

  private async read(convo: ConvoId): Promise<void> {
    try {
      const [thread, lacks] = await this.core.locks.run(lockOf(convo), async () => {
        const read = await this.log.read(convo)
        return [read, !read.left && (await this.outbox.kept.lacks(convo, read.entered))] as const
      })
      if (thread.lost || lacks) this.lost(convo, new OutOfStepError("the server has lost writes"))
      this.logChecks?.soon(convo)
      if (thread.successor === undefined && !thread.left) {
        const successor = await this.resets.look(thread)
        if (successor !== undefined) this.moved(convo, successor)
      }
    } catch (err) {
      if (err instanceof OutOfStepError || isLost(err)) this.lost(convo, err as Error)
      else throw err
    }
  }

  /** Reads all convos, and joins those whose Welcomes wait. It waits for services that are away. */
  async syncAll(): Promise<void> {
    await Promise.all([undefined, ...this.core.services.others()].map((service) => this.syncAt(service)))
  }

  private async syncAt(service: Did | undefined): Promise<void> {
    await this.joinAll(service)
    if (service === undefined && this.admitsOwn) this.later(this.own.enterAll())
    for (const thread of await this.convos()) {
      if (this.core.services.of(thread.convoId) !== service) continue
      if (!thread.left && thread.successor === undefined) await this.syncUnlessGone(thread.convoId)
    }
  }

  /** Stores that this person has read a convo up to a seq, and tells the server. */
  async markRead(convo: ConvoId, seq: number): Promise<void> {
    await this.core.locks.run(names.readUpTo(convo), async () => {
      const changes: Changes = new Map()
      put(changes, names.readUpTo(convo), { seq })
      if (seq > (await this.readUpTo(convo))) await this.core.store.write(changes)
    })
    await this.moveCursor(convo, { seq })
  }

  private async readUpTo(convo: ConvoId): Promise<number> {
    return (await get<{ seq: number }>(this.core.store, names.readUpTo(convo)))?.seq ?? 0
  }

  /** Tells the server that this device has got a convo's log up to a seq. */
  async markDelivered(convo: ConvoId, seq: number): Promise<void> {
    await this.moveCursor(convo, { seq: 0, delivered: seq })
  }

  private async moveCursor(convo: ConvoId, position: Position): Promise<void> {
    if (await this.disputes.moveCursor(convo, position)) this.later(this.disputes.compare(convo))
  }

  // Signals and cursors

  /**
   * Says something to the members who are connected now, such as that this person types. It is
   * encrypted as a message is. Nobody keeps it, and it can get lost. Returns whether the server passes
   * it on: false if it is busy, or if this device has sent many since its last message.
   */
  signal(convo: ConvoId, content: Uint8Array): Promise<boolean> {
    return this.signals.send(convo, content)
  }

  /**
   * Says who sees how far this person has read: nobody, or the members who share theirs too. When it returns,
   * the person's own service knows it. The others hear it as soon as they can, also those of later convos.
   */
  async shareCursors(withWhom: "nobody" | "members"): Promise<void> {
    await this.signals.share(withWhom)
    for (const service of this.core.services.others()) this.later(this.signals.shareAt(service))
  }

  /** How far the members are who share their cursors, if this person shares its own. */
  cursors(convo: ConvoId): Promise<MemberCursor[]> {
    return this.signals.cursors(convo)
  }

  // Joining

  /**
   * Joins a convo that this person was added to, unless this device is in its group. If the Welcome is of no
   * use, it comes back by an external commit.
   *
   * @throws WelcomeLostError if that is not possible either
   */
  join(convo: ConvoId): Promise<void> {
    return this.joinUnless(convo, async () => {
      await this.readIfIn(convo)
      return this.isIn(convo)
    })
  }

  // isIn reports whether this device is in a convo's group, and has nothing to finish.
  private async isIn(convo: ConvoId): Promise<boolean> {
    const thread = await this.log.thread(convo)
    const unfinished = (await this.core.store.read(names.welcome(convo))) !== undefined
    return thread !== undefined && !thread.left && !thread.stuck && !thread.lost && !unfinished
  }

  // joinUnless joins, unless something else has put this device into the convo in the meantime.
  private async joinUnless(convo: ConvoId, isIn: () => Promise<boolean>): Promise<void> {
    try {
      const was = await this.core.locks.run(lockOf(convo), async () => {
        const is = await isIn()
        if (!is) await this.readIfIn(convo)
        if (!is) await this.welcomes.join(convo)
        return is
      })
      if (was) return
    } catch (err) {
      if (!(err instanceof WelcomeLostError)) throw err
      await this.comeBack(convo, err)
    }
    await this.entered(convo)
  }

  // readIfIn reads the log of a group that this device has: a commit can have removed the device from it.
  private async readIfIn(convo: ConvoId): Promise<void> {
    const thread = await this.log.thread(convo)
    const unfinished = (await this.core.store.read(names.welcome(convo))) !== undefined
    if (thread === undefined || unfinished || thread.left || thread.stuck || thread.lost) return
    await this.log.read(convo).catch((err: unknown) => {
      if (!(err instanceof OutOfStepError) && !isRefusal(err)) throw err
    })
  }

  private async comeBack(convo: ConvoId, lost: WelcomeLostError): Promise<void> {
    try {
      await this.rejoin(convo)
      await this.core.store.write(new Map([[names.welcome(convo), undefined]]))
    } catch (err) {
      this.events.onWelcomeLost?.(convo, lost)
      throw new WelcomeLostError(lost.message, { cause: err })
    }
  }

  // joinAll joins what an earlier life has begun to join, and the convos that this device is not in. Of
  // another service those alone whose invitations were accepted.
  private async joinAll(service: Did | undefined): Promise<void> {
    const joined = new Set((await this.convos()).filter(({ left }) => !left).map(({ convoId }) => convoId))
    const isHere = (convo: ConvoId) => this.core.services.of(convo) === service
    const waiting = new Set((await this.welcomes.unfinished()).filter(isHere))
    if (service !== undefined) {
      for (const convo of waiting) await this.joinIfInvited(convo)
      return
    }
    for (const convo of await this.asked.read()) {
      if (!joined.has(convo) && isHere(convo)) waiting.add(convo)
    }
    await this.asked.enterAccepted()
    for (const convo of waiting) {
      if (!this.asked.waits(convo) && !this.asked.isAccepted(convo)) await this.joinIfInvited(convo, () => this.hasJoined(convo))
    }
  }

  private async joinIfInvited(convo: ConvoId, isIn = async () => false): Promise<void> {
    try {
      await this.joinUnless(convo, isIn)
    } catch (err) {
      if (!(err instanceof WelcomeLostError) && !(err instanceof ContraryError) && !isRefusal(err)) throw err
    }
  }

  // Requests

  /**
   * What waits for this person's answer, the newest first: convos that people invite to who share no convo with
   * this person, and convos of other services. {@link Client.syncAll} and {@link Client.listen} look for them.
   */
  async requests(): Promise<ConvoRequest[]> {
    return this.asked.list()
  }

  /**
   * Accepts a request. When it returns, that is stored. Then this device joins, also if its Welcome is too old.
   *
   * @throws UnknownConvoError if the convo waits for no answer, and this device is not in it
   * @throws Error if the convo's id is that of a convo elsewhere, or there are no `services`
   */
  accept(convo: ConvoId): Promise<Accepted> {
    return this.asked.accept(convo)
  }

  /**
   * Declines a request: it waits no more, and the person is off the convo's roster as soon as its service
   * hears it. The promise waits for the person's own service.
   *
   * @param options.block set to block who has invited this person, too
   * @throws UnknownConvoError if the convo waits for no answer
   */
  async decline(convo: ConvoId, { block = false }: { block?: boolean } = {}): Promise<void> {
    const request = this.asked.list().find(({ convoId }) => convoId === convo)
    await this.asked.decline(convo, block)
    if (block && request?.service !== undefined) await this.block(request.invitedBy)
  }

  /** Who may invite this person. */
  invitationPolicy(): Promise<InvitationPolicy> {
    return this.consent.policy()
  }

  /** Says who may invite this person. When it returns, the person's own service knows it. The others hear it as soon as they can. */
  async setInvitationPolicy(policy: InvitationPolicy): Promise<void> {
    await this.everywhere((service) => this.consent.setPolicy(policy, service))
  }

  /** The people whom this person has blocked. */
  blocks(): Promise<Did[]> {
    return this.consent.blocks()
  }

  /**
   * Blocks somebody: they cannot invite this person, and do not learn of it. Their requests end. Convos that both
   * are in stay. When it returns, the person's own service knows it.
   */
  async block(did: Did): Promise<void> {
    await this.everywhere((service) => this.consent.block(did, service))
    await this.asked.read()
  }

  async unblock(did: Did): Promise<void> {
    await this.everywhere((service) => this.consent.unblock(did, service))
  }

  private async everywhere(tell: (service: Did | undefined) => Promise<void>): Promise<void> {
    await tell(undefined)
    for (const service of this.core.services.others()) this.later(tell(service))
  }

  // enterAccepted enters a convo of the own service that was accepted. A Welcome that waited for too long is not
  // there any more, and devices without one have none: they enter by external commit.
  private async enterAccepted(convo: ConvoId): Promise<void> {
    const thread = await this.log.thread(convo)
    if (thread !== undefined && !thread.left) await this.syncUnlessGone(convo) // its removal can be there to read
    await this.joinOrRejoin(convo, () => this.hasJoined(convo))
  }

  // ended notes that this person has left a convo, or was removed, before an invitation. This device may not have
  // read that: a log begins anew with the invitation.
  private ended(convo: ConvoId): Promise<void> {
    return this.core.locks.run(lockOf(convo), async () => {
      await this.log.read(convo).catch(() => {}) // what it cannot read any more is gone
      const thread = await this.log.thread(convo)
      if (thread !== undefined && !thread.left) await this.log.save({ ...thread, left: true })
    })
  }

  // hasJoined reports whether this device is in a convo, and nothing of its Welcome is left to do.
  private async hasJoined(convo: ConvoId): Promise<boolean> {
    const thread = await this.log.thread(convo)
    return thread !== undefined && !thread.left && !thread.stuck && (await this.core.store.read(names.welcome(convo))) === undefined
  }

  private async joinOrRejoin(convo: ConvoId, isIn: () => Promise<boolean>): Promise<void> {
    try {
      await this.joinUnless(convo, isIn)
    } catch (err) {
      if (errorName(err) !== "WelcomeNotFound") throw err
      await this.rejoin(convo)
      this.events.onJoined?.(convo)
    }
  }

  // Other services

  /**
   * Says in this person's repository that its KeyPackages are at its own service, so that people of other
   * services find them.
   *
   * @param pds the person's session at its PDS; with OAuth, one with the permission set `authFull`
   */
  async publishProfile(pds: PdsAgent): Promise<void> {
    const { did, clock, services: { home } } = this.core
    if (home === undefined) throw new Error("the client does not know its service's DID: pass `services`")
    const collection = mls.profile.$nsid
    const record = { $type: collection, deliveryService: home, createdAt: new Date(clock.now()).toISOString() }
    await textOf(await pds.fetchHandler("/xrpc/com.atproto.repo.putRecord", {
      method: "POST", headers: { "content-type": "application/json" },
      body: JSON.stringify({ repo: did, collection, rkey: "self", record }),
    }))
  }

  /**
   * Makes another service this person's own. It publishes KeyPackages there, then says so in the person's
   * repository, then withdraws those at the old one. Convos stay where they are. Open invitations at the old one
   * are told once more. When it returns, all is done that needs the new one; the old one hears it as soon as it
   * can. After an error call it again.
   *
   * From now on `ClientOptions` can have either service as `home`, with its transport: the store knows better.
   *
   * @param pds as for {@link publishProfile}
   */
  async moveHome(service: Did, pds: PdsAgent): Promise<void> {
    const { services } = this.core
    await services.at(asDid(service)).queryOnce(mls.getKeyPackageStats.main, {}) // it can be reached, and takes this person
    if (this.outbox.pending().some(({ queue }) => queue.startsWith("create:"))) throw new Error("a convo is being made: it belongs to the old home")
    const streams = [...this.streams.values()]
    this.streams.clear()
    await Promise.all(streams.map((stream) => stream.close()))
    await services.moveHome(service)
    if (this.listening) this.listen()
    await this.replenish()
    await this.publishProfile(pds)
    this.later(this.signals.shareAt(service))
    for (const former of services.leaving) this.later(this.leaveHome(former))
  }

  // leaveHome takes what belongs to this device from a former home. A later life repeats it.
  private async leaveHome(former: Did): Promise<void> {
    const { services } = this.core
    const api = services.at(former)
    await this.stock.withdrawAt(api)
    for (const convo of await this.asked.readAt(former)) {
      if (services.of(convo) !== undefined || (await this.log.thread(convo)) !== undefined) continue
      await services.place({ convoId: convo, service: former })
      this.later(this.asked.enterElsewhere(convo, former))
    }
    await services.left(former)
  }

  // Roles

  /** The admins of a convo, as its service reports. They remove people, and name the convo. */
  async admins(convo: ConvoId): Promise<Did[]> {
    const { convo: view } = await this.core.api.query(mls.getConvo.main, { convoId: convo })
    return view.members.filter(({ isAdmin }) => isAdmin === true).map(({ did }) => asDid(did))
  }

  /**
   * Makes a member an admin. Only admins may.
   *
   * @throws XrpcError `NotPermitted`, if this person is no admin
   */
  async promoteAdmin(convo: ConvoId, did: Did): Promise<void> {
    const input = withIdempotencyKey({ convoId: convo, did }, this.core.clock)
    await this.core.api.procedure(mls.promoteAdmin.main, input)
  }

  /**
   * Makes an admin a member again. An admin may do it to itself.
   *
   * @throws XrpcError `NotPermitted`, if this person is no admin, or `did` is the last one
   */
  async demoteAdmin(convo: ConvoId, did: Did): Promise<void> {
    const input = withIdempotencyKey({ convoId: convo, did }, this.core.clock)
    await this.core.api.procedure(mls.demoteAdmin.main, input)
  }

  /**
   * Changes the name or the description, which the service can read. What is absent stays, and an empty text
   * removes it. Only admins may.
   */
  async updateConvo(convo: ConvoId, metadata: { readonly name?: string; readonly description?: string }): Promise<void> {
    const input = withIdempotencyKey({ convoId: convo, metadata }, this.core.clock)
    await this.core.api.procedure(mls.updateConvo.main, input)
  }

  /**
   * Says whether the Welcomes that this person has sent have arrived, as the service reports: one for each device that it has
   * added, the oldest first. `consumed` means that the device has joined.
   */
  invited(convo: ConvoId): Promise<InvitedDevice[]> {
    return this.welcomes.invited(convo)
  }

  /**
   * Lists this device in its account's repository, and publishes KeyPackages if it needs more. Returns how
   * many.
   *
   * @throws NoAnswerError if the device has never been listed, and the account's PDS cannot be reached
   * @throws XrpcError if the service takes none of them
   */
  async replenish(): Promise<number> {
    await this.list()
    return this.stock.keep()
  }

  // replenishOrTell does not fail by a refusal: the event that has asked for KeyPackages would come for ever.
  private async replenishOrTell(): Promise<void> {
    try {
      await this.replenish()
    } catch (err) {
      if (!isRefusal(err)) throw err
      this.events.onFailure?.(err)
    }
  }

  // list writes this device's record if it is not there, once in a life of the client. Others use no device
  // without one.
  private list(): Promise<void> {
    this.listed ??= this.listNow().catch((err: unknown) => {
      this.listed = undefined
      throw err
    })
    return this.listed
  }

  // listAgain asks the account about this device, which a commit has removed: its record can be gone.
  private listAgain(): Promise<void> {
    this.listed = undefined
    return this.list()
  }

  private async listNow(): Promise<void> {
    const { mls: library, store, did } = this.core
    if (await this.own.isSigningOut()) throw new SignedOutError("this device is signing out")
    const before = await store.read(names.listed)
    try {
      if (before !== undefined && !(await this.accounts.lists(did, library.signatureKey, this.closing.signal))) {
        if (!this.removed) this.events.onSignedOut?.("removed")
        this.removed = true
        throw new SignedOutError("the account does not list this device any more")
      }
      await this.accounts.list({ key: library.signatureKey, cipherSuite: library.cipherSuite, ...(this.deviceName !== undefined && { name: this.deviceName }) })
      if (before === undefined) await store.write(new Map([[names.listed, new Uint8Array()]]))
    } catch (err) {
      if (before === undefined || !(err instanceof NoAnswerError || err instanceof AccountAwayError)) throw err
    }
  }

  /**
   * The devices of this person: those that its account lists, those that have KeyPackages at its own service, and
   * those with a leaf in a convo of this device.
   *
   * @throws AccountAwayError
   */
  devices(): Promise<OwnDevice[]> {
    return this.own.list()
  }

  /**
   * Removes another device of this person: its record, its leaves in all convos of this device, its KeyPackages,
   * push targets and sessions. When it returns, all is done. A later life of the client goes on with it, and it
   * can be repeated.
   *
   * @throws OwnDeviceError if it is this device: {@link Client.signOut}
   */
  removeDevice(deviceId: string): Promise<void> {
    return this.own.remove(deviceId)
  }

  /**
   * Signs this device out: the same as {@link Client.removeDevice} for itself. Then the client is closed, and its
   * store is empty. What waits in the outbox is lost. Other devices of the person commit that its leaves go, or
   * other members do; with the last device its person leaves all convos. A later life of the client goes on with it.
   */
  signOut(): Promise<void> {
    this.leaving ??= this.signOutNow().catch((err: unknown) => {
      this.leaving = undefined
      throw err
    })
    return this.leaving
  }

  private async signOutNow(): Promise<void> {
    await this.own.signOut()
    await this.close()
    await this.store.end()
    this.events.onSignedOut?.("done")
  }

  /**
   * The safety number of this person and another one, of the devices that both accounts list now. People compare
   * it by another way. It changes when a device is listed or goes.
   *
   * @throws AccountAwayError
   * @throws CodeError if one of them lists no device
   */
  async safetyNumber(did: Did): Promise<SafetyNumber> {
    const [own, other] = await Promise.all([this.accounts.keys(this.core.did), this.accounts.keys(did)])
    return safetyNumber(this.core.did, own, did, other)
  }

  // The event stream

  /**
   * Follows the event streams, one of each service: the client reads, joins and publishes what their
   * events ask for. The app hears all of them in one place.
   */
  listen(): void {
    this.listening = true
    this.follow(undefined)
    this.later(this.followAll())
  }

  private async followAll(): Promise<void> {
    for (const { convoId, left } of await this.convos()) {
      const service = this.core.services.of(convoId)
      if (service !== undefined && !left) this.follow(service)
    }
  }

  private follow(at: Did | undefined): void {
    const service = at === this.core.services.home ? undefined : at
    if (!this.listening || this.closing.signal.aborted || this.streams.has(service)) return
    const core = { ...this.core, api: this.core.services.at(service) }
    const stream = new EventStream(core, {
      onEvent: (event) => this.onEvent(event, service),
      onMissing: () => this.syncAt(service),
      onSignal: async (signal) => {
        if (this.core.services.of(signal.convoId) === service) await this.onSignal(signal)
      },
      onConnect: () => (service ? this.events.onService?.(service) : this.events.onConnect?.()),
      onReconnect: (err) => (service ? this.events.onService?.(service, err) : this.events.onReconnect?.(err)),
      onStop: (err) => err instanceof XrpcError && this.onStop(err, service),
    }, this.openSocket, service && names.cursorAt(service))
    this.streams.set(service, stream)
    stream.start()
  }

  // unfollow ends the event stream of a convo's service, if it is another one than the person's own, and this
  // device is in no convo there any more.
  private unfollow(convo: ConvoId): void {
    const service = this.core.services.of(convo)
    if (service !== undefined) this.later(this.unfollowAt(service))
  }

  private async unfollowAt(service: Did): Promise<void> {
    const threads = new Map((await this.convos()).map((thread) => [thread.convoId, thread]))
    const isOver = ({ convoId, declined }: Elsewhere) => {
      const thread = threads.get(convoId)
      return declined || thread?.left || thread?.successor !== undefined
    }
    if (!this.core.services.convos().every((one) => one.service !== service || isOver(one))) return
    const stream = this.streams.get(service)
    this.streams.delete(service)
    await stream?.close()
  }

  /**
   * Tries everything again at once: the network is back, the app is shown again, a user asks, or the account may
   * use the service again after `onStop`.
   */
  resume(): void {
    this.outbox.resume()
    for (const stream of this.streams.values()) stream.reconnect()
    if (this.stopped) this.later(this.goOn())
    this.stopped = false
  }

  // online connects again what was connected by another network, and ends the waits for services.
  private online(): void {
    this.core.services.giveSigns()
    for (const stream of this.streams.values()) if (!stream.stopped) stream.reconnect()
  }

  private onStop(err: XrpcError, service: Did | undefined): void {
    this.stopped = true
    this.events.onStop?.(err, service)
  }

  private async onEvent(event: StreamEvent, service: Did | undefined): Promise<void> {
    if (!this.mayTell(event, service)) return
    if (service === undefined && (await this.asked.take(event)) === "accepted") {
      await this.joinIfInvited(convoOf(event))
    }
    await this.enterOwn(event)
    switch (event.type) {
      case "messageEvent":
        await this.reach(of(event.body.message), event.body.message.seq)
        break
      case "commitEvent":
        await this.reach(of(event.body), event.body.seq)
        break
      case "membershipEvent":
        await this.onMembership(of(event.body), event.body.did, event.body.commitNeeded === true)
        break
      case "welcomeEvent":
        if (event.body.deviceId === (await this.deviceId())) await this.onWelcome(of(event.body), event.body.keyPackageRef)
        break
      case "disputeEvent":
        await this.reach(of(event.body), event.body.seq)
        this.later(this.disputes.take(of(event.body), event.body))
        break
      case "keyPackagesEvent":
        if (event.body.deviceId === (await this.deviceId())) await this.replenishOrTell()
        break
      case "resetEvent":
        await this.reach(of(event.body), event.body.seq)
        if (event.body.successorConvoId) this.moved(of(event.body), event.body.successorConvoId as ConvoId)
        break
      case "arrivalEvent":
        this.events.onArrived?.(of(event.body), event.body.did, event.body.state)
        break
      case "invitationEvent":
        if (event.body.deviceId === (await this.deviceId())) await this.asked.takeInvitation(event.body)
        break
    }
    this.events.onEvent?.(event)
  }

  // enterOwn lets this device enter a convo of its person that another device has made, or was added to.
  private async enterOwn({ type, body }: StreamEvent): Promise<void> {
    const says = type === "messageEvent" || type === "commitEvent" || (type === "membershipEvent" && body.change === "joined")
    if (!says || !this.admitsOwn || body.request) return
    const convo = of(type === "messageEvent" ? body.message : body)
    if ((await this.log.thread(convo)) === undefined) this.later(this.own.enter(convo))
  }

  // mayTell reports whether a service speaks of what is its own: of its convos, and the person's own
  // service of KeyPackages and invitations.
  private mayTell(event: StreamEvent, service: Did | undefined): boolean {
    const { services } = this.core
    if (event.type === "keyPackagesEvent") return service === undefined
    if (event.type === "invitationEvent") return service === undefined || services.former.includes(service)
    const { convoId } = event.type === "messageEvent" ? event.body.message : event.body
    return this.core.services.of(convoId) === service
  }

  private async onSignal(signal: SignalEvent): Promise<void> {
    if (signal.type === "cursorEvent") return this.events.onCursors?.(signal.convoId, signal.cursors)
    const read = await this.signals.read(signal.convoId, signal.payload)
    if (read !== undefined) this.events.onSignal?.(signal.convoId, read.did, read.content)
  }

  // onWelcome joins, unless the device has joined with this Welcome: the event can come again, and the
  // device can have found the convo by itself.
  private async onWelcome(convo: ConvoId, ref: string | undefined): Promise<void> {
    if (this.asked.has(convo)) return this.events.onWelcome?.(convo, "available")
    await this.asked.settled(convo)
    const isIn = async () => {
      const thread = await this.log.thread(convo)
      const unfinished = (await this.core.store.read(names.welcome(convo))) !== undefined
      return thread !== undefined && !thread.left && !thread.stuck && !unfinished && ref !== undefined && ref === thread.joinedWith
    }
    if (await isIn()) return
    this.events.onWelcome?.(convo, "available")
    await this.joinIfInvited(convo, isIn)
  }

  // reach reads a convo's log, if it is not read up to a seq yet.
  private async reach(convo: ConvoId, seq: number): Promise<void> {
    const thread = await this.log.thread(convo)
    if (thread !== undefined && !thread.left && thread.cursor < seq) await this.syncUnlessGone(convo)
  }

  private async onMembership(convo: ConvoId, did: string, commitNeeded: boolean): Promise<void> {
    if ((await this.log.thread(convo)) === undefined) return
    await this.syncUnlessGone(convo)
    if (commitNeeded && did !== this.core.did) this.later(this.removeIfGone(convo, did as Did))
  }

  // removeIfGone removes a person who has left, as the service says, if the person or its account says so too:
  // by proposals to remove its own leaves, or because it has ended. Otherwise it asks the app: who has declined
  // an invitation has no leaf to say it with. All members try it. One commit wins, and the others find nothing
  // left to do.
  private async removeIfGone(convo: ConvoId, did: Did): Promise<void> {
    const [thread, group] = [await this.log.thread(convo), await groupOf(this.core, convo)]
    const leaves = group?.active ? group.members.filter(({ identity }) => didOf(identity) === did) : []
    if (thread === undefined || leaves.every(({ signatureKey }) => thread.leaving?.includes(hex(signatureKey)))) return
    const isGone = (await this.accounts.hasEnded(did, this.closing.signal)) || (await this.decide({ convo, did, why: "left" }))
    if (isGone) return void (await this.outbox.add(convo, "remove", { did }))
    await tellContrary(this.core, convo, "removal", `convo ${convo}: the service says that ${did} has left, and ${did} has not said so`)
  }

  private async syncUnlessGone(convo: ConvoId): Promise<void> {
    try {
      await this.read(convo)
    } catch (err) {
      if (!isRefusal(err)) throw err // the person has left, or was removed
      this.unfollow(convo)
    }
  }

  private moved(convo: ConvoId, successor: ConvoId): void {
    this.later(this.resets.follow(convo, successor))
  }

  // enterSuccessor enters the convo that goes on in the place of another one, with this device's Welcome or by
  // external commit.
  private async enterSuccessor(convo: ConvoId): Promise<void> {
    await this.joinOrRejoin(convo, async () => (await this.log.thread(convo)) !== undefined)
    this.later(this.asked.acceptSuccessor(convo))
  }

  private lost(queue: string, err: Error): void {
    const convo = lockOf(queue) as ConvoId
    if (queue === requestQueue(convo)) {
      for (const write of this.outbox.pending(queue)) this.later(this.asked.end(write))
      return
    }
    if (this.resets.follows(convo)) return
    if (err instanceof StuckError) return this.later(this.disputes.comeBack(convo))
    this.events.onLost?.(convo, err)
    this.later(this.recovery.start(convo))
  }

  // later tells the app if a step fails that nobody waits for. To be no member any more is no failure, and of a
  // device that is signed out the app hears by onSignedOut.
  private later(done: Promise<void>): void {
    done.catch((err: unknown) => {
      const isFailure = errorName(err) !== "NotMember" && !(err instanceof SignedOutError)
      if (!this.closing.signal.aborted && isFailure) this.events.onFailure?.(err)
    })
  }

  /**
   * Makes good what the server has lost of a convo (docs/RECOVERY.md), or comes back from a commit that
   * could not be processed (docs/clients/DISPUTES.md). The client does it by itself.
   */
  async recover(convo: ConvoId): Promise<void> {
    if (isStuck(await this.log.thread(convo))) await this.disputes.comeBack(convo)
    else await this.recovery.start(convo)
  }

  private async write(queue: string, kind: string, content: object): Promise<LexValue> {
    return this.outbox.outcome(await this.outbox.add(queue, kind, content as LexValue))
  }

  private newId(): string {
    return hex(this.core.clock.randomBytes(idLength))
  }
}

// harmless passes what a handler of the app throws on to onFailure, so that no step fails by it: also what an
// async one rejects with. It reads each handler when there is something to hear, so one can be set later.
function harmless(events: ClientEvents): ClientEvents {
  const own = (err: unknown) => queueMicrotask(() => {
    throw err // of onFailure itself: nobody else hears of it
  })
  const failed = (err: unknown) => {
    if (events.onFailure === undefined) return console.error(err)
    try {
      Promise.resolve<unknown>(events.onFailure(err)).catch(own)
    } catch (second) {
      own(second)
    }
  }
  return new Proxy(events, {
    get(target, name) {
      const handler: unknown = Reflect.get(target, name)
      if (typeof handler !== "function") return handler
      if (name === "onFailure") return failed
      return (...args: unknown[]) => {
        try {
          Promise.resolve<unknown>(handler.apply(target, args)).catch(failed)
        } catch (err) {
          failed(err)
        }
      }
    },
  })
}

function of({ convoId }: { readonly convoId: string }): ConvoId {
  return convoId as ConvoId
}

function isPresent(thread: Thread | undefined): boolean {
  return thread !== undefined && !thread.left
}

function convoOf({ type, body }: StreamEvent): ConvoId {
  return (type === "messageEvent" ? body.message.convoId : "convoId" in body ? body.convoId : "") as ConvoId
}

function isLost(err: unknown): boolean {
  return err instanceof XrpcError && verdictOf(err) === "lost"
}
