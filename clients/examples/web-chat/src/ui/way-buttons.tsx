// The two ways to the service, of somebody who has signed in with OAuth.

import type { OAuthSession } from "@atproto/oauth-client-browser"
import { errorName } from "mlsd-client"
import type { Settings } from "../../server/oauth.js"
import { sets } from "../model/sign-in.js"
import { serviceAuth } from "../model/ways.js"
import { sentenceOf } from "../model/words.js"
import { useAction } from "./use-action.js"

export function WayButtons({ session, settings, isDirect }: { session: OAuthSession; settings: Settings; isDirect: boolean }) {
  const { busy, problem, run } = useAction()
  const go = (search: string) => location.assign(location.pathname + search + location.hash)
  // It asks for a token before it leaves the way through the PDS: on that one the chat works.
  const goDirectly = async () => {
    try {
      await serviceAuth(session, settings.service, "blue.catbird.mls.createSession")
    } catch (err) {
      if (errorName(err) !== "ScopeMissingError") throw err
      throw new Error(`${sentenceOf(err)} Sign in again with “${sets.authFull}”.`)
    }
    go("?way=direct")
  }
  return (
    <section aria-label="Account">
      <div className="buttons" role="group" aria-label="Way to the service">
        <button type="button" aria-pressed={!isDirect} onClick={() => go("")}>Through the PDS</button>
        <button type="button" aria-pressed={isDirect} disabled={busy} onClick={() => void run(goDirectly)}>Directly</button>
        <button type="button" disabled={busy} onClick={() => void run(async () => { await session.signOut(); location.assign(location.pathname) })}>End the session</button>
      </div>
      {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
    </section>
  )
}
