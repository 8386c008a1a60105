// Corrects the source of ts-mls 1.6.4 as it is loaded. devices.mjs corrects what can be corrected
// from outside.

// A tree may list a leaf as unmerged in a node and not in the nodes above it: a commit that renews
// the upper nodes merges the leaf there. RFC 9420 §12.4.3.1 asks for the leaf in the nodes between
// it and the node that lists it. The library asks for equal lists in all nodes above the leaf, and
// so refuses the trees that most groups have after two additions.
const wrong = "!arraysEqual(dpNode.parent.unmergedLeaves, n.parent.unmergedLeaves)"
const right = "dp.indexOf(parentIdx) < dp.indexOf(toNodeIndex(i)) && !dpNode.parent.unmergedLeaves.includes(unmergedLeaf)"

export async function load(url, context, next) {
  const loaded = await next(url, context)
  if (!url.endsWith("/ts-mls/dist/src/clientState.js")) return loaded
  const source = loaded.source.toString()
  if (source.split(wrong).length !== 2) throw new Error("ts-mls has other source than 1.6.4")
  return { ...loaded, source: source.replace(wrong, right) }
}
