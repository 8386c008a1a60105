// Chance from a seed, and a clock that does not wait.

import type { Clock } from "../../src/clock.js"

/** Numbers from 0 up to, but not including, 1, that only depend on the seed (mulberry32). */
export function chanceOf(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** A clock that goes on when somebody sleeps. */
export function testClock(chance: () => number): Clock {
  let now = Date.parse("2026-01-01T00:00:00Z")
  return {
    now: () => now,
    sleep: async (ms, signal) => {
      if (!signal.aborted) now += ms
      await new Promise((resolve) => setImmediate(resolve))
    },
    random: chance,
    randomBytes: (length) => Uint8Array.from({ length }, () => Math.floor(chance() * 256)),
  }
}
