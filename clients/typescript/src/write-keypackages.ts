// Publications of KeyPackages.

import { base64url } from "./bytes.js"
import { type Input } from "./api.js"
import { answerOf, type Kind, sealed } from "./kind.js"
import { names, type SavedKeyPackage } from "./records.js"
import { type Changes, put } from "./store.js"
import * as mls from "#lexicons"

/** How many KeyPackages one publishKeyPackages takes. */
export const mostAtOnce = 100

/** What a write of the kind `publish` holds: at most {@link mostAtOnce} KeyPackages altogether. */
export interface PublishContent {
  readonly oneTime: number
  readonly lastResort: boolean
}

/** The private parts are in the store before the KeyPackages are sent. */
export const kindOfPublications: Kind = {
  async seal(parts, write) {
    const { oneTime, lastResort } = write.content as unknown as PublishContent
    const changes: Changes = new Map()
    const keyPackages: Input<typeof mls.publishKeyPackages.main>["keyPackages"] = []
    for (let i = 0; i < oneTime + Number(lastResort); i++) {
      const last = i === oneTime
      const { keyPackage, ref, secret } = await parts.mls.keyPackage(last)
      keyPackages.push({ keyPackage: base64url(keyPackage), cipherSuite: parts.mls.cipherSuite })
      const saved: SavedKeyPackage = { secret, lastResort: last }
      put(changes, names.keyPackage(ref), saved)
    }
    return { sealed: await sealed(parts, mls.publishKeyPackages.main, { keyPackages }), changes }
  },

  // A rejected KeyPackage is one that the server will never hand out: its private part does no harm.
  async done(_parts, _write, answer) {
    const { results } = answerOf(mls.publishKeyPackages.main, answer)
    const rejected = results.flatMap((one) => (one.status === "rejected" ? [`${one.error}: ${one.message}`] : []))
    return { result: { published: results.length - rejected.length, rejected }, changes: new Map() }
  },

  // Nobody has a KeyPackage of a refused publication. But an earlier attempt can have succeeded, with
  // its answer lost, so the private parts stay.
  undo: async () => new Map(),
}
