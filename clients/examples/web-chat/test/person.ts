// One person's page, as somebody uses it.

import assert from "node:assert/strict"
import type { Locator, Page } from "playwright-core"

/** A message as a page shows it. */
export interface Shown {
  readonly text: string
  readonly state: string
}

export class Person {
  readonly input: Locator
  readonly log: Locator

  constructor(
    readonly page: Page,
    /** The first part of the handle, in lower case. */
    readonly id: string,
  ) {
    this.input = page.getByRole("textbox", { name: /^Message to / })
    this.log = page.getByRole("log")
  }

  get name(): string {
    return this.id.charAt(0).toUpperCase() + this.id.slice(1)
  }

  get handle(): string {
    return `${this.id}.test`
  }

  /** Waits until the event stream is open, and others can invite this person. */
  async ready(): Promise<void> {
    await this.page.locator(".app[data-invitable]").waitFor()
    await this.status("connected")
  }

  async status(text: "connected" | "connecting"): Promise<void> {
    await this.page.locator(".side .status").getByText(text, { exact: true }).waitFor({ state: "attached" })
  }

  async press(button: string | RegExp): Promise<void> {
    await this.page.getByRole("button", { name: button, exact: typeof button === "string" }).click()
  }

  /** Finds people by their handles. */
  async choose(...people: readonly Person[]): Promise<void> {
    for (const { handle } of people) {
      await this.page.getByLabel("Handle").fill(handle)
      await this.page.keyboard.press("Enter")
      await this.page.getByRole("list", { name: "Chosen people" }).getByText(handle).waitFor()
    }
  }

  /** Begins a chat with people. It is open then. */
  async startChat(people: readonly Person[], name?: string): Promise<void> {
    await this.press("New chat")
    await this.choose(...people)
    if (name !== undefined) await this.page.getByLabel("Name of the group").fill(name)
    await this.press(people.length > 1 ? "Start the group" : "Start the chat")
    await this.input.waitFor()
  }

  /** Opens a chat of the list. */
  async openChat(title: string): Promise<void> {
    await this.page.locator(".chat-row").filter({ has: this.page.locator(".row-title").getByText(title, { exact: true }) }).click()
    await this.input.waitFor()
  }

  /** Accepts the invitation of somebody, and opens the chat. */
  async accept(by: Person, title = by.name): Promise<void> {
    await this.page.getByRole("article", { name: `Request of ${by.name}` }).getByRole("button", { name: "Accept" }).click()
    await this.openChat(title)
  }

  async say(text: string): Promise<void> {
    await this.input.fill(text)
    await this.input.press("Enter")
    await this.message(text).waitFor()
  }

  message(text: string): Locator {
    return this.log.locator("li.message").filter({ has: this.page.locator(".text").filter({ hasText: text }) })
  }

  /** Waits until a message is in a state. */
  async reaches(text: string, state: string): Promise<void> {
    await this.log.locator(`li.message[data-state="${state}"]`).filter({ hasText: text }).first().waitFor()
  }

  /** The state of a message. */
  async stateOf(text: string): Promise<string | null> {
    return this.message(text).getAttribute("data-state")
  }

  /** All messages, from the first to the last. */
  shown(): Promise<Shown[]> {
    return this.log.locator("li.message").evaluateAll((items) =>
      items.map((item) => ({ text: item.querySelector(".text, .gone")?.textContent ?? "", state: item.getAttribute("data-state") ?? "" })))
  }

  /** What has happened, as the conversation tells it. */
  async note(text: string | RegExp): Promise<void> {
    await this.log.locator("li.note").filter({ hasText: text }).first().waitFor()
  }

  /** Does something with a message. */
  async act(text: string, action: "Reply" | "Edit" | "Delete"): Promise<void> {
    await this.message(text).hover()
    await this.message(text).getByRole("button", { name: action }).click()
  }

  async react(text: string, emoji: string): Promise<void> {
    await this.message(text).hover()
    await this.message(text).locator("summary").click()
    await this.message(text).locator(".palette").getByRole("button", { name: emoji }).click()
    await this.message(text).getByRole("list", { name: "Reactions" }).getByRole("button", { name: new RegExp(`^${emoji}.* by `) }).waitFor()
  }

  // The panel that breaks things

  get panel(): Locator {
    return this.page.getByRole("region", { name: "Faults" })
  }

  async openPanel(): Promise<void> {
    if (!(await this.panel.isVisible())) await this.press("Faults and events")
    await this.panel.waitFor()
  }

  /** Presses a button of the panel, and waits until it is pressed, or is not any more. */
  async breaks(button: string, pressed: boolean): Promise<void> {
    await this.openPanel()
    await this.panel.getByRole("button", { name: button, pressed: !pressed }).click()
    await this.panel.getByRole("button", { name: button, pressed }).waitFor()
  }

  /** What the list of events says, from the first to the last, without times. */
  async events(): Promise<string[]> {
    await this.openPanel()
    const lines = await this.panel.locator("li").evaluateAll((items) =>
      items.map((item) => [...item.childNodes].slice(1).map((node) => node.textContent ?? "").join("").trim()))
    return lines.reverse()
  }

  /** Goes to an element with the Tab key alone, and checks that the focus is visible there. */
  async tabTo(element: Locator): Promise<void> {
    await element.waitFor({ state: "attached" })
    for (let presses = 0; presses < 60; presses++) {
      await this.page.keyboard.press("Tab")
      if (await element.evaluate((one) => one === document.activeElement)) {
        assert.equal(await element.evaluate((one) => getComputedStyle(one).outlineStyle), "solid", "the focus is visible")
        return
      }
    }
    assert.fail(`60 presses of Tab do not lead to ${String(element)}`)
  }
}

/** Waits until everything is delivered, and checks that all people see the same texts in the same order, each once. */
export async function agree(people: readonly Person[], texts: readonly string[]): Promise<void> {
  await Promise.all(people.flatMap((person) => texts.map((text) => person.message(text).waitFor())))
  for (const person of people) {
    for (const { text, state } of await person.shown()) if (state !== "received") await person.reaches(text, "read")
  }
  const [first = [], ...others] = await Promise.all(people.map(async (person) => (await person.shown()).map(({ text }) => text)))
  for (const other of others) assert.deepEqual(other, first, "all see the same order")
  assert.deepEqual([...first].sort(), [...texts].sort(), "each message is there once")
}
