import { useSyncExternalStore } from "react"
import type { Observable } from "../model/observable.js"

/** Draws a component again after each change. */
export function useChanges(observable: Observable): number {
  return useSyncExternalStore(observable.subscribe, observable.version)
}
