// The safety number with a person.

import { useEffect, useState } from "react"
import { compareSafetyNumbers, type Did, formatDigits, parseSafetyNumber, type SafetyComparison, safetyNumberText } from "mlsd-client"
import { encode } from "uqr"
import { names, readText, textChange } from "../model/records.js"
import type { Session } from "../model/session.js"
import { sentenceOf } from "../model/words.js"
import { Dialog } from "./dialog.js"

interface Shown {
  readonly digits: string
  readonly text: string
  readonly compared: "never" | SafetyComparison
}

export function SafetyDialog({ session, did, onClose }: { session: Session; did: Did; onClose: () => void }) {
  const [shown, setShown] = useState<Shown>()
  const [problem, setProblem] = useState<string>()
  const { client, store, people } = session
  const name = people.nameOf(did)
  const read = async () => {
    const number = await client.safetyNumber(did)
    const before = await readText(store, names.compared(did))
    const compared = before === undefined ? "never" : compareSafetyNumbers(number, parseSafetyNumber(before))
    setShown({ digits: formatDigits(number.digits), text: safetyNumberText(number), compared })
  }
  useEffect(() => {
    read().catch((err: unknown) => setProblem(sentenceOf(err)))
  }, [session, did])
  const mark = async (text: string | undefined) => {
    await store.write(textChange(names.compared(did), text))
    await read()
  }
  return (
    <Dialog title={`Safety number with ${name}`} onClose={onClose}>
      <p className="hint">{people.handleOf(did)}</p>
      {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
      {shown !== undefined && (
        <>
          <Qr text={shown.text} />
          <p className="digits">{shown.digits.split(/\s+/).map((five, i) => <span key={i}>{five}</span>)}</p>
          <p role="status" className={shown.compared === "differs" ? "problem" : "hint"}>{wordsFor(shown.compared, name)}</p>
          <div className="buttons">
            {shown.compared === "same"
              ? <button type="button" onClick={() => void mark(undefined).catch(session.fail)}>Forget that it was compared</button>
              : <button type="button" className="main" onClick={() => void mark(shown.text).catch(session.fail)}>Mark as compared</button>}
          </div>
        </>
      )}
    </Dialog>
  )
}

function wordsFor(compared: Shown["compared"], name: string): string {
  switch (compared) {
    case "never":
      return `Compare this number with ${name}’s: side by side, or in a call. Not in this chat: somebody who reads along could change it.`
    case "same":
      return `You have compared this number. You and ${name} see the same devices.`
    case "differs":
      return `${name}’s safety number has changed. One of you has added or removed a device, or somebody pretends to be one of you. Ask, and compare again.`
    case "otherVersion":
      return "You compared this number with an older version of this app. Compare it again."
  }
}

/** A QR code: black on white in both themes, so that cameras read it. */
function Qr({ text }: { text: string }) {
  const { data, size } = encode(text, { border: 3 })
  const path = data.flatMap((row, y) => row.flatMap((black, x) => (black ? [`M${x} ${y}h1v1h-1z`] : []))).join("")
  return (
    <svg className="qr" viewBox={`0 0 ${size} ${size}`} role="img" aria-label="The number as a QR code" shapeRendering="crispEdges">
      <rect width={size} height={size} fill="#fff" /><path d={path} fill="#000" />
    </svg>
  )
}
