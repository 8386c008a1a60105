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

/** The machine's clock and its random numbers. */
export const systemClock: Clock = {
  now: () => Date.now(),
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      if (signal.aborted) return resolve()
      const done = () => {
        clearTimeout(timer)
        signal.removeEventListener("abort", done)
        resolve()
      }
      const timer = setTimeout(done, ms)
      signal.addEventListener("abort", done)
    }),
  random: () => Math.random(),
  randomBytes: (length) => crypto.getRandomValues(new Uint8Array(length)),
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
