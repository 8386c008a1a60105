// The page in a real browser: what both people see, whatever is broken.

import assert from "node:assert/strict"
import { after, afterEach, before, beforeEach, test } from "node:test"
import type { Browser, Page, Route } from "playwright-core"
import { compile, type Running, start } from "../server/world.js"
import { accessible, picture } from "./look.js"
import { agree, PaneOf } from "./pane.js"
import { openBrowser, Stage } from "./stage.js"

let world: Running
let browser: Browser

let binaries: string

before(async () => {
  binaries = process.env.MLSD_BINARIES ?? compile()
  browser = await openBrowser()
})

// Each test has people of its own: new devices of people who have a chat would enter it by themselves.
beforeEach(async () => {
  world = await start(binaries, 0)
})

afterEach(() => world.stop())

after(() => browser.close())

function pathOf(method: string): string {
  return `**/xrpc/blue.catbird.mls.${method}`
}

/** Holds the requests of a method, after so many that pass, until they are released. */
async function hold(page: Page, method: string, passing = 0): Promise<{ arrived: Promise<void>; release(): Promise<void> }> {
  const held: Route[] = []
  let [tell, released] = [() => {}, false]
  const arrived = new Promise<void>((resolve) => (tell = resolve))
  await page.route(pathOf(method), async (route) => {
    if (released || passing-- > 0) return route.continue()
    held.push(route)
    tell()
  })
  const release = async () => {
    released = true
    await Promise.all(held.map((route) => route.continue()))
  }
  return { arrived, release }
}

test("two people chat by keyboard, and see what becomes of each message", async () => {
  const stage = await Stage.open(browser, world.url)
  const page = await stage.page()
  const [alice, bob] = [new PaneOf(page, "Alice"), new PaneOf(page, "Bob")]
  await Promise.all([alice, bob].flatMap((one) => [one.connected(), one.published()]))
  await accessible(page)
  await picture(page, "empty")
  await alice.tabTo(alice.pane.getByRole("button", { name: "Start a chat with Bob" }))
  await page.keyboard.press("Enter")
  await alice.input.waitFor()
  await page.waitForFunction(() => document.activeElement?.getAttribute("aria-label") === "Message from Alice")
  await page.keyboard.type("Morning! Did the train make it?")
  await page.keyboard.press("Enter")
  await bob.tabTo(bob.pane.getByRole("button", { name: "Accept" }))
  await page.keyboard.press("Enter")
  await bob.input.waitFor()
  await alice.reaches("Morning!", "seen")
  await bob.tabTo(bob.input)
  for (const text of ["Just. Ran the last bit, coffee in hand.", "Platform 4, by the clock."]) {
    await page.keyboard.type(text)
    await page.keyboard.press("Enter")
  }
  await bob.reaches("Platform 4", "seen")
  const long = "See you there in five minutes. Then we walk over together, before the others arrive."
  await alice.say(long)
  await agree(alice, bob, ["Morning! Did the train make it?", "Just. Ran the last bit, coffee in hand.", "Platform 4, by the clock.", long])
  const states = (await bob.events()).filter((line) => line.startsWith("Welcome "))
  assert.deepEqual(states, ["Welcome available", "Welcome in_flight", "Welcome consumed"])
  await pictureBothThemes(page, alice)
  const second = await stage.page("alice")
  await second.getByRole("alert").getByText("perhaps in another tab").waitFor()
  await stage.close()
})

async function pictureBothThemes(page: Page, alice: PaneOf): Promise<void> {
  await accessible(page)
  await picture(page, "light")
  await page.emulateMedia({ colorScheme: "dark", reducedMotion: "reduce" })
  const animation = await alice.message("Morning!").evaluate((item) => getComputedStyle(item).animationName)
  assert.equal(animation, "none", "nothing moves for those who do not want it")
  await alice.pane.locator("summary").click()
  await accessible(page)
  await picture(page, "dark")
  await alice.pane.locator("summary").click()
  await page.emulateMedia({ colorScheme: "light" })
  await page.setViewportSize({ width: 390, height: 844 })
  await accessible(page)
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing sticks out at 390 px")
  await picture(page, "phone")
}

