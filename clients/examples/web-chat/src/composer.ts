// Where a person writes.

import { el } from "./dom.js"

export class Composer {
  readonly element: HTMLFormElement
  private readonly input: HTMLInputElement

  /** @param send stores the text. If it fails, the text stands in the field again */
  constructor(name: string, private readonly send: (text: string) => Promise<void>) {
    this.input = el("input", {
      "aria-label": `Message from ${name}`, placeholder: "Message", autocomplete: "off", maxlength: "4000",
    })
    this.element = el("form", { class: "composer", hidden: "" }, this.input, el("button", { class: "main" }, "Send"))
    this.element.addEventListener("submit", (event) => {
      event.preventDefault()
      void this.submit()
    })
  }

  focus(): void {
    this.input.focus()
  }

  private async submit(): Promise<void> {
    const text = this.input.value.trim()
    if (text === "") return
    this.input.value = ""
    try {
      await this.send(text)
    } catch {
      this.input.value = text // the client's onFailure says why
    }
  }
}
