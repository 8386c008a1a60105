// Visits every page of the console in a real browser, and does with it what operators do.

import assert from "node:assert/strict"
import { mkdirSync, readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { after, before, test } from "node:test"
import { chromium } from "playwright-core"
import { pages } from "./pages.js"
import { readToken, startServer, token } from "./server.js"

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")
const pictures = process.env.SCREENSHOTS
const account = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
const shortened = "did:plc:ewvi…64oiz"
let server, browser

before(async () => {
  if (pictures) mkdirSync(pictures, { recursive: true })
  server = await startServer()
  // As root Chromium does not run in its sandbox.
  const args = process.getuid?.() === 0 ? ["--no-sandbox"] : []
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args })
  await server.play("long-conversation", "contended-commits", "welcome-damaged")
  await server.plant("plant.sql")
})

after(async () => {
  await browser?.close()
  await server?.stop()
})

/** Opens a tab of a browser that has logged in, calls use with it, and sees that nothing has gone wrong in it. */
async function visit(options, use) {
  const { secret = token, ...more } = options
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...more })
  context.setDefaultTimeout(15_000)
  const page = await context.newPage()
  const problems = []
  page.on("pageerror", (err) => problems.push(String(err)))
  page.on("console", (message) => {
    const refused = message.text().includes("status of 404") && page.url().endsWith("/actions/call") // shown as a sentence
    if (["error", "warning"].includes(message.type()) && !refused) problems.push(`${page.url()}: ${message.text()}`)
  })
  await page.goto(server.admin + "/")
  await page.getByLabel("Token").fill(secret)
  await page.getByRole("button", { name: "Log in" }).click()
  await page.getByRole("heading", { level: 1, name: "Now" }).waitFor()
  await use(page, context)
  await context.close()
  assert.deepEqual(problems, [])
}

