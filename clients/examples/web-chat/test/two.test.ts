// Alice and Bob at different services: what they see of it, and what a cut of the line between them costs.

import assert from "node:assert/strict"
import { after, before, test } from "node:test"
import type { Browser, Page } from "playwright-core"
import { compile, type Running, start } from "../server/world.js"
import { accessible, picture } from "./look.js"
import { agree, PaneOf } from "./pane.js"
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

/** Opens the page with both people. */
async function open(stage: Stage): Promise<{ page: Page; alice: PaneOf; bob: PaneOf }> {
  const page = await stage.page()
  const [alice, bob] = [new PaneOf(page, "Alice"), new PaneOf(page, "Bob")]
  await Promise.all([alice, bob].flatMap((one) => [one.connected(), one.published()]))
  return { page, alice, bob }
}

/** Presses the button that cuts the line, and waits until it is as wanted. */
async function sever(page: Page, cut: boolean): Promise<void> {
  await page.getByRole("button", { name: "Cut the line", pressed: !cut }).click()
  await page.getByRole("button", { name: "Cut the line", pressed: cut }).waitFor()
}

async function pictures(page: Page, name: string): Promise<void> {
  await accessible(page)
  await picture(page, `${name}-light`)
  await page.emulateMedia({ colorScheme: "dark", reducedMotion: "reduce" })
  await accessible(page)
  await picture(page, `${name}-dark`)
  await page.emulateMedia({ colorScheme: "light" })
  await page.setViewportSize({ width: 390, height: 844 })
  await accessible(page)
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing sticks out at 390 px")
  await picture(page, `${name}-phone`)
  await page.setViewportSize({ width: 1040, height: 720 })
}

test("Bob accepts an invitation of Alice's service, and a cut line loses and doubles nothing", async () => {
  const stage = await Stage.open(browser, world.url)
  const { page, alice, bob } = await open(stage)
  const homes = await page.locator(".service").allTextContents()
  assert.equal(new Set(homes).size, 2, "they live at different services")
  await alice.press("Start a chat with Bob")
  await alice.input.waitFor()
  await alice.say("Is this your service?")
  await bob.pane.getByText(/^Alice of localhost:\d+ invites Bob$/).waitFor()
  await pictures(page, "two-invited")
  await page.reload() // the invitation waits at his service
  await bob.pane.getByRole("button", { name: "Accept" }).click()
  await bob.input.waitFor()
  await bob.say("No, mine is next door.")
  await agree(alice, bob, ["Is this your service?", "No, mine is next door."])

  await sever(page, true)
  await bob.pane.getByText(/localhost:\d+ does not answer: the chat waits there/).waitFor()
  await alice.say("Sent while you are away.")
  await alice.reaches("Sent while", "sent")
  await bob.say("Mine waits.")
  await bob.reaches("Mine waits.", "retrying")
  await bob.connected() // to his own service
  await pictures(page, "two-cut")
  await sever(page, false)
  await bob.pane.getByText("does not answer").waitFor({ state: "hidden" })
  await agree(alice, bob, ["Is this your service?", "No, mine is next door.", "Sent while you are away.", "Mine waits."])
  await stage.close()
})

test("who is invited while the line is cut gets the invitation when it is back, and can decline it", async () => {
  const stage = await Stage.open(browser, world.url)
  const { page, alice, bob } = await open(stage)
  await sever(page, true)
  await alice.press("Start a chat with Bob")
  await alice.pane.locator(".events li").filter({ hasText: "create" }).first().waitFor({ state: "attached" })
  await bob.pane.getByRole("button", { name: "Start a chat with Alice" }).waitFor()
  await sever(page, false)
  await bob.pane.getByRole("button", { name: "Decline" }).click()
  await bob.pane.getByText("Declined").waitFor()
  await alice.pane.locator(".events li").filter({ hasText: "a member left" }).waitFor({ state: "attached" })
  await stage.close()
})
