// A clock on which a test lets time pass.

import type { Clock } from "../../src/clock.js"
import { hastyClock } from "./phone.js"

/** A hasty clock that a test moves on. Who sleeps until then wakes. */
export class PassingClock implements Clock {
  private readonly hasty: Clock
  private readonly asleep = new Set<() => void>()
  private passed = 0

  readonly random: Clock["random"] = () => this.hasty.random()
  readonly randomBytes: Clock["randomBytes"] = (length) => this.hasty.randomBytes(length)

  /** @param haste how many times as fast time passes by itself */
  constructor(haste = 50) {
    this.hasty = hastyClock(haste)
  }

  now(): number {
    return this.hasty.now() + this.passed
  }

  async sleep(ms: number, signal: AbortSignal): Promise<void> {
    const [until, woken] = [this.now() + ms, new AbortController()]
    const look = () => {
      if (this.now() >= until) woken.abort()
    }
    const abort = () => woken.abort()
    if (signal.aborted) return
    signal.addEventListener("abort", abort)
    this.asleep.add(look)
    await this.hasty.sleep(ms, woken.signal)
    this.asleep.delete(look)
    signal.removeEventListener("abort", abort)
  }

  pass(ms: number): void {
    this.passed += ms
    for (const look of this.asleep) look()
  }
}
