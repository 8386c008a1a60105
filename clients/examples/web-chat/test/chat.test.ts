// Two people in a real browser: what both see, whatever is broken.

import assert from "node:assert/strict"
import { after, before, test } from "node:test"
import type { Browser, Page, Route } from "playwright-core"
import { compile, type Running, start } from "../server/world.js"
import { accessible, lookAt, picture } from "./look.js"
import { agree } from "./person.js"
import { openBrowser, Stage } from "./stage.js"

let world: Running
let browser: Browser

// Each test has people of its own.
before(async () => {
  world = await start(process.env.MLSD_BINARIES ?? compile(), 0)
  browser = await openBrowser()
})

after(async () => {
  await browser.close()
  await world.stop()
})

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

test("two people sign in and chat by keyboard, and see what becomes of each message", async () => {
  const stage = await Stage.open(browser, world.url)
  const first = await stage.page()
  await first.getByRole("heading", { name: "Web chat" }).waitFor()
  await lookAt(first, "sign-in")
  await first.getByLabel("Your name").fill("dora")
  await first.keyboard.press("Enter")
  await first.waitForURL(/as=dora/)
  await first.close()

  const [dora, emil] = await Promise.all([stage.person("dora"), stage.person("emil")])
  const { page } = dora
  await dora.tabTo(page.getByRole("button", { name: "New chat" }))
  await page.keyboard.press("Enter")
  await dora.tabTo(page.getByLabel("Handle"))
  await page.keyboard.type("emil.test")
  await page.keyboard.press("Enter")
  await page.getByRole("list", { name: "Chosen people" }).waitFor()
  await accessible(page)
  await dora.tabTo(page.getByRole("button", { name: "Start the chat" }))
  await page.keyboard.press("Enter")
  await dora.tabTo(dora.input)
  await page.keyboard.type("Morning! Did the train make it?")
  await page.keyboard.press("Enter")

  await emil.page.getByRole("article", { name: "Request of Dora" }).waitFor()
  await lookAt(emil.page, "request")
  await emil.tabTo(emil.page.getByRole("button", { name: "Accept" }))
  await emil.page.keyboard.press("Enter")
  await emil.tabTo(emil.page.getByRole("list", { name: "Chats" }).getByRole("button", { name: "Dora" }))
  await emil.page.keyboard.press("Enter")
  await dora.reaches("Morning!", "read")
  await emil.tabTo(emil.input)
  await emil.page.keyboard.type("Just. Ran the last bit,")
  await emil.page.keyboard.press("Shift+Enter")
  await emil.page.keyboard.type("coffee in hand.")
  await emil.page.keyboard.press("Enter")
  await emil.reaches("Just.", "read")
  await agree([dora, emil], ["Morning! Did the train make it?", "Just. Ran the last bit,\ncoffee in hand."])
  const states = (await emil.events()).filter((line) => line.startsWith("Welcome "))
  assert.deepEqual(states, ["Welcome available", "Welcome in_flight", "Welcome consumed"])
  await accessible(emil.page)

  const second = await stage.page("/?as=dora")
  await second.getByText("Your chats are open in another tab.").waitFor()
  await accessible(second)
  await page.close()
  await second.getByRole("list", { name: "Chats" }).getByRole("button", { name: "Emil" }).waitFor()
  await stage.close()
})

test("a message whose answer is lost is tried again, and arrives once", async () => {
  const stage = await Stage.open(browser, world.url)
  const [alice, bob] = await stage.chat("fay", "gus")
  await alice.say("Are you at the station?")
  await alice.reaches("Are you at the station?", "read")
  await alice.breaks("Lose next answer", true)
  const { arrived, release } = await hold(alice.page, "sendMessage", 1)
  await alice.say("I am at the north entrance.")
  await arrived
  await alice.reaches("I am at the north entrance.", "retrying")
  await alice.say("Bring the keys, please.")
  await alice.reaches("Bring the keys, please.", "queued")
  await bob.reaches("I am at the north entrance.", "received")
  await accessible(alice.page)
  await picture(alice.page, "retrying")
  await release()
  await bob.say("On my way.")
  await agree([alice, bob], ["Are you at the station?", "I am at the north entrance.", "Bring the keys, please.", "On my way."])
  await alice.panel.getByRole("button", { name: "Lose next answer", pressed: false }).waitFor()
  assert.match((await alice.events()).join("\n"), /^send no answer; the same bytes again in 0\.\d s$/m)
  await stage.close()
})

