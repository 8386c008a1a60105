// Signing in at a real PDS, in a real browser.

import assert from "node:assert/strict"
import { readdir, readFile } from "node:fs/promises"
import { join } from "node:path"
import { after, before, test } from "node:test"
import type { Browser } from "playwright-core"
import { build, type Rolldown } from "vite"
import { type OAuthWorld, startOAuth } from "../server/oauth.js"
import { type Account, installPds } from "../server/real-pds.js"
import { compile, repository } from "../server/world.js"
import { type SetName, sets } from "../src/model/sign-in.js"
import { lookAt, picture } from "./look.js"
import { agree } from "./person.js"
import { openBrowser } from "./stage.js"
import { Visitor } from "./visitor.js"

const lexicons = join(repository, "lexicons/blue/catbird/mls")
const createSession = "blue.catbird.mls.createSession"

let world: OAuthWorld
let browser: Browser
let [alice, bob]: Account[] = []

before(async () => {
  world = await startOAuth(process.env.MLSD_BINARIES ?? compile(), process.env.WEB_CHAT_PDS ?? installPds(), 0)
  ;[alice, bob] = world.settings.people
  browser = await openBrowser()
})

after(async () => {
  await browser.close()
  await world.stop()
})

function visit(account: Account | undefined): Promise<Visitor> {
  assert.ok(account)
  return Visitor.open(browser, world.url, account)
}

test("two people sign in, and chat: through the PDS, and directly", async () => {
  const [hers, his] = [await visit(alice), await visit(bob)]
  await lookAt(hers.page, "oauth-sign-in")
  await consent(hers, "authMessaging")
  await his.signIn(sets.authMessaging)
  await Promise.all([hers, his].map(({ person }) => person.ready()))
  await hers.person.startChat([his.person])
  await his.person.accept(hers.person)
  await hers.person.say("Is this your PDS, or mine?")
  await his.person.reaches("Is this your PDS", "received")
  await his.person.say("Ours: it signs for both of us.")
  await agree([hers.person, his.person], ["Is this your PDS, or mine?", "Ours: it signs for both of us."])
  await lookAt(hers.page, "through-the-pds")
  wantThroughThePds(hers)
  wantThroughThePds(his)

  await hers.openMe()
  await hers.page.getByRole("button", { name: "Directly" }).click()
  await hers.page.getByRole("alert").getByText("Your PDS has refused createSession: you have not allowed this app to do that. Sign in again").waitFor()
  await lookAt(hers.page, "refused")
  await hers.page.keyboard.press("Escape")
  assert.deepEqual(directCalls(hers), [])
  await hers.person.say("It did not let me around it.")
  await his.person.reaches("It did not let me around it.", "received")

  await hers.signOut()
  await consent(hers, "authFull")
  await hers.person.ready()
  await hers.openMe()
  const before = hers.requests.length
  await hers.page.getByRole("button", { name: "Directly", pressed: false }).click()
  await hers.page.waitForURL(/way=direct/)
  await hers.person.status("connected")
  await hers.person.openChat("Bob")
  await hers.person.say("Now it does.")
  const texts = ["Is this your PDS, or mine?", "Ours: it signs for both of us.", "It did not let me around it.", "Now it does."]
  await agree([hers.person, his.person], texts)
  await lookAt(hers.page, "directly")
  wantDirect(hers, before)
  await Promise.all([hers.close(), his.close()])
})

test("who refuses gives no access", async () => {
  const hers = await visit(alice)
  await hers.ask(sets.authFull)
  await hers.answer("Deny access")
  await hers.page.getByText("Your PDS has given this app no access: you have refused it.").waitFor()
  await hers.page.getByRole("button", { name: "Sign in" }).waitFor()
  await lookAt(hers.page, "denied")
  assert.deepEqual(hers.calls(), [])
  await hers.close()
})

test("an app that may read cannot write", async () => {
  const his = await visit(bob)
  await his.signIn(sets.authRead)
  await his.page.getByText("Your PDS has refused publishKeyPackages: you have not allowed this app to do that.").waitFor()
  await picture(his.page, "read-only")
  await his.close()
})

// If this fails, PDSes have mended it: then docs/clients/OAUTH.md and server/oauth.ts need not say it.
test("at a service whose DID has a port, a PDS allows nothing", async () => {
  const hers = await visit(alice)
  const service = "did:web:localhost%3A8080#atproto_mls"
  await hers.context.route("**/settings", (route) => route.fulfill({ json: { ...world.settings, service } }))
  await hers.page.reload()
  await hers.signIn(sets.authFull)
  await hers.openMe()
  await hers.page.getByRole("button", { name: "Directly" }).click()
  await hers.page.getByText("Your PDS has refused createSession").waitFor()
  await hers.close()
})

