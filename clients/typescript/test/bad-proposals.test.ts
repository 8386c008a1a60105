// A member who sends proposals that no commit should contain cannot stop a group: docs/COMMITS.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import { withIdempotencyKey } from "../src/api.js"
import { hex } from "../src/bytes.js"
import type { Client } from "../src/client.js"
import { errorName } from "../src/errors.js"
import type { ConvoId, Did } from "../src/ids.js"
import { names } from "../src/records.js"
import { MemoryStore } from "../src/store.js"
import { BadProposer } from "./support/bad-proposals.js"
import { chanceOf } from "./support/chance.js"
import { needsServer, newAccounts } from "./support/dev.js"
import { Liar } from "./support/liar.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"
import * as mls from "#lexicons"

const seeds = Number(process.env.TEST_BAD_PROPOSALS ?? 5)

/** The most proposals that one group gets. */
const mostProposals = 6

/** What the service said to proposals of a kind. */
type Table = Map<string, { refused: number; accepted: number }>

test(`whatever a member proposes, the others commit and remove it: ${seeds} seeds`, { ...needsServer, timeout: 60_000 + seeds * 20_000 }, async (t) => {
  const table: Table = new Map()
  const [stuck, stays]: [string[], string[]] = [[], []]
  for (let seed = 1; seed <= seeds; seed++) {
    const group = await groupOf(seed)
    const { alice, honest, mallory, convo } = group
    const sent = await proposesBadly(group, table)
    try {
      await commits(honest, convo)
      await alice.remove(convo, group.attacker)
      await commits(honest, convo)
      await agree(honest, convo)
    } catch (err) {
      stuck.push(`seed ${seed}: ${sent.join("; ")}: ${String(err)}`)
    }
    if ((await alice.group(convo)).members.some(({ identity }) => identity === group.attacker)) stays.push(`seed ${seed}`)
    await Promise.all([...honest, mallory].map((phone) => phone.close()))
  }
  for (const [what, { refused, accepted }] of [...table].sort()) t.diagnostic(`${what}: ${refused} refused, ${accepted} accepted`)
  t.diagnostic(`${seeds} groups: ${stuck.length} could not commit afterwards, the attacker was removed from ${seeds - stays.length}`)
  assert.deepEqual({ stuck, stays }, { stuck: [], stays: [] })
})

/** A group with an attacker, whom Alice may remove. */
interface Attacked {
  readonly chance: () => number
  readonly convo: ConvoId
  readonly alice: Client
  readonly honest: readonly Client[]
  readonly mallory: Client
  readonly attacker: Did
  readonly proposer: BadProposer
}

async function groupOf(seed: number): Promise<Attacked> {
  const [a, b, c, attacker] = await newAccounts(4)
  assert.ok(a && b && c && attacker)
  const store = new MemoryStore()
  const [alice, mallory] = [await openPhone(a, new MemoryStore()), await openPhone(attacker, store)]
  const others = [await openPhone(b, new MemoryStore()), await openPhone(c, new MemoryStore())]
  for (const phone of [...others, mallory]) await phone.replenish()
  const convo = await alice.createConvo([b, c, attacker])
  for (const phone of [...others, mallory]) await phone.join(convo)
  const state = await store.read(names.group(convo))
  assert.ok(state)
  const chance = chanceOf(seed)
  return { chance, convo, alice, honest: [alice, ...others], mallory, attacker, proposer: await BadProposer.of(state, chance) }
}

// proposesBadly sends bad proposals. The service refuses by name what it can judge.
async function proposesBadly({ chance, convo, attacker, proposer }: Attacked, table: Table): Promise<string[]> {
  const [service, sent] = [new Liar().as(attacker), [] as string[]]
  for (let i = Math.floor(chance() * mostProposals); i >= 0; i--) {
    const hidden = chance() < 0.5
    const { kind, message: ciphertext, epoch } = await proposer.propose(hidden)
    const input = withIdempotencyKey({ convoId: convo, senderDid: attacker, epoch, ciphertext })
    const answer: Promise<string> = service.procedure(mls.sendMessage.main, input).then(() => "accepted", (err: unknown) => errorName(err) ?? String(err))
    const [what, said] = [`${kind.name}, ${hidden ? "encrypted" : "in clear"}`, await answer]
    assert.ok((hidden || kind.forMembers ? ["accepted"] : ["InvalidMessage", "NotPermitted"]).includes(said), `${what}: ${said}`)
    const row = table.get(what) ?? { refused: 0, accepted: 0 }
    row[said === "accepted" ? "accepted" : "refused"]++
    table.set(what, row)
    sent.push(what)
  }
  return sent
}

// commits lets everybody read the log, renew its keys and send a message.
async function commits(honest: readonly Client[], convo: ConvoId): Promise<void> {
  for (const phone of honest) {
    await phone.sync(convo)
    await phone.update(convo)
    const { sent } = await phone.send(convo, bytesOf("still here"))
    await sent
  }
  for (const phone of honest) await phone.sync(convo)
}

// agree reports members who are not in the same group, or have not read the same.
async function agree(honest: readonly Client[], convo: ConvoId): Promise<void> {
  const groups = await Promise.all(honest.map((phone) => phone.group(convo)))
  assert.equal(new Set(groups.map(({ authenticator }) => hex(authenticator))).size, 1)
  for (const phone of honest) assert.equal((await textsOf(phone, convo)).length, 2 * honest.length)
}