/** Sees that a page can be used: with a screen reader as far as axe knows, and without scrolling sideways. */
async function usable(page, name) {
  await page.evaluate(axe)
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }))
  assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(" | ")}`), [], name)
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
  assert.ok(over <= 0, `${name} is ${over} px too wide`)
  if (pictures) await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true })
}

for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 390]) {
    test(`every page, ${colorScheme}, ${width} px wide`, async () => {
      await visit({ colorScheme, viewport: { width, height: 800 } }, async (page) => {
        for (const { name, path, find } of pages) {
          await page.goto(server.admin + (find ? await find(page) : path))
          assert.deepEqual(await page.getByRole("alert").filter({ visible: true }).allTextContents(), [], `${name} shows an error`)
          await usable(page, `${name}-${width}-${colorScheme}`)
          for (const details of await page.locator("main details").all()) await details.evaluate((d) => (d.open = true))
          await usable(page, `${name}-open-${width}-${colorScheme}`)
        }
      })
    })
  }
}

test("a page is read and left by keyboard", async () => {
  await visit({}, async (page) => {
    for (const { name, path, find } of pages) {
      await page.goto(server.admin + (find ? await find(page) : path))
      const focused = () => page.evaluate(() => document.activeElement.textContent.trim())
      await page.keyboard.press("Tab")
      assert.equal(await focused(), "Skip to the content", name)
      await page.keyboard.press("Enter")
      assert.equal(await page.evaluate(() => document.activeElement.id), "main", name)
      await page.keyboard.press("Shift+Tab")
      assert.equal(await focused(), "Log out", name)
      await page.keyboard.press("Shift+Tab")
      await page.keyboard.press("Enter")
      await page.getByRole("heading", { level: 1, name: "Actions" }).waitFor()
    }
  })
})

test("numbers are live, and can be paused", async () => {
  await visit({}, async (page) => {
    const at = page.locator("[data-live=at]")
    const changes = async () => {
      const before = await at.textContent()
      await page.waitForFunction((text) => document.querySelector("[data-live=at]").textContent !== text, before)
    }
    await changes()
    await page.getByRole("button", { name: "Pause" }).click()
    await page.getByRole("button", { name: "Go on" }).click()
    await changes()
  })
})

test("a check shows its result", async () => {
  await visit({}, async (page) => {
    await page.goto(server.admin + "/checks")
    await page.getByRole("button", { name: "Check everything" }).click()
    await page.getByText("All promises are kept.").first().waitFor()
    await usable(page, "checks-result")
  })
})

/** The name of an operator that is no markup in any page. */
const operator = "<script>alert(1)</script>"

/** Fills in the form of a method, and presses its button. */
async function begin(page, method, fields) {
  await page.goto(server.admin + "/actions")
  const form = page.getByRole("region", { name: method, exact: true })
  for (const [label, value] of Object.entries(fields)) await form.getByLabel(label).fill(value)
  await form.getByRole("button").click()
}

/** Confirms what the page repeats, and says who does it. */
async function confirm(page, button = "Do it") {
  await page.getByRole("heading", { level: 1, name: "Confirm" }).waitFor()
  await page.getByLabel("Operator").fill(operator)
  await page.getByLabel("Reason").fill("the check of the console")
  const final = page.getByRole("checkbox")
  if ((await final.count()) > 0) await final.check()
  await page.getByRole("button", { name: button }).click()
}

const did = { "The account's DID.": account }
const device = { ...did, "The device's id.": "phone" }
const job = { ...did, "The push job's id.": crypto.randomUUID() }
const report = { "The report's id.": crypto.randomUUID() }
const convo = { "The convo's id.": crypto.randomUUID() }

/** Every method, its fields, and what it answers about an account, convo or job that is not there. */
const methods = [
  ["account show", did, "status"],
  ["account block", did, "blocked"],
  ["account unblock", did, "blocked"],
  ["account reactivate", did, "changed"],
  ["account limit", { ...did, "Per cent of what others have": "10", "How long, such as": "7d" }, "percent"],
  ["device revoke", device, "keyPackagesWithdrawn"],
  ["dispute end", { ...convo, "The epoch that the disputed commit created.": "8" }, "There is no convo"],
  ["keypackages withdraw", did, "keyPackagesWithdrawn"],
  ["account erase", did, "begun"],
  ["erasure show", { "What account erase answered.": crypto.randomUUID() }, "There is no erasure"],
  ["convo show", convo, "There is no convo"],
  ["convo close", convo, "There is no convo"],
  ["convo promote", { ...convo, ...did }, "There is no convo"],
  ["convo delete", convo, "There is no convo"],
  ["report list", {}, "reports 1 reason"],
  ["report show", report, "There is no report"],
  ["report close", report, "There is no report"],
  ["report delete", report, "deleted"],
  ["report clear", did, "deleted"],
  ["log-key list", {}, "multikey"],
  ["log-key add", {}, "All nodes sign with it"],
  ["log-key retire", { "The key's id.": "99" }, "there is no key"],
  ["log-key withhold", { "The key's id.": "99" }, "there is no key"],
  ["relay seek", { "The relay's address": "wss://relay.example.com", "The relay's number": "7" }, "never followed"],
  ["push retry", job, "There is no push job"],
  ["push drop", job, "There is no push job"],
]

test("every action, with its confirmation", async () => {
  await visit({}, async (page) => {
    await page.goto(server.admin + "/actions")
    const shown = await page.getByRole("region").filter({ has: page.locator("form") }).getByRole("heading").allTextContents()
    assert.deepEqual(shown.toSorted(), [...methods.map(([name]) => name), "account export"].toSorted())
    for (const [name, fields, answer] of methods) {
      await begin(page, name, fields)
      if (!name.endsWith(" show") && !name.endsWith(" list")) {
        if (fields === did) await page.getByText(shortened).waitFor()
        if (name === "account erase" || name === "device revoke") await usable(page, `confirm-${name.replace(" ", "-")}`)
        await confirm(page)
      }
      await page.getByText(answer).first().waitFor()
      assert.ok(!(await page.locator("main").textContent()).includes(account), `${name} shows the DID`)
      if (name === "account show" || name === "device revoke") await usable(page, `result-${name.replace(" ", "-")}`)
    }
    await page.goto(server.admin + "/actions")
    await page.getByRole("cell", { name: operator }).first().waitFor()
    await usable(page, "actions-record")
  })
})

test("a push job is dropped, and a dead one tried again", async () => {
  await visit({}, async (page) => {
    for (const [region, button, answer] of [["Push jobs that wait", "Drop", "A worker ends the job"], ["Dead letters", "Try again", "due"]]) {
      await page.goto(server.admin + "/queues")
      await page.getByRole("region", { name: region }).getByRole("button", { name: button }).first().click()
      await confirm(page)
      await page.getByText(answer).first().waitFor()
    }
  })
})

test("a report is closed, its convo too, and somebody blocked", async () => {
  await visit({}, async (page) => {
    for (const [name, answer] of [["Block", "blocked"], ["Close the convo", "closedAt"], ["Close the report", "changed"]]) {
      await page.goto(server.admin + "/reports")
      await page.getByRole("row").filter({ hasText: "threats" }).getByRole("link").first().click()
      await page.getByRole("button", { name }).first().click()
      await confirm(page)
      await page.getByText(answer).first().waitFor()
    }
    await page.goto(server.admin + "/reports")
    await page.getByRole("region", { name: "Closed reports" }).getByRole("row").filter({ hasText: "threats" }).waitFor()
  })
})

test("an account is limited, and the limit taken back", async () => {
  await visit({}, async (page) => {
    const account = pages.find(({ name }) => name === "account")
    const path = await account.find(page)
    await page.goto(server.admin + path)
    await page.getByLabel("Per cent of the rate").fill("25")
    await page.getByLabel("For how long").fill("12h")
    await page.keyboard.press("Enter")
    await page.getByRole("heading", { level: 1, name: "Confirm" }).waitFor()
    await usable(page, "confirm-account-limit")
    await confirm(page)
    await page.getByText("until").first().waitFor()
    await page.goto(server.admin + path)
    await page.getByText("limited the account to 25 %").waitFor()
    await page.getByRole("button", { name: "Take the limit back" }).click()
    await confirm(page)
    await page.getByText("percent").first().waitFor()
    await page.goto(server.admin + path)
    assert.equal(await page.getByText("limited the account").count(), 0)
  })
})

test("a dispute is ended", async () => {
  await visit({}, async (page) => {
    const convo = pages.find(({ name }) => name === "convo")
    const path = await convo.find(page)
    await page.goto(server.admin + path)
    await page.getByRole("button", { name: "End the dispute" }).press("Enter")
    await page.getByRole("heading", { level: 1, name: "Confirm" }).waitFor()
    await usable(page, "confirm-dispute-end")
    await confirm(page)
    await page.getByText("it is not disputed again").waitFor()
    await page.goto(server.admin + path)
    await page.getByText("was in dispute").waitFor()
    assert.equal(await page.getByRole("button", { name: "End the dispute" }).count(), 0)
  })
})

test("a download is recorded", async () => {
  await visit({}, async (page) => {
    await begin(page, "account export", did)
    const downloaded = page.waitForEvent("download")
    await confirm(page, "Download")
    assert.equal((await downloaded).suggestedFilename(), "account.jsonl")
    await page.goto(server.admin + "/actions")
    await page.getByRole("row", { name: "account.export" }).getByText(shortened).waitFor()
  })
})

test("DIDs are shown in full on request", async () => {
  await visit({}, async (page) => {
    await page.goto(server.admin + "/actions")
    const body = page.locator("main")
    assert.ok(!(await body.textContent()).includes(account))
    await page.getByText("Show DIDs in full").click()
    await page.getByLabel("Operator").last().fill(operator)
    await page.getByLabel("Reason").last().fill("the check of the console")
    await page.getByRole("button", { name: "Show in full" }).click()
    await page.getByText("This page shows DIDs in full.").waitFor()
    assert.ok((await body.textContent()).includes(account))
    await page.goto(server.admin + "/actions")
    assert.ok(!(await body.textContent()).includes(account))
  })
})

test("the read token shows no buttons that change something", async () => {
  await visit({ secret: readToken }, async (page) => {
    await page.goto(server.admin + "/actions")
    assert.equal(await page.getByRole("heading", { name: "account block" }).count(), 0)
    await page.getByRole("heading", { name: "account show" }).waitFor()
    await page.getByRole("button", { name: "Log out" }).click()
    await page.getByLabel("Token").waitFor()
    await usable(page, "login")
  })
})
