// The buttons that break the line between a person and its PDS.

import { button, el } from "./dom.js"
import { changeLine, type Person, type World } from "./world.js"

/** What the buttons tell. */
export interface LineEvents {
  onWorld(world: World): void
  /** The line works again. */
  onOnline(): void
  onFailure(err: unknown): void
}

export class LineButtons {
  readonly element: HTMLElement
  private readonly lose = button("Lose next answer", () => this.change({ loses: !isPressed(this.lose) }), { "aria-pressed": "false" })
  private readonly offline = button("Offline", () => this.change({ online: isPressed(this.offline) }), { "aria-pressed": "false" })

  constructor(
    private readonly person: Person,
    private readonly events: LineEvents,
  ) {
    this.element = el("div", { class: "faults", role: "group", "aria-label": `${person.name}'s network` }, this.lose, this.offline)
  }

  show({ people }: World): void {
    const line = people.find(({ did }) => did === this.person.did)
    if (line === undefined) return
    this.lose.setAttribute("aria-pressed", String(line.loses))
    this.offline.setAttribute("aria-pressed", String(!line.online))
  }

  private change(line: { online?: boolean; loses?: boolean }): void {
    changeLine(this.person.did, line).then(
      (world) => {
        this.events.onWorld(world)
        if (line.online === true) this.events.onOnline()
      },
      (err: unknown) => this.events.onFailure(err),
    )
  }
}

function isPressed(element: HTMLElement): boolean {
  return element.getAttribute("aria-pressed") === "true"
}
