// Corrects the source of ts-mls 1.6.4 as it is loaded. A process of Node does it before the first
// import of ts-mls:
//
//   import { register } from "node:module"
//   register("mlsd-client/ts-mls-tree", import.meta.url)
//
// A bundler's plug-in calls correctTree for the file dist/src/clientState.js of ts-mls.
//
// A tree may list a leaf as unmerged in a node and not in the nodes above it: a commit that renews
// the upper nodes merges the leaf there. RFC 9420 §12.4.3.1 asks for the leaf in the nodes between it
// and the node that lists it. The library asks for equal lists in all nodes above the leaf, and so
// refuses the trees that most groups have after two additions.

//
// A KeyPackage's lifetime is compared with the device's clock, which can be wrong: TsMls gives the library the
// service's time, as `now` of its lifetimeConfig.

const wrong = "!arraysEqual(dpNode.parent.unmergedLeaves, n.parent.unmergedLeaves)"
const right =
  "dp.indexOf(parentIdx) < dp.indexOf(toNodeIndex(i)) && !dpNode.parent.unmergedLeaves.includes(unmergedLeaf)"

const ownTime = "const currentTime = BigInt(Math.floor(Date.now() / 1000));"
const anyTime = "const currentTime = config.now?.() ?? BigInt(Math.floor(Date.now() / 1000));"

/**
 * Corrects the text of `clientState.js`.
 *
 * @throws Error if the text is not that of ts-mls 1.6.4
 */
export function correctTree(source: string): string {
  return replaced(replaced(source, wrong, right), ownTime, anyTime)
}

function replaced(source: string, before: string, after: string): string {
  if (source.split(before).length !== 2) throw new Error("ts-mls has other source than 1.6.4")
  return source.replace(before, after)
}

/** What Node hands to a hook, as far as it is used here. */
interface Loaded {
  readonly source?: string | ArrayBuffer | Uint8Array | null | undefined
}

/** The hook of Node's module loader. */
export async function load<C, L extends Loaded>(
  url: string, context: C, next: (url: string, context: C) => Promise<L>,
): Promise<L> {
  const loaded = await next(url, context)
  if (!url.endsWith("/ts-mls/dist/src/clientState.js")) return loaded
  const source = typeof loaded.source === "string" ? loaded.source : new TextDecoder().decode(loaded.source ?? undefined)
  return { ...loaded, source: correctTree(source) }
}
