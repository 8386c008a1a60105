// A session that can be refreshed no longer.

import assert from "node:assert/strict"
import { test } from "node:test"
import { systemClock } from "../src/clock.js"
import { SessionTransport } from "../src/transport-session.js"

const minute = 60_000

// S5: after six hours refreshSession refuses, or the session has ended. A fresh service-auth token buys
// another, and the app notices nothing.
for (const [status, error] of [[400, "InvalidRefreshToken"], [401, "InvalidToken"]] as const) {
  test(`${status} ${error} to refreshSession: another session is bought`, async () => {
    let now = Date.parse("2026-11-22T09:30:00.000Z")
    const begun = now
    const methods: string[] = []
    let bought = 0
    const grant = (n: number) =>
      Response.json({
        session: `mlss1_${n}`,
        refreshToken: `mlsr1_${n}`,
        expiresAt: new Date(now + 60 * minute).toISOString(),
        endsAt: new Date(begun + 360 * minute).toISOString(),
      })
    const tokens: string[] = []
    const session = new SessionTransport(
      "https://mls.example.com",
      "ab".repeat(32),
      async (method) => {
        tokens.push(method)
        return `token-${tokens.length}`
      },
      async (input, init) => {
        const method = new URL(input).pathname.split(".").pop() ?? ""
        methods.push(method)
        const bearer = new Headers(init.headers).get("authorization")
        if (method === "createSession") return grant(++bought)
        if (method === "refreshSession") return Response.json({ error, message: "it ends" }, { status })
        assert.equal(bearer, `Bearer mlss1_${bought}`)
        return Response.json({})
      },
      { ...systemClock, now: () => now },
    )
    const call = () => session.call({ method: "blue.catbird.mls.getConvos", params: new URLSearchParams() })
    await call()
    now += 57 * minute
    await call()
    await call()
    assert.deepEqual(methods, ["createSession", "getConvos", "refreshSession", "createSession", "getConvos", "getConvos"])
    assert.equal(new Set(tokens).size, 1)
    assert.equal(tokens.length, 2, "each session is bought with a token of its own")
  })
}
