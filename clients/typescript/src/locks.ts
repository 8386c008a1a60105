// Functions of one name that do not run at the same time.

/** Runs `fn`, unless a function of this name is running: then that one's promise is returned. */
export function once<T>(running: Map<string, Promise<T>>, name: string, fn: () => Promise<T>): Promise<T> {
  const promise = running.get(name) ?? fn().finally(() => running.delete(name))
  running.set(name, promise)
  return promise
}

/** Runs functions of one name one after the other. */
export class Locks {
  private readonly last = new Map<string, Promise<void>>()

  /** Runs `fn` when all earlier functions of this name have ended. It must not call itself. */
  async run<T>(name: string, fn: () => Promise<T>): Promise<T> {
    const before = this.last.get(name) ?? Promise.resolve()
    const running = before.then(fn)
    const ended = running.then(() => {}, () => {})
    this.last.set(name, ended)
    try {
      return await running
    } finally {
      if (this.last.get(name) === ended) this.last.delete(name)
    }
  }
}
