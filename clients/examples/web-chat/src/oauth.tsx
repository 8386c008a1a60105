// The page on which one person signs in with OAuth, and chats: through the PDS, or with ?way=direct directly.

import { createRoot } from "react-dom/client"
import type { OAuthSession } from "@atproto/oauth-client-browser"
import { asDid } from "mlsd-client"
import type { Settings } from "../server/oauth.js"
import { isDenial, SignIn } from "./model/sign-in.js"
import { directly, throughPds } from "./model/ways.js"
import { sentenceOf } from "./model/words.js"
import { Opening } from "./ui/opening.js"
import { OAuthForm } from "./ui/oauth-form.js"
import { WayButtons } from "./ui/way-buttons.js"
import "./style/all.css"

const root = createRoot(document.querySelector("#root")!)
const settings = (await (await fetch("/settings")).json()) as Settings
const signIn = new SignIn(settings)

try {
  const session = await signIn.session()
  if (session === undefined) askForSignIn()
  else chat(session)
} catch (err) {
  askForSignIn(isDenial(err) ? "Your PDS has given this app no access: you have refused it." : sentenceOf(err))
}

function askForSignIn(problem?: string): void {
  root.render(<OAuthForm signIn={signIn} problem={problem} />)
}

function chat(session: OAuthSession): void {
  const isDirect = new URLSearchParams(location.search).get("way") === "direct"
  const way = isDirect ? directly(session, settings) : throughPds(session, settings)
  const account = { did: asDid(session.did), agent: session, directory: settings.directory, way }
  root.render(<Opening account={account} breaks={false} way={<WayButtons session={session} settings={settings} isDirect={isDirect} />} />)
}
