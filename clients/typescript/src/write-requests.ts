// Answers to requests: docs/CONSENT.md. What waits is a record of {@link Requests}.

import { checkInput } from "./api.js"
import type { ConvoId } from "./ids.js"
import { answerOf, type Kind, type Parts, sealed } from "./kind.js"
import type { Write } from "./outbox.js"
import { names, type SavedRequest } from "./records.js"
import { type Changes, get, put } from "./store.js"
import * as mls from "#lexicons"

/** What a write of the kind `accept` or `decline` holds. */
export interface AnswerContent {
  readonly convoId: ConvoId
  /** Set to block who has invited this person, too. */
  readonly block?: boolean
}

// The record stays until this device is in the convo.
const accept: Kind = {
  async seal(parts, write) {
    const { convoId } = write.content as unknown as AnswerContent
    return { sealed: await sealed(parts, mls.acceptConvo.main, { convoId }), changes: new Map() }
  },
  async done(_parts, _write, answer) {
    const { accepted } = answerOf(mls.acceptConvo.main, answer)
    return { result: { accepted }, changes: new Map() }
  },
  undo: waitAgain,
}

const decline: Kind = {
  async check(_parts, _queue, content) {
    const { convoId, block = false } = content as unknown as AnswerContent
    checkInput(mls.leaveConvo.main, { convoId, block })
  },
  async seal(parts, write) {
    const { convoId, block } = write.content as unknown as AnswerContent
    return { sealed: await sealed(parts, mls.leaveConvo.main, { convoId, ...(block && { block }) }), changes: new Map() }
  },
  async done(_parts, write, answer) {
    const { convoId } = write.content as unknown as AnswerContent
    const { success } = answerOf(mls.leaveConvo.main, answer)
    return { result: { success }, changes: new Map([[names.request(convoId), undefined]]) }
  },
  undo: waitAgain,
}

// The answer is refused: the request waits again, or has ended. The next list of convos says so.
async function waitAgain(parts: Parts, write: Write): Promise<Changes> {
  const { convoId } = write.content as unknown as AnswerContent
  const changes: Changes = new Map()
  const saved = await get<SavedRequest>(parts.store, names.request(convoId))
  if (saved !== undefined) put(changes, names.request(convoId), { request: saved.request } satisfies SavedRequest)
  return changes
}

/** Answers to requests. */
export const kindsOfRequests = { accept, decline }
