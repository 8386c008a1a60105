// One person's app.

import { asDid, type ClientEvents, errorName, type Invitation, type Write } from "mlsd-client"
import { Chat } from "./chat.js"
import { Composer } from "./composer.js"
import { button, el } from "./dom.js"
import { describeEvent, describeFailure, EventList, sentenceOf } from "./event-list.js"
import { LineButtons } from "./line-buttons.js"
import { MessageList } from "./message-list.js"
import type { Phone } from "./phone.js"
import { names, readText, textChange } from "./records.js"
import { WelcomeSteps } from "./welcome-steps.js"
import { lookAtWorld, type Person, type World } from "./world.js"

export class Pane {
  readonly element: HTMLElement
  private readonly status = el("p", { class: "status", role: "status" }, "opening")
  private readonly again = button("Try now", () => this.phone?.client.resume(), { class: "link", hidden: "" })
  /** Where the person's service is, if there are several. */
  private readonly service = el("p", { class: "service", hidden: "" })
  private readonly alert = el("p", { class: "alert", role: "alert", hidden: "" })
  private readonly line: LineButtons | undefined
  private readonly start: HTMLButtonElement
  private readonly empty: HTMLElement
  private readonly hint = el("p", {}, "No chat yet")
  private readonly answers = el("div", { class: "answers", hidden: "" },
    button("Accept", () => this.answer(true), { class: "main" }), button("Decline", () => this.answer(false)))
  private readonly away = el("p", { class: "away", role: "status", hidden: "" })
  private invitation: Invitation | undefined
  private readonly welcome = new WelcomeSteps()
  private readonly messages: MessageList
  private readonly composer: Composer
  private readonly events: EventList
  private phone: Phone | undefined
  private chat: Chat | undefined
  /** The writes whose last attempt has failed. */
  private readonly retrying = new Set<string>()
  private drawing: Promise<void> | undefined
  private old = false

  /**
   * @param openPhone opens the person's device
   * @param onWorld hears what the buttons for the person's line have broken. Without it there are none
   */
  constructor(
    private readonly person: Person,
    private readonly other: Person,
    private readonly openPhone: (events: ClientEvents) => Promise<Phone>,
    private readonly onWorld?: (world: World) => void,
  ) {
    const { name } = person
    const onFailure = (err: unknown) => this.fail(err)
    this.line = onWorld && new LineButtons(person, { onWorld, onFailure, onOnline: () => this.phone?.client.resume() })
    this.start = button(`Start a chat with ${other.name}`, () => this.startChat().catch(onFailure), { class: "main" })
    this.empty = el("div", { class: "empty", hidden: "" }, this.hint, this.start, this.answers)
    this.messages = new MessageList(`Messages that ${name} sees`, this.welcome.element)
    this.composer = new Composer(name, async (text) => this.chat?.send(text))
    this.events = new EventList(`Events of ${name}`)
    this.element = this.layOut(name)
  }

  private layOut(name: string): HTMLElement {
    const heading = el("h2", { id: `name-${name}` }, name)
    return el("section", { class: "pane", "aria-labelledby": heading.id, "data-person": name },
      el("header", {},
        el("span", { class: "avatar", "aria-hidden": "true" }, name.slice(0, 1)),
        el("div", { class: "who" }, heading, el("div", { class: "line" }, this.status, this.again), this.service),
        ...(this.line === undefined ? [] : [this.line.element])),
      this.alert, this.away, this.messages.element, this.empty, this.composer.element, this.events.element)
  }

  /** Opens the person's device, and shows what it has. */
  async open(): Promise<void> {
    try {
      this.phone = await this.openPhone(this.clientEvents())
      const { client } = this.phone
      addEventListener("online", () => client.resume())
      document.addEventListener("visibilitychange", () => this.draw())
      this.draw()
      client.listen()
      await this.lookForInvitation(this.phone)
      const published = await client.replenish()
      if (published > 0) this.events.add("KeyPackages", `published: ${published}`)
    } catch (err) {
      this.fail(err)
    }
  }

  /** Shows what is broken. */
  show(world: World): void {
    this.line?.show(world)
    this.service.hidden = world.cut === undefined
    this.service.textContent = `at ${nameOf(this.person.home)}`
  }

  /** Tries everything again at once. */
  resume(): void {
    this.phone?.client.resume()
  }

  private async lookForInvitation({ client }: Phone): Promise<void> {
    if (this.person.home === this.other.home) return
    const open = (await client.invitations()).find(({ state }) => state === "open")
    if (open !== undefined) this.onInvitation(open)
  }

  private onInvitation(invitation: Invitation): void {
    this.invitation = invitation
    this.hint.textContent = `${this.other.name} of ${nameOf(invitation.service)} invites ${this.person.name}`
    this.start.hidden = true
    this.answers.hidden = false
  }

  private answer(accepts: boolean): void {
    const { phone, invitation } = this
    if (phone === undefined || invitation === undefined) return
    this.answers.hidden = true
    this.messages.element.focus()
    this.hint.textContent = accepts ? `Joining at ${nameOf(invitation.service)} …` : "Declined"
    const { client } = phone
    const answered = accepts ? client.acceptInvitation(invitation).then(({ joined }) => joined) : client.declineInvitation(invitation)
    answered.catch((err: unknown) => this.fail(err))
  }

