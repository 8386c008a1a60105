// Alice and Bob at different services: what they see of it, and what a cut of the line between them costs.

import assert from "node:assert/strict"
import { after, before, test } from "node:test"
import type { Browser } from "playwright-core"
import { compile, type Running, start } from "../server/world.js"
import { lookAt } from "./look.js"
import { agree } from "./person.js"
import { openBrowser, Stage } from "./stage.js"

let world: Running
let browser: Browser

before(async () => {
  world = await start(process.env.MLSD_BINARIES ?? compile(), 0, 2)
  browser = await openBrowser()
})

after(async () => {
  await browser.close()
  await world.stop()
})

test("Bob accepts an invitation of Alice's service, and a cut line loses and doubles nothing", async () => {
  const stage = await Stage.open(browser, world.url)
  const [alice, bob] = await Promise.all([stage.person("alice"), stage.person("bob")])
  const { people } = (await (await fetch(`${world.url}/world`)).json()) as { people: { home: string }[] }
  assert.equal(new Set(people.map(({ home }) => home)).size, 2, "they live at different services")
  await alice.startChat([bob])
  await alice.say("Is this your service?")
  await bob.page.getByText(/^alice\.test at localhost:\d+/).waitFor()
  await lookAt(bob.page, "two-invited")
  await bob.page.reload() // the invitation waits at his service
  await bob.accept(alice)
  await bob.say("No, mine is next door.")
  await agree([alice, bob], ["Is this your service?", "No, mine is next door."])

  await bob.breaks("Cut the line", true)
  await bob.page.getByText(/localhost:\d+ does not answer: the chat waits there/).waitFor()
  await alice.say("Sent while you are away.")
  await alice.reaches("Sent while", "sent")
  await bob.say("Mine waits.")
  await bob.reaches("Mine waits.", "retrying")
  await bob.status("connected") // to his own service
  await lookAt(bob.page, "two-cut")
  await bob.breaks("Cut the line", false)
  await bob.page.getByText("does not answer").waitFor({ state: "hidden" })
  await agree([alice, bob], ["Is this your service?", "No, mine is next door.", "Sent while you are away.", "Mine waits."])
  await stage.close()
})

test("who is invited while the line is cut gets the invitation when it is back, and can decline it", async () => {
  const stage = await Stage.open(browser, world.url)
  // People live at one service and the other, in turn: these two at different ones.
  const alice = await stage.person("carol")
  const bob = await stage.person("dan")
  await alice.breaks("Cut the line", true)
  await alice.press("New chat")
  await alice.choose(bob)
  await alice.press("Start the chat")
  await alice.page.keyboard.press("Escape")
  await alice.panel.locator("li").filter({ hasText: "create" }).first().waitFor({ state: "attached" })
  await alice.breaks("Cut the line", false)
  await bob.page.getByRole("button", { name: "Decline" }).click()
  await bob.page.getByRole("article", { name: "Request of Carol" }).waitFor({ state: "hidden" })
  await alice.panel.locator("li").filter({ hasText: "a member left" }).waitFor({ state: "attached" })
  await stage.close()
})
