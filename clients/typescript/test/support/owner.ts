// A process that opens a FileStore when it is told to, and says whether it has it: node owner.js FILE.

import { StoreOpenError } from "../../src/errors.js"
import { FileStore } from "../../src/store-file.js"

const [file = ""] = process.argv.slice(2)
process.on("disconnect", () => process.exit())
process.on("message", () => {
  FileStore.open(file).then(() => process.send?.("owner"), (err: unknown) => process.send?.(err instanceof StoreOpenError ? err.code : String(err)))
})
process.send?.("ready")
