// The page on which one person signs in with OAuth, and chats: through the PDS, or with ?way=direct
// directly.

import type { OAuthSession } from "@atproto/oauth-client-browser"
import { asDid, errorName } from "mlsd-client"
import type { Settings } from "../server/oauth.js"
import { button, el } from "./dom.js"
import { sentenceOf } from "./event-list.js"
import { Pane } from "./pane.js"
import { openPhone } from "./phone.js"
import { SignInForm } from "./sign-in-form.js"
import { isDenial, sets, SignIn } from "./sign-in.js"
import { directly, serviceAuth, throughPds } from "./ways.js"

const settings = (await (await fetch("/settings")).json()) as Settings
const signIn = new SignIn(settings)
const main = document.querySelector("main")
const alert = el("p", { class: "alert", role: "alert", hidden: "" })
document.querySelector(".top")?.after(alert)

try {
  const session = await signIn.session()
  if (session === undefined) askForSignIn()
  else await chat(session)
} catch (err) {
  fail(isDenial(err) ? "Your PDS has given this app no access: you have refused it." : sentenceOf(err))
  askForSignIn()
}

function askForSignIn(): void {
  main?.replaceChildren(new SignInForm(signIn, fail).element)
}

async function chat(session: OAuthSession): Promise<void> {
  const person = settings.people.find(({ did }) => did === session.did)
  const other = settings.people.find(({ did }) => did !== session.did)
  if (person === undefined || other === undefined) throw new Error("nobody to chat with")
  const home = settings.service.replace(/#.*/, "") // of both
  const direct = new URLSearchParams(location.search).get("way") === "direct"
  const way = direct ? directly(session, settings) : throughPds(session, settings)
  const pane = new Pane({ name: person.handle, did: person.did, home }, { name: other.handle, did: other.did, home },
    (events) => openPhone(asDid(session.did), { agent: session, directory: settings.directory }, way, events))
  const pds = button("Through the PDS", () => (location.search = ""), { "aria-pressed": String(!direct) })
  const service = button("Directly", () => void goDirectly(session), { "aria-pressed": String(direct) })
  const out = button("Sign out", () => void session.signOut().then(() => (location.search = ""), fail), { class: "link" })
  document.querySelector("#server")?.append(el("div", { class: "ways", role: "group", "aria-label": "Way to the service" }, pds, service), out)
  main?.append(pane.element)
  await pane.open()
}

// goDirectly asks for a token before it leaves the way through the PDS: on that one the chat works.
async function goDirectly(session: OAuthSession): Promise<void> {
  try {
    await serviceAuth(session, settings.service, "blue.catbird.mls.createSession")
    location.search = "?way=direct"
  } catch (err) {
    const scope = errorName(err) === "ScopeMissingError"
    fail(scope ? `${sentenceOf(err)} Sign out, and sign in with “${sets.authFull}”.` : err)
  }
}

function fail(err: unknown): void {
  alert.textContent = typeof err === "string" ? err : sentenceOf(err)
  alert.hidden = false
}
