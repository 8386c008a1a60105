// What the pages weigh: the bundle has a limit, without the part that encrypts.

import assert from "node:assert/strict"
import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { gzipSync } from "node:zlib"
import { pageFolder } from "../server/http.js"

const limit = 250_000

const assets = join(pageFolder, "assets")
const weights = readdirSync(assets).filter((name) => /\.(js|css)$/.test(name))
  .map((name) => ({ isMls: name.startsWith("mls-"), bytes: gzipSync(readFileSync(join(assets, name))).length }))
const sum = (isMls: boolean) => weights.filter((one) => one.isMls === isMls).reduce((all, { bytes }) => all + bytes, 0)

console.log(`bundle: ${sum(false)} bytes gzipped, OAuth included, and ${sum(true)} of the MLS library and the client`)
assert.ok(sum(false) <= limit, `the bundle has more than ${limit} bytes`)
