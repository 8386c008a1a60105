// A picture of somebody: the first letters of the name, on a hue of their own.

import type { CSSProperties } from "react"

/** @param id gives the hue: a DID, or the id of a convo */
export function Avatar({ name, id, src, small = false }: { name: string; id: string; src?: string | undefined; small?: boolean }) {
  const style = { "--hue": hueOf(id) } as CSSProperties
  const className = small ? "avatar small" : "avatar"
  if (src !== undefined) return <img className={className} style={style} src={src} alt="" />
  return <span className={className} style={style} data-initials={initialsOf(name)} aria-hidden="true" />
}

function initialsOf(name: string): string {
  const words = name.replace(/^@/, "").split(/[\s,]+/).filter((word) => word !== "" && word !== "and")
  return words.slice(0, 2).map((word) => Array.from(word)[0]?.toUpperCase()).join("")
}

/** The hue of an id, the same on all devices. */
export function hueOf(id: string): number {
  let hash = 0
  for (const char of id) hash = (hash * 31 + char.codePointAt(0)!) % 9973
  return (hash * 137) % 360
}
