// Kills the process at a chosen step. A step is a write of the store, or a call or its answer.

import type { Changes, Store } from "../../src/store.js"
import type { Call, Transport } from "../../src/transport.js"

/** Counts steps, and ends this process without warning at one of them. */
export class Steps {
  constructor(private left: number) {}

  step(): void {
    if (--this.left === 0) process.kill(process.pid, "SIGKILL")
  }

  store(store: Store): Store {
    return {
      read: (name) => store.read(name),
      list: (prefix) => store.list(prefix),
      range: (range) => store.range(range),
      count: (range) => store.count(range),
      close: () => store.close(),
      write: async (changes: Changes) => {
        this.step()
        await store.write(changes)
        this.step()
      },
    }
  }

  transport(transport: Transport): Transport {
    return {
      call: async (call: Call) => {
        this.step()
        const answer = await transport.call(call)
        this.step()
        return answer
      },
    }
  }
}