test("a message whose answer is lost is tried again, and arrives once", async () => {
  const stage = await Stage.open(browser, world.url)
  const { page, alice, bob } = await stage.chat()
  await alice.say("Are you at the station?")
  await alice.reaches("Are you at the station?", "seen")
  await alice.press("Lose next answer")
  await alice.pane.getByRole("button", { name: "Lose next answer", pressed: true }).waitFor()
  const { arrived, release } = await hold(page, "sendMessage", 1)
  await alice.say("I am at the north entrance.")
  await arrived
  await alice.reaches("I am at the north entrance.", "retrying")
  await alice.say("Bring the keys, please.")
  await alice.reaches("Bring the keys, please.", "queued")
  await bob.reaches("I am at the north entrance.", "received")
  await accessible(page)
  await picture(page, "retrying")
  await release()
  await bob.say("On my way.")
  await agree(alice, bob, ["Are you at the station?", "I am at the north entrance.", "Bring the keys, please.", "On my way."])
  await alice.pane.getByRole("button", { name: "Lose next answer", pressed: false }).waitFor()
  assert.match((await alice.events()).join("\n"), /^send no answer; the same bytes again in 0\.\d s$/m)
  await stage.close()
})

test("what is written offline is sent when the line is back", async () => {
  const stage = await Stage.open(browser, world.url)
  const { page, alice, bob } = await stage.chat()
  await alice.press("Offline")
  await alice.pane.getByRole("status").getByText("connecting").waitFor()
  await alice.say("We are in a tunnel.")
  await alice.reaches("We are in a tunnel.", "retrying")
  await alice.say("Still in it.")
  await alice.reaches("Still in it.", "queued")
  await bob.say("Are you there?")
  await bob.reaches("Are you there?", "sent")
  await picture(page, "offline")
  await alice.press("Offline")
  await agree(alice, bob, ["We are in a tunnel.", "Still in it.", "Are you there?"])
  await stage.close()
})

test("a service that is killed has everything when it is back", async () => {
  const stage = await Stage.open(browser, world.url)
  const { page, alice, bob } = await stage.chat()
  await alice.say("Is the server all right?")
  await alice.reaches("Is the server", "seen")
  await page.getByRole("button", { name: "Kill the server" }).click()
  await page.getByText("Server was killed").waitFor()
  await alice.say("It was, a second ago.")
  await bob.say("Mine says: no answer.")
  await alice.reaches("It was", "retrying")
  await bob.pane.getByRole("status").getByText("connecting").waitFor()
  assert.notEqual(await bob.stateOf("Mine says"), "sent")
  await accessible(page)
  await picture(page, "killed")
  await page.getByRole("button", { name: "Start it again" }).click()
  await page.getByText("Server is running").waitFor()
  await agree(alice, bob, ["Is the server all right?", "It was, a second ago.", "Mine says: no answer."])
  await stage.close()
})

test("a reload in the middle of a send delivers once", async () => {
  const stage = await Stage.open(browser, world.url)
  const { page, alice, bob } = await stage.chat()
  const { arrived } = await hold(page, "sendMessage")
  await alice.say("never left")
  await arrived
  await alice.reaches("never left", "sending")
  await page.unrouteAll({ behavior: "ignoreErrors" })
  await page.reload()
  await agree(alice, bob, ["never left"])
  await page.route(pathOf("sendMessage"), async (route) => void (await route.fetch()))
  await alice.say("left, and no answer came")
  await bob.reaches("left, and no answer came", "received")
  await alice.reaches("left, and no answer came", "sending")
  await page.unrouteAll({ behavior: "ignoreErrors" })
  await page.reload()
  await agree(alice, bob, ["never left", "left, and no answer came"])
  await stage.close()
})

test("somebody who comes late joins with the Welcome that waits", async () => {
  const stage = await Stage.open(browser, world.url)
  const first = await stage.page("bob")
  await new PaneOf(first, "Bob").published()
  await first.close()
  const hers = await stage.page("alice")
  const alice = new PaneOf(hers, "Alice")
  await alice.press("Start a chat with Bob")
  await alice.input.waitFor()
  await alice.say("read this when you are up")
  await alice.reaches("read this", "sent")
  const his = await stage.context.newPage()
  const { arrived, release } = await hold(his, "confirmWelcome")
  await his.goto(`${world.url}/?as=bob`)
  const bob = new PaneOf(his, "Bob")
  await bob.acceptIfAsked(arrived)
  await arrived
  const step = bob.pane.locator('.welcome [aria-current="step"] code')
  await step.getByText("in_flight").waitFor()
  await picture(his, "in-flight")
  await release()
  await bob.reaches("read this", "received")
  await step.getByText("consumed").waitFor()
  await bob.say("I am up")
  await agree(alice, bob, ["read this when you are up", "I am up"])
  await his.reload()
  await bob.reaches("I am up", "seen")
  await step.getByText("consumed").waitFor()
  await stage.close()
})
