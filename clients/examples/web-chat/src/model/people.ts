// What people are called: their handles, as their DID documents say.

import { asDid, type Did, type PdsAgent, type Store } from "mlsd-client"
import { Observable } from "./observable.js"
import { names, readText, textChange } from "./records.js"

export class People extends Observable {
  private readonly handles = new Map<string, string>()
  private readonly asked = new Map<string, Promise<void>>()

  constructor(
    readonly self: Did,
    private readonly store: Store,
    private readonly agent: PdsAgent,
    private readonly directory: string,
  ) {
    super()
  }

  /** A person's handle, or their DID while it is not known. */
  handleOf(did: string): string {
    const handle = this.handles.get(did)
    if (handle === undefined && !this.asked.has(did)) this.asked.set(did, this.ask(did))
    return handle ?? did
  }

  /** What a person is called in a conversation: the first part of the handle. Screens about trust show the whole. */
  nameOf(did: string): string {
    const handle = this.handleOf(did)
    if (handle.startsWith("did:")) return `${handle.slice(0, 14)}…`
    const [first = handle] = handle.split(".")
    return first.charAt(0).toUpperCase() + first.slice(1)
  }

  /** Finds a person by a handle, through the person's own PDS. */
  async find(text: string): Promise<Did> {
    const handle = text.trim().replace(/^@/, "").toLowerCase()
    const answer = await this.agent.fetchHandler(`/xrpc/com.atproto.identity.resolveHandle?${new URLSearchParams({ handle })}`, {})
    const { did } = (await answer.json()) as { did?: string }
    if (did === undefined) throw new Error(`Nobody has the handle ${handle}.`)
    await this.remember(did, handle)
    return asDid(did)
  }

  // ask reads the DID document. Who cannot be asked now is asked in the next life of the page.
  private async ask(did: string): Promise<void> {
    const kept = await readText(this.store, names.handle(did))
    if (kept !== undefined) this.show(did, kept)
    try {
      const handle = await this.handleIn(did)
      if (handle !== undefined && handle !== kept) await this.remember(did, handle)
    } catch {
      // The directory is away, or the document is damaged: the DID stands for the name.
    }
  }

  private async handleIn(did: string): Promise<string | undefined> {
    const web = /^did:web:([^:/]+)$/.exec(did)?.[1]
    const url = web === undefined ? new URL(`/${did}`, this.directory) : `https://${decodeURIComponent(web)}/.well-known/did.json`
    const { alsoKnownAs = [] } = (await (await fetch(url)).json()) as { alsoKnownAs?: string[] }
    return alsoKnownAs.find((name) => name.startsWith("at://"))?.slice("at://".length)
  }

  private async remember(did: string, handle: string): Promise<void> {
    this.show(did, handle)
    await this.store.write(textChange(names.handle(did), handle))
  }

  private show(did: string, handle: string): void {
    this.handles.set(did, handle)
    this.changed()
  }
}

/** Names as people list them: Alice, Bob and Carol. */
export function listOf(all: readonly string[]): string {
  return all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all.at(-1)}`
}
