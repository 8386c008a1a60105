// Corrects ts-mls as it is loaded: node --import this.

import { register } from "node:module"

register("../../src/mls-ts-tree.js", import.meta.url)
