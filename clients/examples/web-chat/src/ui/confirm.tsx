// A question before something that cannot be undone.

import { useAction } from "./use-action.js"
import { Dialog } from "./dialog.js"

export interface ConfirmProps {
  readonly title: string
  readonly text: string
  readonly yes: string
  readonly onYes: () => Promise<unknown>
  readonly onClose: () => void
}

export function Confirm({ title, text, yes, onYes, onClose }: ConfirmProps) {
  const { busy, problem, run } = useAction()
  return (
    <Dialog title={title} onClose={onClose}>
      <div className="fields">
        <p>{text}</p>
        {problem !== undefined && <p className="problem" role="alert">{problem}</p>}
        <div className="buttons">
          <button type="button" className="danger" disabled={busy} onClick={() => void run(async () => { await onYes(); onClose() })}>{yes}</button>
          <button type="button" onClick={onClose}>Cancel</button>
        </div>
      </div>
    </Dialog>
  )
}
