// JSON of the AT Protocol: bytes are {"$bytes": base64}.

export { lexParse, lexStringify } from "@atproto/lex-json"
export type { LexValue } from "@atproto/lex-data"
