// A family that lives for some days: people and devices do what chance says, and after each day a model of them
// says what must be so. The model is in family-model.ts.

import assert from "node:assert/strict"
import { Api, withIdempotencyKey } from "../../src/api.js"
import type { Client } from "../../src/client.js"
import { hex } from "../../src/bytes.js"
import { systemClock } from "../../src/clock.js"
import { errorName } from "../../src/errors.js"
import type { ConvoId, Did } from "../../src/ids.js"
import type { Doubt } from "../../src/members.js"
import { didOf } from "../../src/mls.js"
import type { Item, Thread } from "../../src/records.js"
import * as mls from "#lexicons"
import { chanceOf } from "./chance.js"
import { newAccounts, transportOf } from "./dev.js"
import { accountsOf } from "./everyone.js"
import { type Convo, FamilyModel } from "./family-model.js"
import { MortalDevice } from "./mortal-device.js"
import { bytesOf } from "./phone.js"
import type { Server } from "./server.js"

const [minute, hour, day] = [60_000, 3_600_000, 86_400_000]
const patience = 60_000 // of the machine, in milliseconds, until everything must be as the model says
const mostOwn = 4 // devices of one person at a time

/** How large a family is, and how long it lives. */
export interface Scale {
  readonly people: number
  readonly devices: number
  readonly days: number
  /** Acts of a day. */
  readonly acts: number
}

/** Something is not as the model says. */
export class Violation extends Error {}

interface Device {
  readonly name: string
  readonly mortal: MortalDevice
  /** `lost`: its person does not have it any more; `out`: it is signed out, or was removed. */
  state: "on" | "off" | "lost" | "out"
  key: string
}

interface Person {
  readonly did: Did
  readonly name: string
  readonly devices: Device[]
  readonly api: Api
}

/** What happened, and whom and what it is about. */
interface Entry {
  readonly day: number
  readonly text: string
  readonly about: readonly string[]
}

/** A device, its person, and a convo that it is in. */
interface Place {
  readonly person: Person
  readonly device: Device
  readonly client: Client
  readonly convo: Convo
}

type Outcome<T> = { value: T } | { err: unknown } | undefined

export class Family {
  private readonly chance: () => number
  private readonly model = new FamilyModel()
  private readonly people: Person[] = []
  private readonly history: Entry[] = []
  private readonly closing = new AbortController()
  private readonly failures = new Map<string, number>()
  private acts = 0
  private day = 0
  kills = 0

  constructor(
    private readonly seed: number,
    private readonly scale: Scale,
    private readonly server: Server,
  ) {
    this.chance = chanceOf(seed)
  }

  /** Lives. It throws a {@link Violation} with its history. */
  async live(): Promise<void> {
    try {
      await this.begin()
      const restoring = Math.ceil(this.scale.days / 2)
      for (this.day = 1; this.day <= this.scale.days; this.day++) {
        for (let i = 0; i < this.scale.acts; i++) await this.act()
        if (this.day === restoring) await this.loseAnHour()
        await this.night()
      }
    } catch (err) {
      const what = err instanceof Violation ? err.message : `seed ${this.seed}, day ${this.day}: ${String((err as Error).stack)}`
      throw new Violation(`${what}\n${this.context(what)}\n${await this.devicesNow(what)}`)
    } finally {
      this.closing.abort()
      await Promise.all(this.people.flatMap(({ devices }) => devices.map(({ mortal }) => mortal.stop())))
    }
  }

  /** What the apps heard as failures, and how often. */
  heard(): string {
    return [...this.failures].map(([text, count]) => `${count} × ${text}`).join("; ")
  }

  // context is the history of what a message names.
  private context(message: string): string {
    const named = (entry: Entry) => entry.about.some((name) => message.includes(name))
    const entries = this.history.filter((entry) => named(entry))
    return (entries.length > 0 ? entries : this.history).map(({ day: on, text }) => `  day ${on}: ${text}`).join("\n")
  }

  // devicesNow is where the devices stand in the convos that a message names.
  private async devicesNow(message: string): Promise<string> {
    const lines: string[] = []
    for (const convo of this.model.convos.values()) {
      if (!new RegExp(`\\b${convo.name}\\b`).test(message)) continue
      for (const { name, mortal: { client } } of this.people.flatMap(({ devices }) => devices)) {
        const thread = (await client?.convos().catch(() => []))?.find(({ convoId }) => convoId === convo.id)
        const waiting = client?.outbox.pending().filter(({ queue }) => queue.includes(convo.id)).map(({ kind, sealed }) => `${kind}${sealed ? ` of epoch ${sealed.epoch}` : ""}`)
        if (thread === undefined && !waiting?.length) continue
        const { groupId: _, convoId: __, last: ___, ...rest } = thread ?? {}
        lines.push(`  ${convo.name} at ${name}: ${JSON.stringify(rest)} ${waiting?.join(", ")}`)
      }
    }
    return lines.join("\n")
  }

