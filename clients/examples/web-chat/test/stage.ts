// A browser, and people of their own for each test.

import assert from "node:assert/strict"
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core"
import { Person } from "./person.js"

const wide = { width: 1040, height: 720 }

/** Debian's Chromium, or another one. As root it does not run in its sandbox. */
export function openBrowser(): Promise<Browser> {
  const sandbox = process.getuid?.() === 0 ? ["--no-sandbox"] : []
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: sandbox })
}

/** A browser's profile: new devices of whoever signs in. */
export class Stage {
  private readonly problems: string[] = []

  private constructor(
    private readonly url: string,
    readonly context: BrowserContext,
  ) {}

  static async open(browser: Browser, url: string): Promise<Stage> {
    const context = await browser.newContext({ viewport: wide, locale: "en-GB", colorScheme: "light", acceptDownloads: true })
    context.setDefaultTimeout(60_000)
    return new Stage(url, context)
  }

  /** Opens a page. */
  async page(search = ""): Promise<Page> {
    const page = await this.context.newPage()
    page.on("pageerror", (err) => this.problems.push(String(err)))
    page.on("console", (message) => {
      if (/Content Security Policy/.test(message.text())) this.problems.push(message.text())
    })
    await page.goto(this.url + search)
    return page
  }

  /** Opens the page of a person, who is made if there is none of this name. */
  async person(name: string): Promise<Person> {
    const person = new Person(await this.page(`/?as=${name}`), name)
    await person.ready()
    return person
  }

  /** Opens the pages of two people, who begin a chat. */
  async chat(one: string, other: string): Promise<[Person, Person]> {
    const [alice, bob] = await Promise.all([this.person(one), this.person(other)])
    await alice.startChat([bob])
    await bob.accept(alice)
    return [alice, bob]
  }

  /** Closes the pages. Nothing has gone wrong in them that nobody saw. */
  async close(): Promise<void> {
    await this.context.close()
    assert.deepEqual(this.problems, [])
  }
}
