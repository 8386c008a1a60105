// What a client hears, as it comes.

import { Observable } from "./observable.js"

export interface LoggedEvent {
  readonly number: number
  readonly at: Date
  readonly what: string
  readonly details: string
}

/** So many events are kept. */
const most = 200

export class EventLog extends Observable {
  private events: readonly LoggedEvent[] = []

  /** The last one first. */
  all(): readonly LoggedEvent[] {
    return this.events
  }

  add(what: string, details: string): void {
    const number = (this.events[0]?.number ?? 0) + 1
    this.events = [{ number, at: new Date(), what, details }, ...this.events].slice(0, most)
    this.changed()
  }
}
