// One evening of four people with six devices: everything that the app can do, played by their fingers.

import assert from "node:assert/strict"
import { readFile } from "node:fs/promises"
import { after, before, test } from "node:test"
import type { Browser } from "playwright-core"
import { compile, type Running, start } from "../server/world.js"
import { accessible, lookAt, picture } from "./look.js"
import { drawing } from "./drawing.js"
import { openBrowser, Stage } from "./stage.js"

let world: Running
let browser: Browser

before(async () => {
  world = await start(process.env.MLSD_BINARIES ?? compile(), 0)
  browser = await openBrowser()
})

after(async () => {
  await browser.close()
  await world.stop()
})

test("three people write, react, reply, edit, delete, and send files", async () => {
  const stage = await Stage.open(browser, world.url)
  const [anna, ben, cleo] = await Promise.all(["anna", "ben", "cleo"].map((name) => stage.person(name)))
  assert.ok(anna && ben && cleo)

  // A group with a name
  await anna.startChat([ben, cleo], "Dinner on Friday")
  await anna.say("Dinner on Friday? I found a recipe: https://example.com/soup.")
  await Promise.all([ben, cleo].map((one) => one.accept(anna, "Dinner on Friday")))
  await ben.say("I’m in! @cleo, do you bring bread?")
  await cleo.message("I’m in!").locator(".mention.self").getByText("@cleo").waitFor()
  const link = anna.message("I found a recipe").getByRole("link")
  assert.deepEqual([await link.getAttribute("href"), await link.getAttribute("rel")], ["https://example.com/soup", "noopener noreferrer"])

  // Reactions, replies, edits, deletions
  await cleo.react("I’m in!", "🎉")
  await anna.react("I’m in!", "🎉")
  await ben.message("I’m in!").getByRole("button", { name: "🎉 2 by Cleo, Anna" }).waitFor()
  await cleo.act("I’m in!", "Reply")
  await cleo.page.keyboard.type("Sure. The dark one?")
  await cleo.page.keyboard.press("Enter")
  await ben.message("Sure.").getByRole("button", { name: /^You I’m in!/ }).waitFor()
  await ben.input.focus()
  await ben.page.keyboard.press("ArrowUp")
  await ben.input.fill("I’m in! @cleo, do you bring bread, or shall I?")
  await ben.page.keyboard.press("Enter")
  await anna.message("or shall I?").getByText("edited").waitFor()
  await cleo.say("wrong chat, sorry")
  await anna.message("wrong chat").waitFor()
  await cleo.act("wrong chat", "Delete")
  await accessible(cleo.page)
  await cleo.page.getByRole("dialog").getByRole("button", { name: "Delete" }).click()
  await anna.log.getByText("This message was deleted").waitFor()

  // Typing
  await anna.input.pressSequentially("let me")
  await ben.page.getByText("Anna is typing …").waitFor()
  await anna.input.fill("")

  // Files
  await anna.page.getByLabel("File", { exact: true }).setInputFiles({ name: "soup.png", mimeType: "image/png", buffer: drawing(640, 420) })
  await anna.page.getByLabel("What it shows").fill("A pot of red soup")
  await accessible(anna.page)
  await anna.page.getByRole("dialog").getByRole("button", { name: "Send" }).click()
  await ben.log.getByRole("img", { name: "A pot of red soup" }).waitFor()
  await ben.page.getByRole("button", { name: "Open A pot of red soup" }).click()
  const download = ben.page.waitForEvent("download")
  await ben.press(/^Download soup\.png/)
  assert.deepEqual(await readFile(await (await download).path()), drawing(640, 420))
  await accessible(ben.page)
  await ben.page.keyboard.press("Escape")
  await ben.page.getByLabel("File", { exact: true }).setInputFiles({ name: "card.svg", mimeType: "image/svg+xml", buffer: Buffer.from("<svg xmlns='http://www.w3.org/2000/svg'/>") })
  await ben.page.getByRole("dialog").getByRole("button", { name: "Send" }).click()
  await anna.page.getByRole("button", { name: /^Download card\.svg/ }).waitFor()
  assert.equal(await anna.log.locator("img").count(), 1, "what can have scripts is no picture")

  // Search
  await ben.press("Search in this chat")
  await ben.page.getByRole("searchbox").fill("RECIPE")
  await ben.page.getByRole("list", { name: "Found messages" }).getByRole("button").click()
  await lookAt(ben.page, "conversation")
  await ben.page.getByRole("searchbox").fill("wrong chat")
  await ben.page.getByText("Nothing found").waitFor()
  await stage.close()
})

