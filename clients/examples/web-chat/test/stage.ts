// A browser, and a page of its own for each test.

import assert from "node:assert/strict"
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core"
import { PaneOf } from "./pane.js"

const wide = { width: 1040, height: 720 }

/** Debian's Chromium, or another one. As root it does not run in its sandbox. */
export function openBrowser(): Promise<Browser> {
  const sandbox = process.getuid?.() === 0 ? ["--no-sandbox"] : []
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: sandbox })
}

/** A browser's profile: new devices of both people. */
export class Stage {
  private readonly problems: string[] = []

  private constructor(
    private readonly url: string,
    readonly context: BrowserContext,
  ) {}

  static async open(browser: Browser, url: string): Promise<Stage> {
    const context = await browser.newContext({ viewport: wide, locale: "en-GB", colorScheme: "light" })
    context.setDefaultTimeout(30_000)
    return new Stage(url, context)
  }

  /** Opens the page with both people, or with the one that is named. */
  async page(as?: "alice" | "bob"): Promise<Page> {
    const page = await this.context.newPage()
    page.on("pageerror", (err) => this.problems.push(String(err)))
    page.on("console", (message) => {
      if (/Content Security Policy/.test(message.text())) this.problems.push(message.text())
    })
    await page.goto(this.url + (as === undefined ? "" : `/?as=${as}`))
    return page
  }

  /** Opens the page, and starts a chat. */
  async chat(): Promise<{ page: Page; alice: PaneOf; bob: PaneOf }> {
    const page = await this.page()
    const [alice, bob] = [new PaneOf(page, "Alice"), new PaneOf(page, "Bob")]
    await Promise.all([alice, bob].flatMap((one) => [one.connected(), one.published()]))
    await alice.press("Start a chat with Bob")
    await bob.acceptIfAsked()
    await Promise.all([alice.input.waitFor(), bob.input.waitFor()])
    return { page, alice, bob }
  }

  /** Closes the page. Nothing has gone wrong in it that nobody saw. */
  async close(): Promise<void> {
    await this.context.close()
    assert.deepEqual(this.problems, [])
  }
}
