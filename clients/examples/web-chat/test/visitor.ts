// One person in a browser of its own, who signs in at a PDS.

import assert from "node:assert/strict"
import type { Browser, BrowserContext, Page, Request } from "playwright-core"
import type { Account } from "../server/real-pds.js"
import type { sets } from "../src/model/sign-in.js"
import { Person } from "./person.js"

type Title = (typeof sets)[keyof typeof sets]

export class Visitor {
  readonly person: Person
  /** What the browser has asked for. */
  readonly requests: Request[] = []
  private readonly problems: string[] = []

  private constructor(
    private readonly url: string,
    private readonly account: Account,
    readonly context: BrowserContext,
    readonly page: Page,
  ) {
    this.person = new Person(page, account.handle.replace(/\.test$/, ""))
    context.on("request", (request) => this.requests.push(request))
    page.on("pageerror", (err) => this.problems.push(String(err)))
    page.on("console", (message) => {
      if (/Content Security Policy/.test(message.text()) && page.url().startsWith(url)) this.problems.push(message.text())
    })
  }

  static async open(browser: Browser, url: string, account: Account): Promise<Visitor> {
    const context = await browser.newContext({ viewport: { width: 1040, height: 720 }, locale: "en-GB", colorScheme: "light" })
    context.setDefaultTimeout(120_000)
    const visitor = new Visitor(url, account, context, await context.newPage())
    await visitor.page.goto(url)
    return visitor
  }

  /** Asks for a set of permissions, and waits for the consent page of the PDS. */
  async ask(title: Title): Promise<void> {
    const { page } = this
    await page.getByLabel("Your handle").fill(this.account.handle)
    await page.getByLabel(title).check()
    await page.getByRole("button", { name: "Sign in" }).click()
    await page.getByRole("textbox", { name: "Password" }).fill("password")
    await page.getByRole("button", { name: "Sign in", exact: true }).click()
    await page.getByRole("button", { name: "Authorize" }).waitFor()
  }

  /** Answers on the consent page, and waits until the browser is back. */
  async answer(button: "Authorize" | "Deny access"): Promise<void> {
    await this.page.getByRole("button", { name: button }).click()
    await this.page.waitForURL((url) => url.href.startsWith(this.url))
  }

  /** Signs in. */
  async signIn(title: Title): Promise<void> {
    await this.ask(title)
    await this.answer("Authorize")
  }

  /** Opens the screen about the person, which has the way to the service. */
  async openMe(): Promise<void> {
    await this.page.getByRole("button", { name: /me and my devices$/ }).click()
  }

  async signOut(): Promise<void> {
    await this.openMe()
    await this.page.getByRole("button", { name: "End the session" }).click()
    await this.page.getByLabel("Your handle").waitFor()
  }

  /** The URLs of the service's methods that the browser has called since it has asked for so much. */
  calls(since = 0): Request[] {
    return this.requests.slice(since).filter((request) => request.url().includes("/xrpc/blue.catbird.mls.") && request.method() !== "OPTIONS")
  }

  /** Closes the browser. Nothing has gone wrong in the page, and all that it asked for is on this machine. */
  async close(): Promise<void> {
    await this.context.close()
    assert.deepEqual(this.problems, [])
    const hosts = new Set(this.requests.map((request) => new URL(request.url())).filter(({ protocol }) => protocol !== "data:" && protocol !== "blob:").map(({ hostname }) => hostname))
    assert.deepEqual([...hosts].sort(), ["127.0.0.1", "localhost"])
  }
}
