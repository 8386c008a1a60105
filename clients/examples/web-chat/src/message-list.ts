// The messages of a chat on the screen.

import type { Message, State } from "./chat.js"
import { clock, el } from "./dom.js"

const words: Readonly<Record<State, string>> = {
  queued: "queued", sending: "sending", retrying: "no answer, trying again", sent: "sent", seen: "seen", refused: "refused",
  received: "",
}

/** A list of messages. Its style keeps it at its end while new ones come. */
export class MessageList {
  readonly element: HTMLElement
  private readonly list = el("ul")
  private readonly shown = new Map<string, HTMLLIElement>()

  /** @param label the name of the list for screen readers, which read each new message */
  constructor(label: string, ...before: Node[]) {
    const content = el("div", {}, ...before, this.list)
    this.element = el("div", { class: "messages", role: "log", "aria-label": label, tabindex: "0" }, content)
  }

  show(messages: readonly Message[]): void {
    messages.forEach((message, i) => {
      const item = this.shown.get(message.id) ?? this.add(message)
      update(item, message)
      if (this.list.children[i] !== item) this.list.insertBefore(item, this.list.children[i] ?? null)
    })
  }

  private add({ id, text }: Message): HTMLLIElement {
    const item = el("li", {}, el("p", {}, text), el("small", {}, el("time"), el("span", { class: "state" })))
    this.shown.set(id, item)
    return item
  }
}

function update(item: HTMLLIElement, { state, at }: Message): void {
  if (item.dataset.state === state) return
  item.dataset.state = state
  const [time, word] = [item.querySelector("time"), item.querySelector(".state")]
  if (time === null || word === null) return
  time.textContent = clock(at)
  time.dateTime = at.toISOString()
  word.textContent = words[state]
}
