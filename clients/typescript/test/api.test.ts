// Keys of an app's own writes.

import assert from "node:assert/strict"
import { test } from "node:test"
import { withIdempotencyKey } from "../src/api.js"

test("a write gets a fresh key, and keeps the one that it has", () => {
  const [one, two] = [withIdempotencyKey({ convoId: "x" }), withIdempotencyKey({ convoId: "x" })]
  assert.match(one.idempotencyKey, /^[0-9a-f]{32}$/)
  assert.notEqual(one.idempotencyKey, two.idempotencyKey)
  assert.deepEqual(withIdempotencyKey(one), one)
})
