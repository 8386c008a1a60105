// What an app must hear, also if it crashes first.

import type { Clock } from "./clock.js"
import type { ConvoId, Did } from "./ids.js"
import { once } from "./locks.js"
import { type ConvoRequest, names } from "./records.js"
import { type Changes, get, put, type Store } from "./store.js"
import type { Finding } from "./log-findings.js"

/** What has become of a device in a convo. */
export interface DeviceNews {
  /**
   * `entered`, `left` and `keyChanged` are what MLS shows. `listed` and `unlisted` are what its account says
   * when it is asked; `waiting`, that it could not be asked yet. `uninvited`: its person was not in the group,
   * and nobody in it has added the person. `joined`: a person who was added has written for the first time.
   */
  readonly change: "entered" | "left" | "keyChanged" | "joined" | "listed" | "unlisted" | "waiting" | "uninvited"
  readonly did: Did
  /** The signature key. */
  readonly key: Uint8Array
}

/** One thing to hear. */
export type News = { readonly convo: ConvoId | undefined } & (
  { readonly device: DeviceNews } | { readonly finding: Finding } | { readonly request: ConvoRequest } |
  { readonly missing: readonly Did[] } | { readonly without: Did }
)

/** Keeps news until the app has heard them. */
export class NewsQueue {
  private last = 0
  private readonly delivering = new Map<string, Promise<void>>()

  constructor(
    private readonly store: Store,
    private readonly clock: Clock,
    private readonly tell: (news: News) => void,
  ) {}

  /** Adds news to changes that are stored in one step. Call {@link deliver} after that. */
  add(changes: Changes, ...all: readonly News[]): void {
    for (const one of all) {
      this.last = Math.max(this.last + 1, this.clock.now() * 1000)
      put(changes, names.oneNews(String(this.last).padStart(16, "0")), one)
    }
  }

  /** Tells the app what it has not heard, in order. What a crash interrupts is told again. */
  deliver(): Promise<void> {
    return once(this.delivering, "", async () => {
      for (let all = await this.store.list(names.news); all.length > 0; all = await this.store.list(names.news)) {
        for (const name of all) {
          const one = await get<News>(this.store, name)
          if (one !== undefined) this.tell(one)
          await this.store.write(new Map([[name, undefined]]))
        }
      }
    })
  }
}
