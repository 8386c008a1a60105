// What a chat is called on the screen.

import type { ListedChat } from "../model/chat-list.js"
import { listOf, type People } from "../model/people.js"

/** The group's name, or who is in it. */
export function titleOf({ name, others }: ListedChat, people: People): string {
  return name ?? (others.length === 0 ? "Only you" : listOf(others.map((did) => people.nameOf(did))))
}

/** Whether it is a chat of two people without a name. */
export function isPair({ name, others }: ListedChat): boolean {
  return name === undefined && others.length === 1
}

/** What gives the hue of a chat's picture. */
export function hueIdOf(chat: ListedChat): string {
  return isPair(chat) ? chat.others[0]! : chat.convo
}
