// The service's time, by the `Date` of its answers: a device's clock can be off by hours, and what MLS and the
// service compare with a time is judged by the service's.

import type { Clock } from "./clock.js"

/** An answer that took longer says too little about the time, in milliseconds. */
const longestAnswer = 10_000

/** From here on the app hears that the device's clock is off, in milliseconds. */
const noticeable = 60_000

/** How far the device's clock is off. */
export interface ClockOffset {
  /** How many milliseconds the device's clock is ahead of the service's. It is negative if it is behind. */
  readonly aheadMs: number
}

/** Knows the service's time once an answer has come. Before that it is the device's. */
export class ServerTime {
  private ahead = 0
  private told = 0

  /** @param onClock hears when the clock is off by a minute or more, or is off differently, and when it is right again */
  constructor(
    private readonly clock: Clock,
    private readonly onClock: (offset: ClockOffset) => void = () => {},
  ) {}

  /** Milliseconds of Unix time. */
  readonly now = (): number => this.clock.now() - this.ahead

  /** When a request is sent, by the device's clock. */
  sending(): number {
    return this.clock.now()
  }

  /**
   * An answer says that it was a time, to the second.
   *
   * @param sent what {@link sending} returned
   */
  heard(date: number, sent: number): void {
    const received = this.clock.now()
    const took = received - sent
    if (took < 0 || took > longestAnswer) return // or somebody has set the clock meanwhile
    const ahead = sent + took / 2 - (date + 500)
    const error = took / 2 + 1000
    if (Math.abs(ahead - this.ahead) > error) this.ahead = ahead
    const isOff = (ms: number) => Math.abs(ms) >= noticeable
    if (!isOff(this.ahead - this.told) && !(isOff(this.told) && !isOff(this.ahead))) return
    this.told = this.ahead
    this.onClock({ aheadMs: Math.round(this.ahead) })
  }
}
