// The ids of successors are the same in all clients: clients/vectors/successor.json.

import assert from "node:assert/strict"
import { readFile, writeFile } from "node:fs/promises"
import { test } from "node:test"
import { successorIdOf } from "../src/binding.js"
import { fromHex, hex } from "../src/bytes.js"

/** In hexadecimal. */
interface Vector {
  readonly groupId: string
  readonly random: string
  readonly successor: string
}

const file = new URL("../../../vectors/successor.json", import.meta.url)

/** Old group ids of several lengths, of which the last one is that of a successor. */
const groupIds = ["", "00", "ff".repeat(16), "00112233445566778899aabbccddeeff", "7e".repeat(32)]

test("the ids of successors are those of the vectors", async () => {
  if (process.env.SUCCESSOR_VECTORS === "write") {
    const made = groupIds.map(async (groupId, i): Promise<Vector> => {
      const random = Uint8Array.from({ length: 16 }, (_, j) => i * 16 + j)
      return { groupId, random: hex(random), successor: hex(await successorIdOf(fromHex(groupId), random)) }
    })
    await writeFile(file, JSON.stringify(await Promise.all(made), undefined, 1) + "\n")
  }
  const vectors = JSON.parse(await readFile(file, "utf8")) as Vector[]
  assert.equal(vectors.length, groupIds.length)
  for (const { groupId, random, successor } of vectors) {
    assert.equal(hex(await successorIdOf(fromHex(groupId), fromHex(random))), successor)
  }
})
