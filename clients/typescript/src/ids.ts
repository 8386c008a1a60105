// Identifiers that an app passes on.

import { type DidString, l } from "@atproto/lex-schema"

declare const checked: unique symbol

/** A DID whose form was checked: see {@link asDid}. */
export type Did = DidString & { readonly [checked]: "Did" }

/**
 * The id of a convo, from the client or from {@link asConvoId}. The client takes the ids that the service
 * gives as they are.
 */
export type ConvoId = string & { readonly [checked]: "ConvoId" }

const did = l.string({ format: "did" })
const convoId = l.regexp(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)

/** Checks the form of a DID. Throws if it is none. */
export function asDid(text: string): Did {
  return did.parse(text) as Did
}

/** Checks the form of a convo's id, which is a UUID in lower case. Throws if it is none. */
export function asConvoId(text: string): ConvoId {
  return convoId.parse(text) as ConvoId
}
