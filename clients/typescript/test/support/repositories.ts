// Real repositories in memory, of @atproto/repo.

import { P256Keypair, Secp256k1Keypair } from "@atproto/crypto"
import { blocksToCarFile, getRecords, MemoryBlockstore, readCarWithRoot, type RecordWriteOp, Repo, WriteOpAction } from "@atproto/repo"
import { concat } from "../../src/bytes.js"
import type { LexValue } from "../../src/json.js"

type Keypair = P256Keypair | Secp256k1Keypair
type Fields = { [name: string]: LexValue }

/** A repository of an account, whose signing key can change. */
export class Repository {
  private constructor(
    readonly did: string,
    private key: Keypair,
    private repo: Repo,
    private readonly storage: MemoryBlockstore,
  ) {}

  static async create(did: string, key?: Keypair): Promise<Repository> {
    const [signer, storage] = [key ?? await Secp256k1Keypair.create(), new MemoryBlockstore()]
    return new Repository(did, signer, await Repo.create(storage, did, signer), storage)
  }

  /** The public signing key, as DID documents have it. */
  get multikey(): string {
    return this.didKey.replace("did:key:", "")
  }

  /** The same, as @atproto/repo takes it. */
  get didKey(): string {
    return this.key.did()
  }

  async put(collection: string, rkey: string, record: Fields): Promise<void> {
    const has = (await this.repo.getRecord(collection, rkey)) !== null
    await this.write({ action: has ? WriteOpAction.Update : WriteOpAction.Create, collection, rkey, record } as RecordWriteOp)
  }

  async delete(collection: string, rkey: string): Promise<void> {
    if (await this.repo.getRecord(collection, rkey)) await this.write({ action: WriteOpAction.Delete, collection, rkey } as RecordWriteOp)
  }

  async get(collection: string, rkey: string): Promise<LexValue> {
    return (await this.repo.getRecord(collection, rkey)) as LexValue
  }

  async list(collection: string): Promise<{ rkey: string; record: LexValue }[]> {
    const { [collection]: records = {} } = (await this.repo.getContents()) as Record<string, Fields>
    return Object.entries(records).map(([rkey, record]) => ({ rkey, record }))
  }

  /** What com.atproto.sync.getRecord answers. */
  async proof(collection: string, rkey: string): Promise<Uint8Array> {
    const chunks = []
    for await (const chunk of getRecords(this.storage, this.repo.cid, [{ collection, rkey }])) chunks.push(chunk)
    return concat(chunks)
  }

  /** The repository as it is now. */
  async copy(): Promise<Repository> {
    const storage = new MemoryBlockstore(this.storage.blocks)
    return new Repository(this.did, this.key, await Repo.load(storage, this.repo.cid), storage)
  }

  /** Signs the same content with another key. */
  async rotate(key: Keypair): Promise<void> {
    this.key = key
    await this.write([])
  }

  private async write(writes: RecordWriteOp | RecordWriteOp[]): Promise<void> {
    this.repo = await this.repo.applyWrites(writes, this.key)
  }
}

/** Keys of both curves that sign repositories. */
export const newKeys: Record<string, () => Promise<Keypair>> = {
  secp256k1: () => Secp256k1Keypair.create(),
  "P-256": () => P256Keypair.create(),
}

/** All CARs that lack one block of a CAR, which is not the root. */
export async function withoutEachBlock(car: Uint8Array): Promise<Uint8Array[]> {
  const { root, blocks } = await readCarWithRoot(car)
  return Promise.all(blocks.cids().filter((cid) => !cid.equals(root)).map(async (cid) => {
    const some = (await readCarWithRoot(car)).blocks
    some.delete(cid)
    return blocksToCarFile(root, some)
  }))
}
