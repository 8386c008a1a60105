// Events and failures in words.

import { NoAnswerError, type StreamEvent, XrpcError } from "mlsd-client"

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

const sentences: Readonly<Record<string, string>> = {
  KeyPackageNotFound: "Nobody of them can be invited yet: no device has published KeyPackages.",
  NotPermitted: "Only an admin may do that.",
  ReportsDisabled: "This service takes no reports.",
  NoKeys: "This person has no device yet.",
}

/** Says what has failed. A PDS names the scope that is missing: docs/clients/OAUTH.md. */
export function sentenceOf(err: unknown): string {
  if (!(err instanceof XrpcError)) return err instanceof Error ? err.message : String(err)
  if (err.error !== "ScopeMissingError") return sentences[err.error] ?? err.message
  const method = /rpc:blue\.catbird\.mls\.(\w+)/.exec(err.text)?.[1] ?? "this"
  return `Your PDS has refused ${method}: you have not allowed this app to do that.`
}

/** Says why an attempt has failed. */
export function describeFailure(err: unknown): string {
  if (err instanceof XrpcError) return `${err.status} ${err.error}`
  return err instanceof NoAnswerError ? "no answer" : String(err)
}

/** A service as people read it: did:web:localhost%3A8081 is localhost:8081. */
export function serviceName(service: string): string {
  return decodeURIComponent(service.replace(/^did:web:/, ""))
}

/** The time of the day, as the reader writes it. */
export function clock(at: Date, seconds = false): string {
  return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(seconds && { second: "2-digit" }) })
}

/** When something was, in a list: the time of today, or the day. */
export function whenOf(at: string): string {
  const [date, now] = [new Date(at), new Date()]
  if (date.toDateString() === now.toDateString()) return clock(date)
  const days = (now.getTime() - date.getTime()) / 86_400_000
  return days < 6 ? date.toLocaleDateString([], { weekday: "short" }) : date.toLocaleDateString([], { day: "numeric", month: "short" })
}

/** A number of bytes. */
export function sizeOf(bytes: number): string {
  const units = ["B", "kB", "MB", "GB"]
  let [size, unit] = [bytes, 0]
  while (size >= 1000 && unit < units.length - 1) [size, unit] = [size / 1000, unit + 1]
  return `${unit === 0 || size >= 10 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`
}
