// What a part of the screen can follow.

/** Something that changes, and tells who follows it. */
export class Observable {
  private readonly followers = new Set<() => void>()
  private count = 0

  /** Calls back after each change, until the returned function is called. */
  readonly subscribe = (follower: () => void): (() => void) => {
    this.followers.add(follower)
    return () => void this.followers.delete(follower)
  }

  /** How often it has changed. */
  readonly version = (): number => this.count

  protected changed(): void {
    this.count++
    for (const follower of this.followers) follower()
  }
}
