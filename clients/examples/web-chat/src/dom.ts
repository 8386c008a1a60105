// Making elements.

type Child = Node | string

/** Makes an element with attributes and children. */
export function el<K extends keyof HTMLElementTagNameMap>(
  name: K, attributes: Readonly<Record<string, string>> = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(name)
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value)
  element.append(...children)
  return element
}

/** Makes a button. */
export function button(label: string, onClick: () => void, attributes: Readonly<Record<string, string>> = {}): HTMLButtonElement {
  const element = el("button", { type: "button", ...attributes }, label)
  element.addEventListener("click", onClick)
  return element
}

/** The time of the day, as the reader writes it. */
export function clock(at: Date, seconds = false): string {
  return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(seconds && { second: "2-digit" }) })
}
