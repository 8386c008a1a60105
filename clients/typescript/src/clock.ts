// Time and chance, which tests replace.

/** Where a client takes time and chance from. */
export interface Clock {
  /** Milliseconds of Unix time. */
  now(): number
  /** Waits so many milliseconds, or until the signal aborts. It never throws. */
  sleep(ms: number, signal: AbortSignal): Promise<void>
  /** A number from 0 up to, but not including, 1. */
  random(): number
  /** Bytes for ids and keys. */
  randomBytes(length: number): Uint8Array
}

/** A longer timer ends at once. */
const longestTimer = 2 ** 31 - 1

function timer(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(running)
      signal.removeEventListener("abort", done)
      resolve()
    }
    const running = setTimeout(done, ms)
    signal.addEventListener("abort", done)
  })
}

/** The machine's clock and its random numbers. */
export const systemClock: Clock = {
  now: () => Date.now(),
  async sleep(ms, signal) {
    for (let left = ms; left > 0 && !signal.aborted; left -= longestTimer) await timer(Math.min(left, longestTimer), signal)
  },
  random: () => Math.random(),
  randomBytes: (length) => crypto.getRandomValues(new Uint8Array(length)),
}

/** The bounds of a wait that a service asks for, in milliseconds. */
const leastAsked = 1000
const mostAsked = 3_600_000

/** A wait that a service asks for, or `undefined` if it says nothing that makes sense. */
export function askedWait(ms: number | undefined): number | undefined {
  return ms === undefined || Number.isNaN(ms) ? undefined : Math.min(Math.max(ms, leastAsked), mostAsked)
}

/**
 * Waits, but not longer than until a sign that the service can be reached: then a second altogether, so that a
 * service of which only a part works is not asked all the time.
 */
export async function pause(clock: Clock, ms: number, signal: AbortSignal, sign: AbortSignal | undefined): Promise<void> {
  if (sign === undefined || ms <= leastAsked) return clock.sleep(ms, signal)
  await clock.sleep(leastAsked, signal)
  await clock.sleep(ms - leastAsked, AbortSignal.any([signal, sign]))
}

const firstWait = 500
const longestWait = 60_000

/**
 * How long to wait before attempt number `attempt`, which begins at 1, in milliseconds: 0.5 s, 1 s,
 * 2 s … up to a minute, and of that a random part between a half and the whole.
 */
export function backoff(clock: Clock, attempt: number): number {
  const whole = Math.min(longestWait, firstWait * 2 ** Math.min(attempt - 1, 20))
  return whole * (1 + clock.random()) / 2
}