test("four people and six devices spend an evening", async () => {
  const [stage, other, third] = await Promise.all([1, 2, 3].map(() => Stage.open(browser, world.url)))
  assert.ok(stage && other && third)
  const [alice, bob, carol, dave] = await Promise.all(["alice", "bob", "carol", "dave"].map((name) => stage.person(name)))
  assert.ok(alice && bob && carol && dave)
  const title = "Dinner on Friday"
  await alice.startChat([bob, carol], title)
  await Promise.all([bob, carol].map((one) => one.accept(alice, title)))
  await bob.say("Who cooks?")
  await carol.reaches("Who cooks?", "received")

  // Roles, and people who come and go
  await alice.press("About this group")
  const group = alice.page.getByRole("dialog", { name: "Group" })
  await group.getByRole("button", { name: "Make admin: Bob" }).click()
  await group.getByRole("listitem", { name: "Bob" }).getByText("admin", { exact: true }).waitFor()
  await group.getByRole("region", { name: "Group code" }).waitFor()
  await lookAt(alice.page, "group")
  await alice.choose(dave)
  await group.getByRole("button", { name: "Add Dave" }).click()
  await group.getByRole("listitem", { name: "Dave" }).waitFor()
  await alice.page.keyboard.press("Escape")
  await dave.accept(alice, title)
  await alice.note("You added Dave")
  await dave.say("Hello all, thanks for having me.")
  await carol.reaches("Hello all", "received")

  // New devices enter by themselves
  const [alice2, bob2] = await Promise.all([other.person("alice"), third.person("bob")])
  await carol.note("Alice’s new device is here")
  await carol.note("Bob’s new device is here")
  await alice2.page.locator(".chat-row").click()
  await alice2.say("This is from the kitchen.")
  await Promise.all([alice, bob, dave].map((one) => one.message("from the kitchen").waitFor()))
  await bob2.page.locator(".chat-row").waitFor()
  await lookAt(carol.page, "devices-enter")

  // My devices
  await alice.press(/me and my devices$/)
  await alice.page.getByRole("region", { name: "My devices" }).getByRole("button", { name: /^Remove the device/ }).waitFor()
  await lookAt(alice.page, "devices")
  await alice.press(/^Remove the device/)
  await alice.page.getByRole("dialog", { name: "Remove this device?" }).getByRole("button", { name: "Remove" }).click()
  await alice2.page.getByText("This device was removed").waitFor()
  await accessible(alice2.page)
  await alice.page.keyboard.press("Escape")

  // Safety number
  await alice.press("About this group")
  await alice.press("Verify Bob")
  const safety = alice.page.getByRole("dialog", { name: "Safety number with Bob" })
  await safety.getByRole("img", { name: "The number as a QR code" }).waitFor()
  await safety.getByRole("button", { name: "Mark as compared" }).click()
  await safety.getByText("You have compared this number.").waitFor()
  await lookAt(alice.page, "safety")
  await alice.page.keyboard.press("Escape")

  await picture(alice.page, "evening")
  await Promise.all([stage, other, third].map((one) => one.close()))
})

test("a file goes on after a reload, and can be taken back", async () => {
  const stage = await Stage.open(browser, world.url)
  const [alice, bob] = await stage.chat("rosa", "sam")
  const { page } = alice
  let parts = 0
  await page.route("**/xrpc/blue.catbird.mls.putAttachmentPart*", (route) => (parts++ === 0 ? route.continue() : undefined))
  const photo = { name: "minutes.bin", mimeType: "application/octet-stream", buffer: Buffer.alloc(3_000_000, 7) }
  await page.getByLabel("File", { exact: true }).setInputFiles(photo)
  await page.getByRole("dialog").getByRole("button", { name: "Send" }).click()
  await page.getByText(/3\d %|6\d %/).waitFor()
  await lookAt(page, "attachment")
  await page.unrouteAll({ behavior: "ignoreErrors" })
  await page.reload()
  await bob.page.getByRole("button", { name: /^Download minutes\.bin/ }).waitFor()
  await page.getByRole("list", { name: "Files on their way" }).waitFor({ state: "hidden" })

  await page.route("**/xrpc/blue.catbird.mls.createAttachment", () => undefined)
  await page.getByLabel("File", { exact: true }).setInputFiles({ ...photo, name: "wrong.bin" })
  await page.getByRole("dialog").getByRole("button", { name: "Send" }).click()
  await page.getByRole("button", { name: "Do not send wrong.bin" }).click()
  await page.getByRole("list", { name: "Files on their way" }).waitFor({ state: "hidden" })
  await page.unrouteAll({ behavior: "ignoreErrors" })
  await alice.say("That is all.")
  await bob.reaches("That is all.", "received")
  assert.equal(await bob.page.getByRole("button", { name: /^Download wrong\.bin/ }).count(), 0)
  await stage.close()
})

test("who is blocked does not ask any more, and what a person has read can be kept", async () => {
  const stage = await Stage.open(browser, world.url)
  const [uwe, vera, wim] = await Promise.all(["uwe", "vera", "wim"].map((name) => stage.person(name)))
  assert.ok(uwe && vera && wim)
  await uwe.startChat([vera])
  const request = vera.page.getByRole("article", { name: "Request of Uwe" })
  await request.getByRole("button", { name: "Block" }).click()
  await request.waitFor({ state: "hidden" })
  await vera.press(/me and my devices$/)
  await vera.press("Unblock Uwe")
  await vera.page.getByRole("switch", { name: /Read receipts/ }).uncheck()
  await accessible(vera.page)
  await vera.page.keyboard.press("Escape")
  await vera.startChat([wim])
  await wim.accept(vera)
  await wim.say("Do you see this?")
  await vera.reaches("Do you see this?", "received")
  await vera.say("I do, and do not say so.")
  await wim.reaches("I do", "received")
  await vera.reaches("I do", "read")
  assert.equal(await wim.stateOf("Do you see this?"), "sent")
  await stage.close()
})
