// The states of a Welcome, as the server names them: docs/WELCOME.md.

import { el } from "./dom.js"

const states = ["available", "in_flight", "consumed"]

const explanations: Readonly<Record<string, string>> = {
  available: "waits at the server", in_flight: "fetched, not confirmed", consumed: "joined",
}

/** Shows how far the Welcome is with which a person joins. */
export class WelcomeSteps {
  readonly element = el("ol", { class: "welcome", "aria-label": "Welcome", hidden: "" })
  private reached = -1

  constructor() {
    for (const state of states) {
      this.element.append(el("li", {}, el("code", {}, state), el("small", {}, explanations[state] ?? "")))
    }
  }

  /** Shows a state. A Welcome does not go back here: a second fetch is the same step. */
  show(state: string): void {
    this.reached = Math.max(this.reached, states.indexOf(state))
    this.element.hidden = this.reached < 0
    ;[...this.element.children].forEach((step, i) => {
      step.toggleAttribute("data-reached", i <= this.reached)
      if (i === this.reached) step.setAttribute("aria-current", "step")
      else step.removeAttribute("aria-current")
    })
  }
}