test("a PDS allows the methods that the table has, and a chat app to list devices", async () => {
  const probe = await bundleProbe()
  const methods = await verbs()
  const allowed: Partial<Record<SetName, string[]>> = {}
  for (const set of Object.keys(sets) as SetName[]) {
    const hers = await visit(alice)
    await hers.signIn(sets[set])
    await hers.page.getByRole("button", { name: /me and my devices$/ }).waitFor()
    await hers.context.route("**/probe.js", (route) => route.fulfill({ contentType: "text/javascript", body: probe }))
    const [got, lists, names] = await hers.page.evaluate(async ({ settings, methods }) => {
      const probe = (await import(`${location.origin}/probe.js`)) as typeof import("./probe.js")
      return [await probe.allowed(settings, methods), await probe.listsDevices(settings), await probe.namesService(settings)] as const
    }, { settings: world.settings, methods })
    allowed[set] = got
    assert.equal(lists, set !== "authRead", `${set} lists devices`)
    assert.equal(names, set === "authFull", `${set} names the service`)
    await hers.close()
  }
  const rows = Object.keys(methods).map((nsid) => {
    const cells = (Object.keys(sets) as SetName[]).map((set) => (allowed[set]?.includes(nsid) ? "yes" : ""))
    return `| ${[nsid.replace("blue.catbird.mls.", ""), ...cells].join(" | ")} |`
  })
  console.log(["What the PDS has allowed:", `| method | ${Object.keys(sets).join(" | ")} |`, ...rows].join("\n"))
  const guide = await readFile(join(repository, "docs/clients/OAUTH.md"), "utf8")
  assert.deepEqual(rows, guide.split("\n").filter((line) => /^\| \w+ \|( yes| ) \|( yes| ) \|( yes| ) \|$/.test(line)))
})

test("the PDS has called nobody outside of this machine", async () => {
  const called = (await world.pds.log()).flatMap(({ uri }) => (typeof uri === "string" && !uri.startsWith("at:") ? [uri] : []))
  assert.ok(called.length > 0, "it has called somebody")
  assert.deepEqual(called.filter((uri) => !/^http:\/\/(localhost|127\.0\.0\.1):/.test(uri)), [])
})

/** What the test loads into the page, in one file. */
async function bundleProbe(): Promise<string> {
  const lib = { entry: "build/test/probe.js", formats: ["es" as const] }
  const [bundle] = (await build({ configFile: false, logLevel: "warn", build: { write: false, lib } })) as Rolldown.RolldownOutput[]
  const [chunk] = bundle?.output ?? []
  assert.ok(chunk)
  return chunk.code
}

/** The verb of each method. */
async function verbs(): Promise<Record<string, "GET" | "POST">> {
  const found: Record<string, "GET" | "POST"> = {}
  for (const name of (await readdir(lexicons)).filter((name) => name.endsWith(".json")).sort()) {
    const { id, defs } = JSON.parse(await readFile(join(lexicons, name), "utf8")) as { id: string; defs: { main?: { type: string } } }
    if (defs.main?.type === "procedure") found[id] = "POST"
    if (defs.main?.type === "query" || defs.main?.type === "subscription") found[id] = "GET"
  }
  return found
}

/** Grants a set on the consent page, which says what it is in the words of its lexicon. */
async function consent(visitor: Visitor, set: SetName): Promise<void> {
  const { page } = visitor
  await visitor.ask(sets[set])
  const { defs } = JSON.parse(await readFile(join(lexicons, `${set}.json`), "utf8")) as { defs: { main: { title: string; detail: string } } }
  assert.equal(defs.main.title, sets[set])
  await page.getByRole("heading", { name: defs.main.title, exact: true }).waitFor()
  await page.getByText(defs.main.detail, { exact: true }).waitFor()
  await picture(page, `consent-${set}`)
  await page.emulateMedia({ colorScheme: "dark" })
  await picture(page, `consent-${set}-dark`)
  await page.emulateMedia({ colorScheme: "light" })
  await visitor.answer("Authorize")
}

/** Calls at the service itself. The stream of events is one in any case. */
function directCalls(visitor: Visitor, since = 0): string[] {
  const at = visitor.calls(since).map((request) => request.url()).filter((url) => url.startsWith(world.settings.url))
  return at.filter((url) => !url.includes("subscribeConvoEvents"))
}

function wantThroughThePds(visitor: Visitor): void {
  const calls = visitor.calls().filter((request) => request.url().startsWith(`${world.settings.pds}/`))
  assert.ok(calls.some((request) => request.url().includes(".sendMessage")))
  for (const request of calls) assert.equal(request.headers()["atproto-proxy"], world.settings.service)
  assert.deepEqual(directCalls(visitor), [])
}

function wantDirect(visitor: Visitor, since: number): void {
  const calls = visitor.calls(since).filter((request) => request.url().startsWith(world.settings.url))
  assert.ok(calls.some((request) => request.url().includes(".sendMessage")))
  for (const request of calls) {
    const bought = request.url().endsWith(createSession)
    assert.match(request.headers().authorization ?? "", bought ? /^Bearer ey/ : /^Bearer mlss1_/, request.url())
  }
  const tokens = visitor.requests.slice(since).flatMap((request) => {
    const { pathname, searchParams } = new URL(request.url())
    return pathname.endsWith("getServiceAuth") && request.method() === "GET" ? [searchParams.get("lxm")] : []
  })
  assert.deepEqual([...new Set(tokens)], [createSession])
}