  private clientEvents(): ClientEvents {
    return {
      onChange: () => this.draw(),
      onItems: () => this.draw(),
      onJoined: () => this.draw(),
      onRetry: (write, wait, err) => this.onRetry(write, wait, err),
      onWelcome: (convo, state) => this.onWelcome(convo, state),
      onEvent: (event) => this.events.add(event.type, describeEvent(event)),
      onInvitation: (invitation) => this.onInvitation(invitation),
      onService: (service, err) => this.onService(service, err),
      onDispute: (_, { change, epoch }) => {
        if (change === "failed") this.events.add("commit", `of epoch ${epoch} could not be processed: this device enters the group again`)
        if (change === "returned") this.events.add("commit", "this device is in the group again")
      },
      onDevice: (_, { change, did }) => this.events.add("device", `of ${did}: ${change}`),
      onFinding: (_, { sentence }) => this.fail(sentence),
      onConnect: () => this.connected(true, ""),
      onReconnect: (err) => this.connected(false, describeFailure(err)),
      onLost: () => this.chat?.reset(),
      onStop: (err) => this.fail(err),
      onFailure: (err) => this.fail(err),
      onWelcomeLost: (_, err) => this.fail(err),
    }
  }

  private onRetry(write: Write, wait: number, err: unknown): void {
    this.retrying.add(write.id)
    this.events.add(write.kind, `${describeFailure(err)}; the same bytes again in ${(wait / 1000).toFixed(1)} s`)
    this.draw()
    if (this.onWorld !== undefined) lookAtWorld().then(this.onWorld, (failed: unknown) => this.fail(failed))
  }

  private onWelcome(convo: string, state: string): void {
    this.welcome.show(state)
    this.events.add("Welcome", state)
    this.hint.textContent = `${this.other.name} has invited ${this.person.name}`
    if (document.activeElement === this.start) this.messages.element.focus()
    this.start.hidden = true
    this.phone?.store.write(textChange(names.welcome(convo), state)).catch((err: unknown) => this.fail(err))
  }

  private connected(connected: boolean, why: string): void {
    const status = connected ? "connected" : "connecting"
    this.status.textContent = status
    this.element.toggleAttribute("data-connected", connected)
    this.again.hidden = connected
    this.events.add(status, why)
  }

  // onService hears of the other service, where the chat is.
  private onService(service: string, err: unknown): void {
    this.away.hidden = err === undefined
    this.away.textContent = `${nameOf(service)} does not answer: the chat waits there`
    this.events.add(nameOf(service), err === undefined ? "connected" : describeFailure(err))
  }

  private async startChat(): Promise<void> {
    if (this.phone === undefined || isStarting(this.phone)) return
    this.alert.hidden = true
    try {
      await this.phone.client.createConvo([asDid(this.other.did)])
    } catch (err) {
      if (errorName(err) !== "KeyPackageNotFound") throw err
      this.fail(new Error(`${this.other.name} cannot be invited yet: no device has published KeyPackages`))
    }
  }

  // draw shows what the client has. A call that comes while it reads is answered by another reading, and one that
  // comes before the client is open by the one of open.
  private draw(): void {
    if (this.phone === undefined) return
    this.old = true
    this.drawing ??= this.drawWhileOld().catch((err: unknown) => this.fail(err))
  }

  private async drawWhileOld(): Promise<void> {
    try {
      while (this.old && this.phone !== undefined) {
        this.old = false
        await this.drawOnce(this.phone)
      }
    } finally {
      this.drawing = undefined
    }
  }

  private async drawOnce(phone: Phone): Promise<void> {
    this.start.setAttribute("aria-disabled", String(isStarting(phone))) // disabled, it would lose the focus
    this.chat ??= await this.findChat(phone)
    this.empty.hidden = this.chat !== undefined
    if (this.chat === undefined) return
    this.messages.show(await this.chat.messages(this.retrying))
    if (document.visibilityState === "visible") await this.chat.sendSeen()
  }

  // findChat takes the oldest one: if both people have started one, they meet there.
  private async findChat(phone: Phone): Promise<Chat | undefined> {
    const [convo] = (await phone.client.convos()).map(({ convoId }) => convoId).sort()
    if (convo === undefined) return undefined
    this.welcome.show((await readText(phone.store, names.welcome(convo))) ?? "")
    this.composer.element.hidden = false
    if (document.activeElement === this.start) this.composer.focus()
    return new Chat(phone, convo)
  }

  private fail(err: unknown): void {
    this.alert.textContent = sentenceOf(err)
    this.alert.hidden = false
  }
}

// nameOf is a service as people read it: did:web:localhost%3A8081 is localhost:8081.
function nameOf(service: string): string {
  return decodeURIComponent(service.replace(/^did:web:/, ""))
}

function isStarting({ client }: Phone): boolean {
  return client.outbox.pending().some(({ kind }) => kind === "create")
}
