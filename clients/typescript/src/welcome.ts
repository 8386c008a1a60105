// Joining with a Welcome: docs/WELCOME.md.

import { fromBase64url, hex } from "./bytes.js"
import type { Output } from "./api.js"
import { ContraryError, mustFit } from "./binding.js"
import type { Core } from "./core.js"
import { UnknownDeviceError } from "./devices.js"
import { errorName, verdictOf, XrpcError } from "./errors.js"
import type { ConvoId } from "./ids.js"
import { deviceIdOf } from "./keypackages.js"
import { names, type SavedKeyPackage, type SavedWelcome, type Thread } from "./records.js"
import { type Changes, get, getAll, put } from "./store.js"
import * as mls from "#lexicons"

/** This device cannot join with its Welcome. It comes back by external commit or a new invitation. */
export class WelcomeLostError extends Error {
  override readonly name = "WelcomeLostError"
  readonly code = "WelcomeLost"
}

/** The server keeps 1,024 bytes. */
const mostDetails = 200

/** The Welcome of a device that this person has added, and its state. */
export type InvitedDevice = Output<typeof mls.getWelcomeStatus.main>["welcomes"][number]

/** Joins convos. Each step is stored before the next one: a crash repeats a step, and loses nothing. */
export class Welcomes {
  /** @param onState hears the states that the server tells */
  constructor(
    private readonly core: Core,
    private readonly onState: (convo: ConvoId, state: string) => void,
  ) {}

  /** The Welcomes that this person has sent to a convo, the oldest first. */
  async invited(convoId: string): Promise<InvitedDevice[]> {
    const all: InvitedDevice[] = []
    for (let cursor: string | undefined; ; ) {
      const page = await this.core.api.query(mls.getWelcomeStatus.main, { convoId, ...(cursor !== undefined && { cursor }) })
      all.push(...page.welcomes)
      cursor = page.cursor
      if (cursor === undefined) return all
    }
  }

  /** The convos whose Welcome is stored and not confirmed yet: after a crash, call {@link join}. */
  async unfinished(): Promise<ConvoId[]> {
    return (await getAll<SavedWelcome>(this.core.store, names.welcomes)).map(({ convoId }) => convoId)
  }

  /**
   * Fetches this device's Welcome, stores it, joins, and confirms. If it cannot join, it says so to
   * the server, and fetches once more.
   *
   * @throws WelcomeLostError if the second Welcome is of no use either, or there is none any more
   * @throws ContraryError if the Welcome is not for the convo's group
   */
  async join(convo: ConvoId): Promise<void> {
    let failed: unknown
    for (let attempt = 0; attempt < 2; attempt++) {
      const saved = (await this.saved(convo, attempt)) ?? (await this.fetch(convo))
      try {
        if (!saved.joined) await this.enter(saved)
      } catch (err) {
        if (err instanceof UnknownDeviceError) throw err
        failed = err
        await this.report(saved, err)
        if (err instanceof ContraryError) return this.refuse(saved, err)
        continue
      }
      return this.confirm(saved)
    }
    throw new WelcomeLostError(`convo ${convo}: ${String(failed)}`, { cause: failed })
  }

  // refuse forgets a Welcome that is not for the convo's group.
  private async refuse({ convoId }: SavedWelcome, err: ContraryError): Promise<never> {
    await this.core.store.write(new Map([[names.welcome(convoId), undefined]]))
    throw err
  }

  // saved is the Welcome of an earlier life. Only the first attempt uses it.
  private async saved(convo: ConvoId, attempt: number): Promise<SavedWelcome | undefined> {
    return attempt > 0 ? undefined : get<SavedWelcome>(this.core.store, names.welcome(convo))
  }

  private async fetch(convoId: ConvoId): Promise<SavedWelcome> {
    const deviceId = await deviceIdOf(this.core)
    try {
      const { welcome, keyPackageRef, state } = await this.core.api.query(mls.getWelcome.main, { convoId, deviceId })
      const saved: SavedWelcome = { convoId, welcome: fromBase64url(welcome), ...(keyPackageRef && { ref: keyPackageRef }) }
      const changes: Changes = new Map()
      put(changes, names.welcome(convoId), saved)
      await this.core.store.write(changes)
      if (state !== undefined) this.onState(convoId, state)
      return saved
    } catch (err) {
      if (errorName(err) !== "WelcomeConsumed") throw err
      throw new WelcomeLostError(`convo ${convoId}: ${String(err)}`, { cause: err })
    }
  }

  // enter joins the group. In one step with that, the private part of a one-time KeyPackage goes.
  private async enter(saved: SavedWelcome): Promise<void> {
    const { convoId } = saved
    const { mls: library, store } = this.core
    const { state, ref } = await library.join(saved.welcome, async (one) => (await this.keyPackage(one))?.secret)
    const group = library.describe(state)
    const { groupId, epoch } = group
    const expected = await mustFit(this.core, "welcome", convoId, group)
    const thread: Thread = {
      convoId, groupId: hex(groupId), first: 0, cursor: 0, last: "", entered: epoch, joinedWith: ref, ...(expected && { expected }),
    }
    const changes: Changes = new Map([[names.group(convoId), state]])
    put(changes, names.thread(convoId), thread)
    const joined: SavedWelcome = { ...saved, ref, joined: true }
    put(changes, names.welcome(convoId), joined)
    if ((await this.keyPackage(ref))?.lastResort === false) changes.set(names.keyPackage(ref), undefined)
    changes.set(names.pending(convoId), undefined) // of a membership that has ended
    await store.write(changes)
  }

  private keyPackage(ref: string): Promise<SavedKeyPackage | undefined> {
    return get<SavedKeyPackage>(this.core.store, names.keyPackage(ref))
  }

  private async confirm({ convoId }: SavedWelcome): Promise<void> {
    const deviceId = await deviceIdOf(this.core)
    try {
      const { state } = await this.core.api.procedure(mls.confirmWelcome.main, { convoId, deviceId, success: true })
      if (state !== undefined) this.onState(convoId, state)
    } catch (err) {
      if (!(err instanceof XrpcError) || verdictOf(err) === "stop") throw err
      // The device has joined, and the server has nothing to be confirmed any more.
    }
    await this.core.store.write(new Map([[names.welcome(convoId), undefined]]))
  }

  private async report({ convoId }: SavedWelcome, err: unknown): Promise<void> {
    const deviceId = await deviceIdOf(this.core)
    const errorDetails = String(err).slice(0, mostDetails)
    await this.core.api.procedure(mls.confirmWelcome.main, { convoId, deviceId, success: false, errorDetails })
  }
}