  private note(text: string, ...about: string[]): void {
    this.history.push({ day: this.day, text, about })
    if (process.env.TEST_FAMILY_LOUD) console.log(`day ${this.day}: ${text}`)
  }

  private fail(what: string): never {
    throw new Violation(`seed ${this.seed}, day ${this.day}: ${what}`)
  }

  // The people

  private async begin(): Promise<void> {
    const { people, devices } = this.scale
    const dids = await newAccounts(people)
    for (const [i, did] of dids.entries()) {
      const api = new Api(transportOf(did, this.server.url, this.server.did), systemClock, this.closing.signal)
      this.people.push({ did, name: `P${i}`, devices: [], api })
    }
    for (const person of this.people) await this.enter(person)
    const [founder, ...others] = this.people as [Person, ...Person[]]
    await this.found(founder, founder.devices[0] as Device, others)
    for (const person of others) await this.accept(person)
    for (let i = people; i < Math.min(devices, people * 2); i++) await this.enter(this.people[i - people] as Person)
  }

  private nameOf(did: string): string {
    return this.people.find((one) => one.did === did)?.name ?? did
  }

  private personOf(did: Did): Person {
    return this.people.find((one) => one.did === did) ?? assert.fail(did)
  }

  private present(): Person[] {
    return this.people.filter(({ did }) => !this.model.hasEnded(did))
  }

  private on({ devices }: Person): Device[] {
    return devices.filter(({ state }) => state === "on")
  }

  private hasStock({ devices }: Person): boolean {
    return devices.some(({ state }) => state !== "out")
  }

  private one<T>(all: readonly T[]): T | undefined {
    return all[Math.floor(this.chance() * all.length)]
  }

  private clientOf(device: Device): Client {
    return device.mortal.client ?? this.fail(`${device.name} is not open`)
  }

  // place chooses a device that is on, and a convo that it and its person are in.
  private async place(fits: (convo: Convo, person: Person) => boolean = () => true): Promise<Place | undefined> {
    const all: Place[] = []
    for (const person of this.present()) {
      for (const device of this.on(person)) {
        const client = this.clientOf(device)
        for (const thread of await client.convos()) {
          const convo = this.model.convos.get(thread.convoId)
          if (convo?.hasAccepted(person.did) && !thread.left && fits(convo, person)) all.push({ person, device, client, convo })
        }
      }
    }
    return this.one(all)
  }

  private about(...these: (Person | Device | Convo | undefined)[]): string[] {
    return these.flatMap((one) => (one === undefined ? [] : [one.name]))
  }

  // Acts

  private readonly kinds: readonly [weight: number, act: () => Promise<void>][] = [
    [30, () => this.send()], [8, () => this.create()], [8, () => this.add()], [3, () => this.remove()], [3, () => this.leave()],
    [8, () => this.answer()], [4, () => this.promote()], [3, () => this.demote()], [2, () => this.rename()], [6, () => this.newDevice()],
    [8, () => this.switchOff()], [8, () => this.switchOn()], [2, () => this.lose()], [2, () => this.signOut()], [4, () => this.removeDevice()],
    [2, () => this.block()], [1, () => this.unblock()], [4, () => this.update()], [1, () => this.erase()], [3, () => this.jump()],
  ]

  private async act(): Promise<void> {
    const all = this.kinds.reduce((sum, [weight]) => sum + weight, 0)
    let at = this.chance() * all
    this.acts++
    for (const [weight, act] of this.kinds) if ((at -= weight) < 0) return act()
  }

  // step lets a device do something, and perhaps kills it meanwhile. A device that was killed starts again.
  private async step<T>(device: Device, text: string, about: string[], step: () => Promise<T>, mayDie = true): Promise<Outcome<T>> {
    const dies = mayDie && this.chance() < 0.2
    const steps = Math.floor(this.chance() * 12)
    if (dies) device.mortal.killAfter(steps)
    const outcome = await this.soon(`${device.name}: ${text}`, device.mortal.outcome(step()))
    device.mortal.killAfter(Number.POSITIVE_INFINITY)
    const how = outcome === undefined ? `, killed after ${steps} steps` : "err" in outcome ? `: ${String(outcome.err)}` : ""
    this.note(`${device.name} ${text}${how}`, device.name, ...about)
    if (device.mortal.isKilled) await this.again(device)
    return outcome
  }

  private async again(device: Device): Promise<void> {
    this.kills++
    await this.soon(`${device.name} is closed`, device.mortal.stop())
    if (device.state === "on") await this.soon(`${device.name} starts again`, device.mortal.start())
  }