test("what is written offline is sent when the line is back", async () => {
  const stage = await Stage.open(browser, world.url)
  const [alice, bob] = await stage.chat("hana", "ivo")
  await alice.breaks("Offline", true)
  await alice.status("connecting")
  await alice.say("We are in a tunnel.")
  await alice.reaches("We are in a tunnel.", "retrying")
  await alice.say("Still in it.")
  await alice.reaches("Still in it.", "queued")
  await bob.say("Are you there?")
  await bob.reaches("Are you there?", "sent")
  await lookAt(alice.page, "offline")
  await alice.breaks("Offline", false)
  await agree([alice, bob], ["We are in a tunnel.", "Still in it.", "Are you there?"])
  await stage.close()
})

test("a service that is killed has everything when it is back", async () => {
  const stage = await Stage.open(browser, world.url)
  const [alice, bob] = await stage.chat("jana", "kim")
  await alice.say("Is the server all right?")
  await alice.reaches("Is the server", "read")
  await alice.openPanel()
  await alice.press("Kill the server")
  await alice.panel.getByText("Server was killed").waitFor()
  await alice.say("It was, a second ago.")
  await bob.say("Mine says: no answer.")
  await alice.reaches("It was", "retrying")
  await bob.status("connecting")
  assert.notEqual(await bob.stateOf("Mine says"), "sent")
  await accessible(alice.page)
  await alice.press("Start it again")
  await alice.panel.getByText("Server is running").waitFor()
  await bob.press("Try now")
  await agree([alice, bob], ["Is the server all right?", "It was, a second ago.", "Mine says: no answer."])
  await stage.close()
})

test("a reload in the middle of a send delivers once", async () => {
  const stage = await Stage.open(browser, world.url)
  const [alice, bob] = await stage.chat("lena", "max")
  const { page } = alice
  const { arrived } = await hold(page, "sendMessage")
  await alice.say("never left")
  await arrived
  await alice.reaches("never left", "sending")
  await page.unrouteAll({ behavior: "ignoreErrors" })
  await page.reload()
  await agree([alice, bob], ["never left"])
  await page.route(pathOf("sendMessage"), async (route) => void (await route.fetch()))
  await alice.say("left, and no answer came")
  await bob.reaches("left, and no answer came", "received")
  await alice.reaches("left, and no answer came", "sending")
  await page.unrouteAll({ behavior: "ignoreErrors" })
  await page.reload()
  await agree([alice, bob], ["never left", "left, and no answer came"])
  await stage.close()
})

test("somebody who comes late joins with the Welcome that waits", async () => {
  const stage = await Stage.open(browser, world.url)
  const early = await stage.person("omar")
  await early.page.close()
  const alice = await stage.person("nora")
  await alice.startChat([early])
  await alice.say("read this when you are up")
  await alice.reaches("read this", "sent")
  const bob = await stage.person("omar")
  const { arrived, release } = await hold(bob.page, "confirmWelcome")
  await bob.page.getByRole("button", { name: "Accept" }).click()
  await arrived
  assert.equal((await bob.events()).findLast((line) => line.startsWith("Welcome ")), "Welcome in_flight")
  await release()
  await bob.openChat("Nora")
  await bob.reaches("read this", "received")
  await bob.say("I am up")
  await agree([alice, bob], ["read this when you are up", "I am up"])
  await bob.page.reload()
  await bob.reaches("I am up", "read")
  await stage.close()
})
