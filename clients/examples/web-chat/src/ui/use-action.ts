import { useState } from "react"
import { sentenceOf } from "../model/words.js"

/** Runs what a button does: it says that it runs, and why it has failed. */
export function useAction(): { busy: boolean; problem: string | undefined; run: (action: () => Promise<unknown>) => Promise<void> } {
  const [busy, setBusy] = useState(false)
  const [problem, setProblem] = useState<string>()
  const run = async (action: () => Promise<unknown>) => {
    setBusy(true)
    setProblem(undefined)
    try {
      await action()
    } catch (err) {
      setProblem(sentenceOf(err))
    }
    setBusy(false)
  }
  return { busy, problem, run }
}
