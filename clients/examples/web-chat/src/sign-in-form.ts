// Where a person says who it is, and what the app may do.

import { el } from "./dom.js"
import { type SetName, sets, type SignIn } from "./sign-in.js"

const explanations: Readonly<Record<SetName, string>> = {
  authRead: "This page then shows what it may not do.",
  authMessaging: "The chat goes through your PDS.",
  authFull: "The chat also goes directly to the service.",
}

export class SignInForm {
  readonly element: HTMLFormElement
  private readonly handle = el("input", { id: "handle", autocomplete: "username", autocapitalize: "none", spellcheck: "false", required: "" })
  private readonly submit = el("button", { class: "main" }, "Sign in")

  constructor(
    private readonly signIn: SignIn,
    private readonly onFailure: (err: unknown) => void,
  ) {
    const choices = (Object.keys(sets) as SetName[]).map((name) =>
      el("label", {}, el("input", { type: "radio", name: "set", value: name, ...(name === "authMessaging" && { checked: "" }) }),
        el("span", {}, sets[name], el("small", {}, explanations[name]))))
    this.element = el("form", { class: "sign-in" },
      el("label", { for: "handle" }, "Your handle"), this.handle,
      el("fieldset", {}, el("legend", {}, "What this app may do"), ...choices), this.submit)
    this.element.addEventListener("submit", (event) => {
      event.preventDefault()
      void this.start()
    })
  }

  private async start(): Promise<void> {
    const set = new FormData(this.element).get("set") as SetName
    this.submit.disabled = true
    try {
      await this.signIn.start(this.handle.value.trim(), set)
    } catch (err) {
      this.onFailure(err)
    }
    this.submit.disabled = false
  }
}
