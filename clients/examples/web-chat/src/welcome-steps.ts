// The states of a Welcome, as the server names them: docs/WELCOME.md.

import { el } from "./dom.js"

const states = ["available", "in_flight", "consumed"]

const explanations: Readonly<Record<string, string>> = {
  available: "waits at the server", in_flight: "fetched, not confirmed", consumed: "joined",
}

/** Shows how far the Welcome is with which a person joins. */
export class WelcomeSteps {
  readonly element: HTMLElement
  private readonly steps = states.map((state) =>
    el("li", {}, el("code", {}, state), el("small", {}, explanations[state] ?? "")))
  private reached = -1

  constructor() {
    this.element = el("div", { class: "welcome", hidden: "" },
      el("small", {}, "Welcome"), el("ol", { "aria-label": "Welcome" }, ...this.steps))
  }

  /** Shows a state. A Welcome does not go back here: a second fetch is the same step. */
  show(state: string): void {
    this.reached = Math.max(this.reached, states.indexOf(state))
    this.element.hidden = this.reached < 0
    this.steps.forEach((step, i) => {
      step.toggleAttribute("data-reached", i <= this.reached)
      if (i === this.reached) step.setAttribute("aria-current", "step")
      else step.removeAttribute("aria-current")
    })
  }
}