  private async soon<T>(what: string, step: Promise<T>): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Violation(`seed ${this.seed}, day ${this.day}: in a minute this does not end: ${what}`)), patience)
    })
    try {
      return await Promise.race([step, late])
    } finally {
      clearTimeout(timer)
    }
  }

  // must checks the answer of an act: it succeeds, or is refused by this name.
  private must<T>(outcome: Outcome<T>, refusal: string | undefined, what: string): outcome is { value: T } {
    if (outcome === undefined) return false
    if ("value" in outcome) return refusal === undefined || this.fail(`${what} must be refused: ${refusal}`)
    const name = errorName(outcome.err) || (outcome.err as Error).name
    if (name !== refusal) this.fail(`${what}: ${String(outcome.err)}, and not ${refusal ?? "success"}`)
    return false
  }

  private async send(): Promise<void> {
    const place = await this.place()
    if (place !== undefined) await this.say(place)
  }

  private async say({ person, device, client, convo }: Place): Promise<void> {
    const said = { text: `m${this.acts} of ${device.name}`, by: person.did, act: this.acts, certain: false, arrived: false }
    convo.said.push(said)
    const stored = await this.step(device, `says "${said.text}" in ${convo.name}`, this.about(convo, person), async () => {
      const { sent } = await client.send(convo.id, bytesOf(said.text))
      said.certain = true
      return sent
    })
    if (this.must(stored, undefined, `${device.name}'s "${said.text}" in ${convo.name}`)) said.arrived = true
  }

  private async create(): Promise<void> {
    const person = this.one(this.present().filter((one) => this.on(one).length > 0))
    if (person === undefined) return
    const others = this.present().filter((one) => one !== person && !this.model.blocked(person.did, one.did) && this.chance() < 0.4).slice(0, 5)
    await this.found(person, this.one(this.on(person)) as Device, others)
  }

  private async found(person: Person, device: Device, others: readonly Person[]): Promise<void> {
    const [client, name] = [this.clientOf(device), `C${this.model.convos.size}`]
    const reached = others.filter((one) => this.hasStock(one) && !this.model.blocked(one.did, person.did))
    const text = `makes ${name} with ${others.map((one) => one.name).join(", ")}`
    const before = new Set((await client.convos()).map(({ convoId }) => convoId))
    const outcome = await this.step(device, text, [name, ...this.about(person, ...others)], () => client.createConvo(others.map(({ did }) => did), { name }), this.day > 0)
    const refusal = others.length > 0 && reached.length === 0 ? "KeyPackageNotFound" : undefined
    let id = this.must(outcome, refusal, `${device.name} makes ${name}`) ? outcome.value : undefined
    if (outcome === undefined && device.mortal.client !== undefined) {
      await this.soon(`${device.name} sends what waits`, device.mortal.client.outbox.idle())
      id = (await device.mortal.client.convos()).map(({ convoId }) => convoId).find((one) => !before.has(one) && !this.model.convos.has(one))
    }
    if (id === undefined) return
    const convo = this.model.create(id, name, person.did, reached.map(({ did }) => did), this.acts)
    for (const one of others) if (!reached.includes(one)) convo.open.set(one.did, person.did)
  }

  private async add(): Promise<void> {
    const place = await this.place()
    const whom = place && this.one(this.present().filter(({ did }) => !place.convo.members.has(did)))
    if (place === undefined || whom === undefined) return
    const { person, device, client, convo } = place
    const refusal = this.model.blocked(person.did, whom.did) ? "Blocked"
      : this.model.blocked(whom.did, person.did) || !this.hasStock(whom) ? "KeyPackageNotFound" : undefined
    const outcome = await this.step(device, `adds ${whom.name} to ${convo.name}`, this.about(convo, person, whom), () => client.add(convo.id, [whom.did]))
    if (outcome === undefined) convo.open.set(whom.did, person.did)
    else if (this.must(outcome, refusal, `${device.name} adds ${whom.name} to ${convo.name}`)) this.model.add(convo, person.did, whom.did, this.acts)
  }

  private async remove(): Promise<void> {
    const place = await this.place((convo) => convo.members.size > 1)
    const did = place && this.one([...place.convo.members.keys()].filter((one) => one !== place.person.did))
    if (place === undefined || did === undefined) return
    const { person, device, client, convo } = place
    const refusal = convo.admins.has(person.did) ? undefined : "NotPermitted"
    const outcome = await this.step(device, `removes ${this.nameOf(did)} from ${convo.name}`, [...this.about(convo, person), this.nameOf(did)], () => client.remove(convo.id, did))
    if (outcome === undefined) convo.open.set(did, person.did)
    else if (this.must(outcome, refusal, `${device.name} removes ${this.nameOf(did)} from ${convo.name}`)) convo.leave(did, this.acts)
  }

  private async leave(): Promise<void> {
    const place = await this.place()
    if (place === undefined) return
    const { person, device, client, convo } = place
    const outcome = await this.step(device, `leaves ${convo.name}`, this.about(convo, person), () => client.leave(convo.id))
    if (outcome === undefined) convo.open.set(person.did, person.did)
    else if (this.must(outcome, convo.members.size === 1 ? "LastMember" : undefined, `${device.name} leaves ${convo.name}`)) convo.leave(person.did, this.acts)
  }

  private async answer(): Promise<void> {
    const asked = this.present().filter((person) => this.on(person).length > 0 && this.requestsOf(person).length > 0)
    const person = this.one(asked)
    if (person === undefined) return
    if (this.chance() < 0.7) return this.accept(person)
    await this.decline(person, this.chance() < 0.3)
  }

  private requestsOf(person: Person): Convo[] {
    return [...this.model.convos.values()].filter((convo) => convo.members.get(person.did)?.request && !convo.open.has(person.did))
  }

  private async asked(person: Person): Promise<{ device: Device; client: Client; convo: Convo } | undefined> {
    const [device, convo] = [this.one(this.on(person)), this.one(this.requestsOf(person))]
    if (device === undefined || convo === undefined) return undefined
    const client = this.clientOf(device)
    await this.soon(`${device.name} looks for requests`, client.syncAll())
    const known = (await client.requests()).some(({ convoId }) => convoId === convo.id)
    return known ? { device, client, convo } : this.fail(`${device.name} does not know of the request for ${convo.name}`)
  }

  private async accept(person: Person): Promise<void> {
    const asked = await this.asked(person)
    if (asked === undefined) return
    const { device, client, convo } = asked
    const text = `accepts ${convo.name}`
    const stored = await this.step(device, text, this.about(convo, person), async () => (await client.accept(convo.id)).joined, this.day > 0)
    if (this.must(stored, undefined, `${device.name} ${text}`)) (convo.members.get(person.did) ?? assert.fail()).request = false
    else convo.open.set(person.did, person.did)
  }

  private async decline(person: Person, block: boolean): Promise<void> {
    const asked = await this.asked(person)
    if (asked === undefined) return
    const { device, client, convo } = asked
    const text = `declines ${convo.name}${block ? " and blocks" : ""}`
    const { invitedBy } = convo.members.get(person.did) ?? assert.fail()
    const outcome = await this.step(device, text, [...this.about(convo, person), this.nameOf(invitedBy)], () => client.decline(convo.id, { block }), !block)
    if (outcome === undefined) convo.open.set(person.did, person.did)
    else if (this.must(outcome, undefined, `${device.name} ${text}`)) {
      convo.leave(person.did, this.acts)
      if (block) this.model.block(person.did, invitedBy, this.acts)
    }
  }

  private async promote(): Promise<void> {
    const place = await this.place((convo) => convo.members.size > 1)
    const did = place && this.one([...place.convo.members.keys()].filter((one) => place.convo.hasAccepted(one)))
    if (place === undefined || did === undefined) return
    const { person, device, client, convo } = place
    const refusal = convo.admins.has(person.did) ? undefined : "NotPermitted"
    const outcome = await this.step(device, `makes ${this.nameOf(did)} an admin of ${convo.name}`, [...this.about(convo, person), this.nameOf(did)], () => client.promoteAdmin(convo.id, did))
    if (outcome === undefined) convo.openAdmins = true
    else if (this.must(outcome, refusal, `${device.name} makes ${this.nameOf(did)} an admin of ${convo.name}`)) convo.admins.add(did)
  }

  private async demote(): Promise<void> {
    const place = await this.place()
    const did = place && this.one([...place.convo.admins])
    if (place === undefined || did === undefined) return
    const { person, device, client, convo } = place
    const refusal = convo.admins.has(person.did) && convo.admins.size > 1 ? undefined : "NotPermitted"
    const outcome = await this.step(device, `makes ${this.nameOf(did)} a member of ${convo.name}`, [...this.about(convo, person), this.nameOf(did)], () => client.demoteAdmin(convo.id, did))
    if (outcome === undefined) convo.openAdmins = true
    else if (this.must(outcome, refusal, `${device.name} makes ${this.nameOf(did)} a member of ${convo.name}`)) convo.admins.delete(did)
  }

  private async rename(): Promise<void> {
    const place = await this.place()
    if (place === undefined) return
    const { person, device, client, convo } = place
    const refusal = convo.admins.has(person.did) ? undefined : "NotPermitted"
    const outcome = await this.step(device, `renames ${convo.name}`, this.about(convo, person), () => client.updateConvo(convo.id, { name: `${convo.name} since ${this.acts}` }))
    this.must(outcome, refusal, `${device.name} renames ${convo.name}`)
  }

  private async update(): Promise<void> {
    const place = await this.place()
    if (place === undefined) return
    const { person, device, client, convo } = place
    this.must(await this.step(device, `renews its keys in ${convo.name}`, this.about(convo, person), () => client.update(convo.id)), undefined, `${device.name} renews its keys in ${convo.name}`)
  }

  // Devices

  private async newDevice(): Promise<void> {
    const count = this.people.reduce((sum, { devices }) => sum + devices.filter(({ state }) => state !== "out").length, 0)
    const person = this.one(this.present().filter(({ devices }) => devices.filter(({ state }) => state !== "out").length < mostOwn))
    if (person !== undefined && count < this.scale.devices) await this.enter(person)
  }

  private async enter(person: Person): Promise<void> {
    const name = `${person.name}.${person.devices.length}`
    const mortal = new MortalDevice(person.did, transportOf(person.did, this.server.url, this.server.did), () => ({
      onRequest: () => {},
      onFailure: (err) => this.hear(err),
    }), { fullStock: 4, decide: async (doubt) => this.decide(doubt) })
    const device: Device = { name, mortal, state: "on", key: "" }
    person.devices.push(device)
    await this.soon(`${name} starts`, mortal.start())
    device.key = await mortal.key()
    const stocked = await this.step(device, "is new", this.about(person), () => this.clientOf(device).replenish(), this.day > 0)
    if (stocked === undefined) await this.soon(`${name} publishes KeyPackages`, this.clientOf(device).replenish())
    else this.must(stocked, undefined, `${name} publishes KeyPackages`)
  }

  private hear(err: unknown): void {
    const text = String(err).replace(/[0-9a-f-]{36}|did:plc:\w+|[0-9a-f]{64}/g, "…").slice(0, 160)
    if (!text.includes("killed") && !/^(StoreError|Error: ?$|Killed)/.test(text)) this.failures.set(text, (this.failures.get(text) ?? 0) + 1)
  }

  // decide says what a person knows: who has left, and who is in a convo.
  private decide({ convo, did, why }: Doubt): boolean {
    const isIn = this.model.convos.get(convo)?.members.has(did) === true
    if (why === "left") return !isIn
    return why === "uninvited" && isIn
  }

  private async switchOff(): Promise<void> {
    const device = this.one(this.present().flatMap((person) => this.on(person)))
    if (device === undefined) return
    device.state = "off"
    await this.soon(`${device.name} is closed`, device.mortal.stop())
    this.note(`${device.name} is switched off`, device.name)
  }

  private async switchOn(): Promise<void> {
    const device = this.one(this.present().flatMap(({ devices }) => devices.filter(({ state }) => state === "off")))
    if (device === undefined) return
    device.state = "on"
    this.note(`${device.name} is switched on`, device.name)
    await this.soon(`${device.name} starts`, device.mortal.start())
  }

  private async lose(): Promise<void> {
    const person = this.one(this.present().filter(({ devices }) => devices.some(({ state }) => state === "on" || state === "off")))
    const device = person && this.one(person.devices.filter(({ state }) => state === "on" || state === "off"))
    if (device === undefined) return
    device.state = "lost"
    await this.soon(`${device.name} is closed`, device.mortal.stop())
    this.note(`${device.name} is lost`, device.name)
  }

  private async signOut(): Promise<void> {
    const person = this.one(this.present().filter((one) => this.on(one).length > 0))
    const device = person && this.one(this.on(person))
    if (person === undefined || device === undefined) return
    const alone = await this.aloneIn(person, device)
    const outcome = await this.step(device, "signs out", this.about(person), () => this.clientOf(device).signOut())
    if (outcome === undefined) await this.finishSignOut(device)
    else this.must(outcome, undefined, `${device.name} signs out`)
    device.state = "out"
    await device.mortal.stop()
    await this.after(person, alone)
  }

  // aloneIn returns the convos in which a device has its person's only leaf: with it, its person leaves them.
  private async aloneIn({ did }: Person, device: Device): Promise<Convo[]> {
    const client = this.clientOf(device)
    const alone: Convo[] = []
    for (const { convoId, left } of await client.convos()) {
      const convo = this.model.convos.get(convoId)
      if (convo === undefined || left) continue
      const own = (await client.group(convoId)).members.filter(({ identity }) => didOf(identity) === did)
      if (own.length === 1) alone.push(convo)
    }
    return alone
  }

  // finishSignOut repeats a sign-out that a kill has ended.
  private async finishSignOut(device: Device): Promise<void> {
    const { client } = device.mortal
    if (client !== undefined) await this.soon(`${device.name} signs out again`, client.signOut())
  }

  private async removeDevice(): Promise<void> {
    const person = this.one(this.present().filter((one) => this.on(one).length > 0 && one.devices.some(({ state }) => state === "lost" || state === "off")))
    const device = person && this.one(this.on(person))
    const dead = person && (person.devices.find(({ state }) => state === "lost") ?? this.one(person.devices.filter(({ state }) => state === "off")))
    if (person === undefined || device === undefined || dead === undefined) return
    const deviceId = await this.deviceIdOf(device, dead)
    if (deviceId === undefined) return
    const outcome = await this.step(device, `removes the device ${dead.name}`, [...this.about(person), dead.name], () => this.clientOf(device).removeDevice(deviceId))
    if (outcome === undefined) await this.soon(`${device.name} removes ${dead.name} again`, this.clientOf(device).removeDevice(deviceId))
    else this.must(outcome, undefined, `${device.name} removes the device ${dead.name}`)
    dead.state = "out"
  }

  private async deviceIdOf(device: Device, other: Device): Promise<string | undefined> {
    const devices = await this.soon(`${device.name} lists its person's devices`, this.clientOf(device).devices())
    return devices.find(({ key }) => key !== undefined && hex(key) === other.key)?.deviceId
  }

  // after: the service says whether a person is in a convo that has lost its last leaf of that person.
  private async after(person: Person, alone: readonly Convo[]): Promise<void> {
    const isGone = person.devices.every(({ state }) => state === "out")
    const convos = isGone ? [...this.model.convos.values()] : alone
    for (const convo of convos) if (convo.members.has(person.did)) convo.open.set(person.did, person.did)
    if (convos.length > 0) await this.settle()
  }

  private async erase(): Promise<void> {
    const person = this.one(this.present())
    if (person === undefined || this.present().length < 3 || this.chance() < 0.5) return
    for (const device of person.devices) {
      device.state = "out"
      await this.soon(`${device.name} is closed`, device.mortal.stop())
    }
    const { confirmationToken = "" } = await person.api.procedure(mls.eraseMyAccount.main, withIdempotencyKey({}, systemClock))
    await person.api.procedure(mls.eraseMyAccount.main, withIdempotencyKey({ confirmationToken }, systemClock))
    accountsOf(person.did).end(person.did)
    this.note(`${person.name} is erased`, person.name)
    this.model.end(person.did, this.acts)
    await this.settle()
  }

  private async block(): Promise<void> {
    const person = this.one(this.present().filter((one) => this.on(one).length > 0))
    const whom = person && this.one(this.present().filter((one) => one !== person))
    const device = person && this.one(this.on(person))
    if (person === undefined || whom === undefined || device === undefined) return
    const outcome = await this.step(device, `blocks ${whom.name}`, this.about(person, whom), () => this.clientOf(device).block(whom.did), false)
    if (this.must(outcome, undefined, `${device.name} blocks ${whom.name}`)) this.model.block(person.did, whom.did, this.acts)
  }

  private async unblock(): Promise<void> {
    const person = this.one(this.present().filter((one) => this.on(one).length > 0 && this.model.blocksOf(one.did).length > 0))
    const device = person && this.one(this.on(person))
    const did = person && this.one(this.model.blocksOf(person.did))
    if (person === undefined || did === undefined || device === undefined) return
    const outcome = await this.step(device, `unblocks ${this.nameOf(did)}`, [...this.about(person), this.nameOf(did)], () => this.clientOf(device).unblock(did), false)
    if (this.must(outcome, undefined, `${device.name} unblocks ${this.nameOf(did)}`)) this.model.unblock(person.did, did)
  }

  private async jump(): Promise<void> {
    const device = this.one(this.present().flatMap((person) => this.on(person)))
    if (device === undefined) return
    const ms = this.chance() < 0.5 ? day : -day
    device.mortal.clock.pass(ms)
    this.note(`${device.name}'s clock jumps by ${ms / hour} hours`, device.name)
  }

  // Nights

  // night lets a day pass on all clocks, and checks everything.
  private async night(): Promise<void> {
    for (const { devices } of this.people) for (const { mortal } of devices) mortal.clock.pass(day)
    await this.settle()
    for (const convo of this.model.convos.values()) await this.commit(convo)
    await this.settle()
    this.note("all is well")
  }

  // commit shows that a group can commit.
  private async commit(convo: Convo): Promise<void> {
    const place = await this.place((one) => one === convo)
    if (place === undefined) return
    const { person, device, client } = place
    const outcome = await this.step(device, `commits in ${convo.name}`, this.about(convo, person), () => client.update(convo.id), false)
    this.must(outcome, undefined, `${device.name} commits in ${convo.name}`)
  }

  // loseAnHour sets the server back.
  private async loseAnHour(): Promise<void> {
    await this.settle()
    await this.server.backUp()
    this.note("the server is backed up")
    for (let i = 0; i < 6; i++) {
      this.acts++
      await (this.chance() < 0.75 ? this.send() : this.update())
    }
    await this.soon("the server is restored", this.server.restore())
    this.note("the server is restored")
  }

  // settle lets the devices do what they do, until everything is as the model says.
  private async settle(): Promise<void> {
    const until = Date.now() + patience
    for (let round = 0; ; round++) {
      await this.soon("all devices read all convos", Promise.all(this.present().flatMap((person) => this.on(person).map(async ({ mortal }) => {
        await mortal.client?.syncAll().catch((err: unknown) => this.hear(err))
      }))))
      const problems = await this.problems()
      if (problems.length === 0) break
      if (Date.now() > until) this.fail(problems.join("\n"))
      for (const { devices } of this.people) for (const { mortal } of devices) mortal.clock.pass(round < 20 ? minute : hour)
      await new Promise((resolve) => setImmediate(resolve))
    }
    for (const convo of this.model.convos.values()) {
      convo.openAdmins = false
      for (const did of convo.open.keys()) if (this.hasStock(this.personOf(did))) convo.open.delete(did)
    }
  }

  // problems says what is not as the model says.
  private async problems(): Promise<string[]> {
    const problems: string[] = []
    for (const convo of this.model.convos.values()) problems.push(...(await this.problemsOf(convo)))
    for (const { name, mortal: { client } } of this.present().flatMap((person) => this.on(person))) {
      const waiting = client?.outbox.pending().map(({ kind, queue }) => `${kind} in ${this.model.convos.get(queue as ConvoId)?.name ?? queue}`) ?? []
      if (waiting.length > 0) problems.push(`${name} waits: ${waiting.join(", ")}`)
    }
    return problems
  }

  private async problemsOf(convo: Convo): Promise<string[]> {
    const views: View[] = []
    for (const person of this.present()) {
      for (const device of this.on(person)) {
        const client = this.clientOf(device)
        const thread = (await client.convos()).find(({ convoId }) => convoId === convo.id)
        views.push({ person, device, thread, items: thread === undefined ? [] : await client.items(convo.id), client })
      }
    }
    const witness = views.find(({ person, thread }) => convo.hasAccepted(person.did) && thread !== undefined)
    if (witness === undefined) return []
    const problems: string[] = []
    const no = (what: string) => problems.push(`${convo.name}: ${what}`)
    await this.checkRoster(convo, witness, no)
    const leaves = await this.checkGroups(convo, views, no)
    if (problems.length === 0) this.checkMessages(convo, views, leaves, no)
    return problems
  }

  private async checkRoster(convo: Convo, witness: View, no: (what: string) => void): Promise<void> {
    const answer = await witness.person.api.query(mls.getConvo.main, { convoId: convo.id }).catch((err: unknown) => String(err))
    if (typeof answer === "string" && convo.open.has(witness.person.did)) convo.leave(witness.person.did, this.acts) // a kill has left that open
    if (typeof answer === "string") return no(`${witness.person.name} is not on the roster: ${answer}`)
    const { members } = answer.convo
    const roster = new Map(members.map(({ did, isAdmin }) => [did as Did, isAdmin === true]))
    for (const [did, by] of convo.open) {
      if (!roster.has(did)) convo.leave(did, this.acts)
      else if (!convo.members.has(did)) this.model.add(convo, by, did, this.acts)
      const membership = convo.members.get(did)
      const isIn = (await Promise.all(this.on(this.personOf(did)).map(({ mortal }) => mortal.client?.convos() ?? [])))
        .flat().some(({ convoId, left }) => convoId === convo.id && !left)
      if (membership?.request && isIn && did === by) membership.request = false
    }
    if (convo.openAdmins) {
      convo.admins.clear()
      for (const [did, isAdmin] of roster) if (isAdmin) convo.admins.add(did)
    }
    const names = (dids: Iterable<Did>) => [...dids].map((did) => this.nameOf(did)).sort().join(" ")
    if (names(roster.keys()) !== names(convo.members.keys())) no(`${names(roster.keys())} are on the roster, and not ${names(convo.members.keys())}`)
    const admins = [...roster].filter(([, isAdmin]) => isAdmin).map(([did]) => did)
    if (names(admins) !== names(convo.admins)) no(`${names(admins)} are admins, and not ${names(convo.admins)}`)
  }

  // checkGroups checks who is in the group, and returns its leaves, by key.
  private async checkGroups(convo: Convo, views: readonly View[], no: (what: string) => void): Promise<Map<string, Did>> {
    let leaves = new Map<string, Did>()
    let first: { name: string; said: string } | undefined
    for (const { person, device, thread, client } of views) {
      const isIn = thread !== undefined && !thread.left
      if (isIn !== convo.hasAccepted(person.did)) no(`${device.name} is ${isIn ? "" : "not "}in it`)
      if (!isIn) continue
      const { epoch, members, active } = await client.group(convo.id)
      leaves = new Map(members.map(({ identity, signatureKey }) => [hex(signatureKey), didOf(identity) as Did]))
      const said = `epoch ${epoch} of ${[...leaves].map(([key, did]) => this.deviceName(did, key)).sort().join(" ")}`
      if (!active || !leaves.has(device.key)) no(`${device.name} has no leaf in ${said}`)
      first ??= { name: device.name, said }
      if (said !== first.said) no(`${device.name} is in ${said}; ${first.name} is in ${first.said}`)
    }
    for (const [key, did] of leaves) {
      const device = this.personOf(did).devices.find((one) => one.key === key)
      if (device?.state === "out") no(`${device.name} is out, and has a leaf`)
      if (!convo.members.has(did)) no(`${this.nameOf(did)} is not a member, and has a leaf`)
    }
    return leaves
  }

  // isOut reports whether the device that sent a message is out: who reads it only then does not see it.
  private isOut(text: string): boolean {
    return this.people.some(({ devices }) => devices.some(({ name, state }) => state === "out" && text.endsWith(` ${name}`)))
  }

  private deviceName(did: Did, key: string): string {
    return this.personOf(did).devices.find((one) => one.key === key)?.name ?? `${this.nameOf(did)}.?`
  }

  // checkMessages checks that each device has read what was sent while it had a leaf and its person was a member,
  // once and in order, and nothing else.
  private checkMessages(convo: Convo, views: readonly View[], leaves: ReadonlyMap<string, Did>, no: (what: string) => void): void {
    const commits = new Map<number, NonNullable<Item["change"]>["devices"]>()
    const places = new Map<string, number>()
    for (const { device, items } of views) {
      for (const { seq, change, content } of items) {
        if (change !== undefined) commits.set(seq, change.devices)
        if (content === undefined) continue
        const text = new TextDecoder().decode(content)
        if ((places.get(text) ?? seq) !== seq) no(`"${text}" is at ${seq} for ${device.name}, and at ${places.get(text)} for others`)
        places.set(text, seq)
      }
    }
    const had = leavesAt(commits, new Set(leaves.keys()))
    for (const said of convo.said) {
      const seq = places.get(said.text)
      if (seq === undefined) {
        if (said.certain && this.on(this.personOf(said.by)).length > 0 && convo.hasAccepted(said.by)) no(`nobody has "${said.text}"`)
        continue
      }
      for (const { person, device, thread, items } of views) {
        const count = items.filter((item) => item.seq === seq && item.content !== undefined).length
        if (items.some((item) => item.seq === seq && item.state === "withheld" && this.isOut(said.text))) continue
        const leaf = had(seq, device.key)
        const isMember = convo.hasAccepted(person.did)
        const leftAt = convo.left.get(person.did) ?? -1
        if (count > 0 && leaf === false) no(`${device.name} had no leaf at ${seq}, and has read "${said.text}"`)
        if (count > 0 && !isMember && said.act > leftAt) no(`${device.name} is not in it, and has read "${said.text}"`)
        if (count === 0 && leaf === true && isMember && thread !== undefined && said.act > leftAt) no(`${device.name} had a leaf at ${seq}, and has not read "${said.text}"`)
      }
    }
    for (const { device, items } of views) {
      const texts = items.flatMap(({ content }) => (content === undefined ? [] : [new TextDecoder().decode(content)]))
      const twice = texts.find((text, i) => texts.indexOf(text) !== i)
      if (twice !== undefined) no(`${device.name} has "${twice}" twice`)
    }
  }
}

interface View {
  readonly person: Person
  readonly device: Device
  readonly client: Client
  readonly thread: Thread | undefined
  readonly items: readonly Item[]
}

// leavesAt goes back from the leaves of now, commit by commit. It says whether a key had a leaf before an entry;
// undefined if a key has changed in its place, so that nobody knows.
function leavesAt(commits: ReadonlyMap<number, NonNullable<Item["change"]>["devices"]>, now: ReadonlySet<string>): (seq: number, key: string) => boolean | undefined {
  const states: { from: number; leaves: ReadonlySet<string> }[] = []
  let leaves = new Set(now)
  for (const [seq, changes] of [...commits].sort(([a], [b]) => b - a)) {
    states.push({ from: seq, leaves })
    leaves = new Set(leaves)
    for (const { change, key } of changes) {
      if (change === "left") leaves.add(hex(key))
      else leaves.delete(hex(key))
    }
  }
  states.push({ from: 0, leaves })
  return (seq, key) => states.find(({ from }) => from < seq)?.leaves.has(key)
}
