// Heads of logs, with a key of the test's.

import { ed25519 } from "@noble/curves/ed25519.js"
import { concat, hex, sha256Bytes } from "../../src/bytes.js"
import { type Edge, rootOf } from "../../src/log-tree.js"

/** Signs heads as a service does: docs/TRANSPARENCY.md. */
export class HeadSigner {
  private readonly secret = ed25519.utils.randomSecretKey()
  private readonly named = concat([Uint8Array.of(1), ed25519.getPublicKey(this.secret)])

  constructor(readonly service: string) {}

  async head(convo: string, edge: Edge, generation: number, at: number): Promise<string> {
    const root = Buffer.from(await rootOf(edge), "hex").toString("base64")
    const text = `${this.service}/${convo}\n${edge.size}\n${root}\ngeneration ${generation}\ntime ${new Date(at).toISOString()}\n`
    const signature = Buffer.from(concat([await this.id(), ed25519.sign(Buffer.from(text), this.secret)])).toString("base64")
    return `${text}\n— ${this.service} ${signature}\n`
  }

  async key(): Promise<string> {
    return `${this.service}+${hex(await this.id())}+${Buffer.from(this.named).toString("base64")}`
  }

  private async id(): Promise<Uint8Array> {
    return (await sha256Bytes(concat([Buffer.from(`${this.service}\n`), this.named]))).slice(0, 4)
  }
}
