// The icons, as strokes on 24 × 24.

const paths = {
  back: "M15 5l-7 7 7 7",
  plus: "M12 5v14M5 12h14",
  send: "M4 12l16-7-5 15-3.5-6z",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16.5 16.5L21 21",
  info: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 11v6M12 7.5v.5",
  close: "M6 6l12 12M18 6L6 18",
  file: "M20 11.5l-8 8a5 5 0 0 1-7-7l8.5-8.5a3.4 3.4 0 0 1 4.8 4.8L10 17a1.7 1.7 0 0 1-2.4-2.4L15 7.3",
  reply: "M10 6L4 12l6 6M4 12h9a7 7 0 0 1 7 7",
  edit: "M4 20l1-4L16 5l3 3L8 19z",
  delete: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  smile: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM8.5 14.5a4.5 4.5 0 0 0 7 0M9 9.5v.5M15 9.5v.5",
  bolt: "M13 3L5 14h6l-1 7 8-11h-6z",
  people: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM2.5 20a6.5 6.5 0 0 1 13 0M16 4.5a3.5 3.5 0 0 1 0 6.5M18 14.5a6.5 6.5 0 0 1 3.5 5.5",
  down: "M12 5v13M6 12l6 6 6-6",
} as const

export type IconName = keyof typeof paths

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={paths[name]} fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinecap="round" strokeLinejoin="round" />
    </svg>
  )
}

/** A button that is only an icon. */
export function IconButton({ icon, label, ...others }: { icon: IconName; label: string } & React.ComponentProps<"button">) {
  return <button type="button" className="icon-button" aria-label={label} title={label} {...others}><Icon name={icon} /></button>
}
