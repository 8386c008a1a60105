// What a client hears, as it comes. Folded until somebody wants to see it.

import { NoAnswerError, type StreamEvent, XrpcError } from "mlsd-client"
import { clock, el } from "./dom.js"

const most = 200

export class EventList {
  readonly element: HTMLElement
  private readonly list: HTMLElement
  private readonly count = el("span", { class: "count" }, "0")
  private total = 0

  constructor(label: string) {
    this.list = el("ol", { tabindex: "0", "aria-label": label })
    this.element = el("details", { class: "events" }, el("summary", {}, "Events ", this.count), this.list)
  }

  /** Adds a line at the top. */
  add(what: string, details: string): void {
    this.list.prepend(el("li", {}, el("time", {}, clock(new Date(), true)), " ", el("b", {}, what), ` ${details}`))
    if (this.list.children.length > most) this.list.lastElementChild?.remove()
    this.count.textContent = String(++this.total)
  }
}

/** Says what an event of the stream is. */
export function describeEvent(event: StreamEvent): string {
  switch (event.type) {
    case "messageEvent":
      return `seq ${event.body.message.seq}, epoch ${event.body.message.epoch}`
    case "commitEvent":
      return `seq ${event.body.seq} begins epoch ${event.body.epoch}`
    case "welcomeEvent":
      return `into epoch ${event.body.epoch}`
    case "membershipEvent":
      return `a member ${event.body.change}, epoch ${event.body.epoch}`
    case "keyPackagesEvent":
      return event.body.change
    case "disputeEvent":
      return `${event.body.change}, epoch ${event.body.epoch}`
    case "roleEvent":
      return event.body.isAdmin ? "a member is an admin now" : "a member is no admin any more"
    case "metadataEvent":
      return "a new name"
    case "arrivalEvent":
      return `a Welcome is ${event.body.state}`
    case "resetEvent":
      return `a reset: ${event.body.reason}`
    case "invitationEvent":
      return `${event.body.inviter} invites at ${event.body.service}`
  }
}

/** Says what has failed. A PDS names the scope that is missing: docs/clients/OAUTH.md. */
export function sentenceOf(err: unknown): string {
  if (!(err instanceof XrpcError && err.error === "ScopeMissingError")) return err instanceof Error ? err.message : String(err)
  const method = /rpc:blue\.catbird\.mls\.(\w+)/.exec(err.text)?.[1] ?? "this"
  return `Your PDS has refused ${method}: you have not allowed this app to do that.`
}

/** Says why an attempt has failed. */
export function describeFailure(err: unknown): string {
  if (err instanceof XrpcError) return `${err.status} ${err.error}`
  return err instanceof NoAnswerError ? "no answer" : String(err)
}
