// The retry table of docs/CLIENTS.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import { NoAnswerError, resetsAt, type Verdict, verdictOf, XrpcError } from "../src/errors.js"

const cases: readonly (readonly [number, string, string, Verdict])[] = [
  [429, "RateLimitExceeded", "", "again"],
  [500, "InternalServerError", "", "again"],
  [502, "", "", "again"],
  [503, "ServiceUnavailable", "", "again"],
  [501, "MethodNotImplemented", "", "refused"],
  [429, "QuotaExceeded", "quota messages-per-day is used up: 6 of 6; resets at 2026-01-02T00:00:00Z", "later"],
  [401, "InvalidToken", "token was used before", "again"],
  [401, "InvalidToken", "token has expired", "again"],
  [401, "InvalidToken", "token's signature does not verify", "stop"],
  [409, "RequestInProgress", "", "again"],
  [409, "EpochMismatch", "epoch 6 is stale; currentEpoch=7", "stale"],
  [409, "EpochMismatch", "epoch 8 is ahead; currentEpoch=7", "lost"],
  [409, "ConvoDisputed", "members could not process the commit of epoch 8 by did:plc:x", "disputed"],
  [404, "ConvoNotFound", "", "lost"],
  [409, "ConvoClosed", "", "refused"],
  [409, "ConvoClosed", "the convo was reset; successorConvoId=0192f3a4-5b6c-7d8e-9f01-23456789abcd", "moved"],
  [409, "IdempotencyConflict", "", "refused"],
  [403, "NotMember", "", "refused"],
  [403, "Blocked", "the account is blocked here", "stop"],
  [403, "Blocked", "did:plc:x is blocked by the caller; unblock it first with unblockActor", "refused"],
  [403, "AccountInactive", "", "stop"],
  [400, "InvalidRequest", "", "refused"],
]

for (const [status, error, text, verdict] of cases) {
  test(`${status} ${error} ${text}: ${verdict}`, () => {
    assert.equal(verdictOf(new XrpcError(status, error, text)), verdict)
  })
}

test("no answer: again; what is no answer is thrown", () => {
  assert.equal(verdictOf(new NoAnswerError("cut")), "again")
  assert.throws(() => verdictOf(new TypeError("a bug")), TypeError)
})

test("a quota says when it is free again", () => {
  const text = "quota messages-per-day is used up: 6 of 6; resets at 2026-01-02T00:00:00Z"
  assert.equal(resetsAt(new XrpcError(429, "QuotaExceeded", text)), Date.parse("2026-01-02T00:00:00Z"))
  assert.equal(resetsAt(new XrpcError(429, "QuotaExceeded", "quota open-invitations is used up: 1 of 1")), undefined)
})
