// What a page looks like.

import assert from "node:assert/strict"
import { mkdirSync, readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { join } from "node:path"
import type { Page } from "playwright-core"

const pictures = process.env.SCREENSHOTS
if (pictures !== undefined) mkdirSync(pictures, { recursive: true })
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")

/** Takes a picture, if SCREENSHOTS names a folder. */
export async function picture(page: Page, name: string): Promise<void> {
  if (pictures !== undefined) await page.screenshot({ path: join(pictures, `${name}.png`), animations: "disabled" })
}

/** Checks the page with axe, once nothing moves: a message that fades in has too little contrast. It must be sure of everything. */
export async function accessible(page: Page): Promise<void> {
  await page.evaluate(() => Promise.allSettled(document.getAnimations().map(({ finished }) => finished)))
  await page.evaluate(axe)
  const found = await page.evaluate(async () => {
    const { violations, incomplete } = await (window as unknown as { axe: typeof import("axe-core") }).axe.run()
    return [...violations, ...incomplete].map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`)
  })
  assert.deepEqual(found, [])
}
