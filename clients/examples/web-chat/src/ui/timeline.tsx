// The messages of a conversation, in blocks. The browser leaves out blocks that are out of sight.

import { memo, useEffect, useRef } from "react"
import type { Conversation } from "../model/conversation.js"
import { isSame, type Line } from "../model/lines.js"
import type { Session } from "../model/session.js"
import { type MessageActions, MessageRow } from "./message.js"
import { useChanges } from "./use-changes.js"

/** So many lines are one block. */
const blockSize = 40

export interface TimelineProps {
  readonly session: Session
  readonly conversation: Conversation
  readonly actions: MessageActions
  /** Whether authors' names are shown. */
  readonly named: boolean
  readonly label: string
}

export function Timeline({ session, conversation, actions, named, label }: TimelineProps) {
  useChanges(conversation)
  useChanges(session.people)
  const scroller = useRef<HTMLDivElement>(null)
  const top = useRef<HTMLDivElement>(null)
  const lines = conversation.lines()
  const { hasOlder, isReady } = conversation

  useEffect(() => {
    const element = top.current
    if (element === null || !isReady) return
    const watcher = new IntersectionObserver(([entry]) => {
      if (entry?.isIntersecting) conversation.older().catch(session.fail)
    }, { root: scroller.current, rootMargin: "1200px 0px" })
    watcher.observe(element)
    return () => watcher.disconnect()
  }, [conversation, session, isReady, lines.length])

  // Its first child is at the bottom, and it stays there when messages come or its height changes.
  return (
    <div ref={scroller} className="timeline" role="log" aria-label={label} tabIndex={0}>
      <div className="lines">
        {hasOlder ? <div ref={top} className="older">Earlier messages …</div> : <p className="older">The conversation begins here</p>}
        {blocksOf(lines).map((block) => (
          <Block key={block.key} lines={block.lines} session={session} conversation={conversation} actions={actions} named={named} />
        ))}
      </div>
    </div>
  )
}

// blocksOf counts from the end, so that messages above leave the blocks as they are. New messages fill the last block.
function blocksOf(lines: readonly Line[]): { key: string; lines: readonly Line[] }[] {
  const blocks: { key: string; lines: readonly Line[] }[] = []
  const anchors = lines.flatMap((line, i) => (startsBlock(line, i) ? [i] : []))
  for (const [i, start] of anchors.entries()) {
    blocks.push({ key: lines[start]!.key, lines: lines.slice(start, anchors[i + 1]) })
  }
  return blocks
}

// startsBlock depends on the line alone, so that a line stays in its block when others come.
function startsBlock(line: Line, i: number): boolean {
  return i === 0 || (line.kind === "message" && Number.isFinite(line.message.seq) && line.message.seq % blockSize === 0)
}

interface BlockProps extends Omit<TimelineProps, "label"> {
  readonly lines: readonly Line[]
}

const Block = memo(function Block({ lines, ...others }: BlockProps) {
  useChanges(others.session.people)
  return (
    <ul className="block">
      {lines.map((line) => (line.kind === "message"
        ? <MessageRow key={line.key} line={line} {...others} />
        : <li key={line.key} className={line.kind}>{line.text}</li>))}
    </ul>
  )
}, (a, b) => a.named === b.named && a.actions === b.actions && a.conversation === b.conversation &&
  a.lines.length === b.lines.length && a.lines.every((line, i) => isSame(line, b.lines[i]) && !isQuoting(line)))

// isQuoting: what a line quotes can change without it.
function isQuoting(line: Line): boolean {
  return line.kind === "message" && line.message.replyTo !== undefined
}
