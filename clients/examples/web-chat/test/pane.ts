// One person's pane, as somebody uses it.

import assert from "node:assert/strict"
import type { Locator, Page } from "playwright-core"

/** A message as a pane shows it. */
export interface Shown {
  readonly text: string
  readonly state: string
}

export class PaneOf {
  readonly pane: Locator
  readonly input: Locator

  constructor(
    private readonly page: Page,
    readonly name: string,
  ) {
    this.pane = page.getByRole("region", { name, exact: true })
    this.input = page.getByLabel(`Message from ${name}`)
  }

  /** Waits until the event stream is open. */
  async connected(): Promise<void> {
    await this.pane.getByRole("status").getByText("connected", { exact: true }).waitFor()
  }

  /** Waits until others can invite this person. */
  async published(): Promise<void> {
    await this.pane.locator(".events li").filter({ hasText: "published:" }).waitFor({ state: "attached" })
  }

  async press(button: string): Promise<void> {
    await this.pane.getByRole("button", { name: button }).click()
  }

  /** Accepts, if this person is asked: once two people share a convo, nobody asks any more. */
  async acceptIfAsked(joined: Promise<void> = this.input.waitFor()): Promise<void> {
    const accept = this.pane.getByRole("button", { name: "Accept" })
    await Promise.race([joined, accept.waitFor()])
    if (await accept.isVisible()) await accept.click()
  }

  async say(text: string): Promise<void> {
    await this.input.fill(text)
    await this.input.press("Enter")
    await this.message(text).waitFor()
  }

  message(text: string): Locator {
    return this.pane.getByRole("log").locator("li[data-state]").filter({ hasText: text })
  }

  /** Waits until a message is in a state. */
  async reaches(text: string, state: string): Promise<void> {
    await this.pane.locator(`li[data-state="${state}"]`).filter({ hasText: text }).waitFor()
  }

  /** The state of a message. */
  async stateOf(text: string): Promise<string | null> {
    return this.message(text).getAttribute("data-state")
  }

  /** All messages, from the first to the last. */
  shown(): Promise<Shown[]> {
    return this.pane.locator("li[data-state]").evaluateAll((items) =>
      items.map((item) => ({ text: item.querySelector("p")?.textContent ?? "", state: item.getAttribute("data-state") ?? "" })))
  }

  /** What the list of events says, from the first to the last, without times. */
  async events(): Promise<string[]> {
    const lines = await this.pane.locator(".events li").evaluateAll((items) =>
      items.map((item) => [...item.childNodes].slice(1).map((node) => node.textContent ?? "").join("").trim()))
    return lines.reverse()
  }

  /** Goes to an element with the Tab key alone, and checks that the focus is visible there. */
  async tabTo(element: Locator): Promise<void> {
    for (let presses = 0; presses < 40; presses++) {
      await this.page.keyboard.press("Tab")
      if (await element.evaluate((one) => one === document.activeElement)) {
        assert.equal(await element.evaluate((one) => getComputedStyle(one).outlineStyle), "solid", "the focus is visible")
        return
      }
    }
    assert.fail("40 presses of Tab do not lead there")
  }
}

/**
 * Waits until everything is delivered, and checks that both people see the same texts in the same
 * order, each once.
 */
export async function agree(alice: PaneOf, bob: PaneOf, texts: readonly string[]): Promise<void> {
  await Promise.all(texts.flatMap((text) => [alice.message(text).waitFor(), bob.message(text).waitFor()]))
  for (const [one, other] of [[alice, bob], [bob, alice]] as const) {
    for (const { text, state } of await one.shown()) {
      if (state !== "received") await Promise.all([one.reaches(text, "seen"), other.reaches(text, "received")])
    }
  }
  const [hers, his] = [await alice.shown(), await bob.shown()]
  assert.deepEqual(hers.map(({ text }) => text), his.map(({ text }) => text), "both see the same order")
  assert.deepEqual(hers.map(({ text }) => text).sort(), [...texts].sort(), "each message is there once")
}
