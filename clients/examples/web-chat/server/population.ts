// The made-up people. Each is made when somebody signs in by a new name.

import type { Person } from "./http.js"
import type { Network } from "./processes.js"

export class Population {
  private readonly people = new Map<string, Promise<Person>>()
  private readonly made: Person[] = []

  /**
   * @param home the service of all people, if there is only one
   * @param onPerson hears of each new person, before anybody else
   */
  constructor(
    private readonly network: Network,
    private readonly home: string | undefined,
    private readonly onPerson: (person: Person) => void,
  ) {}

  get all(): readonly Person[] {
    return this.made
  }

  /** Finds a person by a handle. */
  find(handle: string): Person | undefined {
    return this.made.find((person) => person.handle === handle)
  }

  /** The person of a name such as `alice`, who is made if there is none. */
  make(name: string): Promise<Person> {
    if (!/^[a-z][a-z0-9-]{0,30}$/.test(name)) throw new Error(`${name} is no name`)
    const person = this.people.get(name) ?? this.makeNew(name)
    this.people.set(name, person)
    return person
  }

  private async makeNew(name: string): Promise<Person> {
    const { did, home } = await this.network.person(name)
    const person = { handle: `${name}.test`, did, home: this.home ?? home }
    this.made.push(person)
    this.onPerson(person)
    return person
  }
}
