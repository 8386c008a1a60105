// What a page looks like.

import assert from "node:assert/strict"
import { mkdirSync, readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { join } from "node:path"
import type { Page } from "playwright-core"

const pictures = process.env.SCREENSHOTS
if (pictures !== undefined) mkdirSync(pictures, { recursive: true })
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")

const wide = { width: 1040, height: 720 }
const phone = { width: 390, height: 844 }

/** Takes a picture, if SCREENSHOTS names a folder. */
export async function picture(page: Page, name: string): Promise<void> {
  if (pictures !== undefined) await page.screenshot({ path: join(pictures, `${name}.png`), animations: "disabled" })
}

/** Checks the page with axe. It must be sure of everything. */
export async function accessible(page: Page): Promise<void> {
  await page.evaluate(axe)
  const found = await page.evaluate(async () => {
    const { violations, incomplete } = await (window as unknown as { axe: typeof import("axe-core") }).axe.run()
    return [...violations, ...incomplete].map(({ id, nodes }) => `${id}: ${nodes.map(({ html, any }) => `${html} ${any[0]?.message ?? ""}`).join(" ")}`)
  })
  assert.deepEqual(found, [])
}

/** Checks a screen in both themes, and on a phone, and takes its pictures. */
export async function lookAt(page: Page, name: string): Promise<void> {
  await accessible(page)
  await picture(page, name)
  await page.emulateMedia({ colorScheme: "dark" })
  await page.setViewportSize(phone)
  await accessible(page)
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing sticks out at 390 px")
  await picture(page, `${name}-phone-dark`)
  await page.emulateMedia({ colorScheme: "light" })
  await page.setViewportSize(wide)
}
