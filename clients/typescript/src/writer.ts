// Makes the requests of a client's outbox. Each kind of write has its own file.

import { hex } from "./bytes.js"
import { idLength } from "./envelope.js"
import { OutOfStepError, type SealError, XrpcError } from "./errors.js"
import type { LexValue } from "./json.js"
import type { Done, Kind, Parts } from "./kind.js"
import type { Plan, SealedWrite, Write, Writer } from "./outbox.js"
import { lockOf, names } from "./records.js"
import type { Changes } from "./store.js"
import { committing, kindsOfCommits, type RemoveContent } from "./write-commits.js"
import { kindsOfConvos } from "./write-convos.js"
import { kindOfPublications } from "./write-keypackages.js"
import { kindOfMessages } from "./write-messages.js"
import { kindsOfRequests } from "./write-requests.js"

const kinds: Readonly<Record<string, Kind>> = {
  ...kindsOfCommits,
  ...kindsOfConvos,
  ...kindsOfRequests,
  publish: kindOfPublications,
  send: kindOfMessages,
}

/** How long a claim of KeyPackages is good, in milliseconds. */
const claimLifetime = 30 * 60_000

/** The errors of a request that a KeyPackage can be the reason for. */
const badKeyPackage = new Set(["InvalidCommit", "InvalidReceipt", "InvalidWelcome", "KeyPackageNotFound"])

/** The writer of a client. */
export class ClientWriter implements Writer {
  private readonly bad = new Set<string>() // claims whose receipts were refused

  constructor(private readonly parts: Parts) {}

  readonly lockOf = lockOf

  async check(queue: string, kind: string, content: LexValue): Promise<void> {
    await kindOf({ kind }).check?.(this.parts, queue, content)
  }

  prepare(write: Write): Promise<void> | undefined {
    return kindOf(write).prepare?.(this.parts, write)
  }

  // A removal stays behind the addition of the person, and a message behind an earlier one, which waits until
  // everybody in the group is known.
  passes({ kind, content }: Write, before: Write): boolean {
    if (before.kind === "send") return kind !== "send"
    const { dids } = before.content as { dids?: readonly string[] }
    return kind !== "remove" || !dids?.includes((content as unknown as RemoveContent).did)
  }

  // anew claims other KeyPackages for a request whose receipts are not accepted any more, but not twice in
  // the lifetime of a claim: then they are not accepted for another reason.
  anew({ content }: SealedWrite, err: XrpcError): LexValue | undefined {
    const { clock } = this.parts
    const { claim, claimedAgain = -Infinity } = content as { claim?: string; claimedAgain?: number }
    if (err.error !== "InvalidReceipt" || claim === undefined || clock.now() - claimedAgain < claimLifetime) return undefined
    this.bad.add(claim)
    return { ...(content as object), claim: hex(clock.randomBytes(idLength)), claimedAgain: clock.now() }
  }

  waits(write: Write): boolean {
    return kindOf(write).waits === true
  }

  commits(write: Write): boolean {
    return committing.has(write.kind) || write.kind === "reset"
  }

  moves(write: Write): boolean {
    return write.kind === "send"
  }

  seal(write: Write): Promise<Plan> {
    return kindOf(write).seal(this.parts, write)
  }

  done(write: SealedWrite, answer: string): Promise<Done> {
    return kindOf(write).done(this.parts, write, answer)
  }

  async unseal(write: SealedWrite): Promise<Changes> {
    const kind = kindOf(write)
    try {
      await kind.catchUp?.(this.parts, write)
    } catch (err) {
      if (!(err instanceof OutOfStepError)) throw err
      // It gets this error again when it is sealed, and waits then until the device is back.
    }
    return this.undo(write, false)
  }

  refused(write: Write, err: XrpcError | SealError): Promise<Changes> {
    const isBad = err instanceof XrpcError && badKeyPackage.has(err.error)
    return this.undo(write, isBad)
  }

  private async undo(write: Write, isBad: boolean): Promise<Changes> {
    const changes = await kindOf(write).undo(this.parts, write)
    const { claim } = (write.content ?? {}) as { claim?: string }
    if (claim === undefined) return changes
    await this.parts.services.claims.release(claim, changes, isBad || this.bad.delete(claim))
    changes.set(names.leftOut(claim), undefined)
    return changes
  }
}

function kindOf(write: Pick<Write, "kind">): Kind {
  const kind = kinds[write.kind]
  if (kind === undefined) throw new Error(`no kind of write ${write.kind}`)
  return kind
}
