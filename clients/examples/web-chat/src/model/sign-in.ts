// Sign-in with OAuth at the person's PDS: docs/clients/OAUTH.md.

import { BrowserOAuthClient, buildAtprotoLoopbackClientMetadata, OAuthCallbackError, type OAuthSession } from "@atproto/oauth-client-browser"
import type { Settings } from "../../server/oauth.js"

/** The permission sets of the service, and their titles. An app asks for one of them. */
export const sets = {
  authRead: "Read your encrypted chats",
  authMessaging: "Use encrypted chat",
  authFull: "Full access to encrypted chat",
} as const

export type SetName = keyof typeof sets

export class SignIn {
  private readonly client: BrowserOAuthClient

  constructor(private readonly settings: Settings) {
    // What the PDS reads about the app, with every scope that it may ever ask for. In an app on the web
    // it is a file, whose address is the app's id: BrowserOAuthClient.load fetches it.
    const clientMetadata = buildAtprotoLoopbackClientMetadata({
      scope: scopeOf(Object.keys(sets) as SetName[], settings.service), redirect_uris: [location.origin + location.pathname],
    })
    this.client = new BrowserOAuthClient({
      clientMetadata, handleResolver: settings.pds, plcDirectoryUrl: settings.directory,
      allowHttp: true, // everything is on this machine: an app on the web leaves this out
    })
  }

  /**
   * Returns the session that this browser has, or that the person has just granted.
   *
   * @throws Error if it is of no use any more, or the person has refused: see {@link isDenial}
   */
  async session(): Promise<OAuthSession | undefined> {
    return (await this.client.init())?.session
  }

  /** Leaves this page for the one of the person's PDS, which asks the person and comes back. */
  async start(handle: string, set: SetName): Promise<void> {
    await this.client.signIn(handle, { scope: scopeOf([set], this.settings.service) })
  }
}

/** Reports whether a sign-in has ended because the person has refused. */
export function isDenial(err: unknown): boolean {
  return err instanceof OAuthCallbackError && err.params.get("error") === "access_denied"
}

// scopeOf asks for sets of permissions at the service, and nowhere else.
function scopeOf(names: readonly SetName[], service: string): string {
  const aud = encodeURIComponent(service)
  return ["atproto", ...names.map((name) => `include:blue.catbird.mls.${name}?aud=${aud}`)].join(" ")
}
