// Encrypted files: docs/clients/ATTACHMENTS.md.

import { decodeAnswer, encodeInput, waitOf } from "./api.js"
import { fromBase64url, base64url, sha256 } from "./bytes.js"
import type { Clock } from "./clock.js"
import { backoff, systemClock } from "./clock.js"
import { errorName, NoAnswerError, verdictOf } from "./errors.js"
import type { Call, Transport } from "./transport.js"
import * as mls from "#lexicons"

/**
 * What a reader needs of a file. It belongs into the MLS message, and nowhere else: who has it can
 * read the file.
 */
export interface FilePointer {
  readonly id: string
  /** For embedUri. */
  readonly uri: `${string}:${string}`
  /** The AES-256-GCM key, base64url. */
  readonly key: string
  /** Its nonce, base64url. */
  readonly nonce: string
  /** The SHA-256 of the ciphertext, in hexadecimal. */
  readonly sha256: string
  /** Bytes of the ciphertext. */
  readonly size: number
}

/**
 * An encrypted file. Keep it until its upload has ended: encrypted again it is another file, and what
 * was uploaded before is lost.
 */
export interface SealedFile extends Omit<FilePointer, "id" | "uri"> {
  readonly ciphertext: Uint8Array
  /** Names the attempt, for retries. After InvalidAsset it needs a new one. */
  readonly idempotencyKey: string
}

/** The content is not what its sender has announced: the server or its store has changed it. */
export class FileChangedError extends Error {
  override readonly name = "FileChangedError"
  readonly code = "FileChanged"
}

const keyBytes = 32
const nonceBytes = 12

/** How many bytes are read at once: a PDS passes on some 10 MB. */
const readAtOnce = 4 << 20

/** How often an upload is completed whose parts the store loses. */
const maxCompletions = 5

/**
 * Encrypts a file under a fresh key.
 *
 * @param boundTo additional data, without which it does not open
 */
export async function sealFile(plain: Uint8Array, boundTo: Uint8Array = new Uint8Array()): Promise<SealedFile> {
  const key = crypto.getRandomValues(new Uint8Array(keyBytes))
  const nonce = crypto.getRandomValues(new Uint8Array(nonceBytes))
  const aes = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"])
  const ciphertext = new Uint8Array(
    await crypto.subtle.encrypt(gcm(nonce, boundTo), aes, plain as Uint8Array<ArrayBuffer>),
  )
  return {
    key: base64url(key), nonce: base64url(nonce), sha256: await sha256(ciphertext), size: ciphertext.length, ciphertext,
    idempotencyKey: crypto.randomUUID(),
  }
}

/**
 * Checks and decrypts a file.
 *
 * @throws FileChangedError if the ciphertext is not the one that the pointer names
 */
export async function openFile(
  pointer: Omit<FilePointer, "id" | "uri">, ciphertext: Uint8Array, boundTo: Uint8Array = new Uint8Array(),
): Promise<Uint8Array> {
  if (ciphertext.length !== pointer.size || (await sha256(ciphertext)) !== pointer.sha256) {
    throw new FileChangedError("the attachment is not the one that was sent")
  }
  try {
    const key = fromBase64url(pointer.key) as Uint8Array<ArrayBuffer>
    const aes = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"])
    const algorithm = gcm(fromBase64url(pointer.nonce), boundTo)
    return new Uint8Array(await crypto.subtle.decrypt(algorithm, aes, ciphertext as Uint8Array<ArrayBuffer>))
  } catch (err) {
    throw new FileChangedError("the attachment cannot be decrypted", { cause: err })
  }
}

function gcm(iv: Uint8Array, additionalData: Uint8Array): AesGcmParams {
  return { name: "AES-GCM", iv: iv as Uint8Array<ArrayBuffer>, additionalData: additionalData as Uint8Array<ArrayBuffer> }
}

/** Options of an upload or a download. */
export interface TransferOptions {
  readonly signal?: AbortSignal
  /** Is called with the bytes that have moved. */
  readonly progress?: (bytes: number) => void
  /** Additional data of the file that is downloaded, if it was sealed with some. */
  readonly boundTo?: Uint8Array
}

/** Uploads and downloads encrypted files. It repeats what the retry table says until its signal aborts. */
export class Attachments {
  constructor(
    private readonly transport: Transport,
    private readonly clock: Clock = systemClock,
  ) {}

  /** Uploads a file, or goes on with an upload that was cut off: the same sealed file again. */
  async upload(convoId: string, file: SealedFile, options: TransferOptions = {}): Promise<FilePointer> {
    const { main } = mls.createAttachment
    const { size, sha256, idempotencyKey } = file
    const body = encodeInput(main, { convoId, size, sha256, idempotencyKey })
    const created = decodeAnswer(main, await this.again({ method: main.nsid, body }, options))
    const { attachmentId, partSize } = created
    for (let n = 1; ; n++) {
      await this.putMissing(convoId, attachmentId, partSize, file, options)
      try {
        await this.complete(convoId, attachmentId, options)
      } catch (err) {
        if (errorName(err) !== "AttachmentIncomplete" || n === maxCompletions) throw err
        // The store has lost a part.
        await this.clock.sleep(backoff(this.clock, n), options.signal ?? new AbortController().signal)
        if (options.signal?.aborted) throw err
        continue
      }
      const { key, nonce } = file
      return { id: attachmentId, uri: created.uri, key, nonce, sha256, size }
    }
  }

  /**
   * Downloads a file, checks it and decrypts it.
   *
   * @throws FileChangedError if it is not the one that the pointer names
   */
  async download(convoId: string, pointer: Omit<FilePointer, "uri">, options: TransferOptions = {}): Promise<Uint8Array> {
    const ciphertext = new Uint8Array(pointer.size)
    for (let at = 0; at < pointer.size; ) {
      const params = new URLSearchParams({
        convoId, attachmentId: pointer.id, offset: String(at), length: String(Math.min(readAtOnce, pointer.size - at)),
      })
      const piece = await this.repeat(options, (signal) => {
        if (this.transport.receive === undefined) throw new Error("the transport receives no bytes")
        return this.transport.receive({ method: mls.getAttachment.main.nsid, params, ...(signal && { signal }) })
      })
      if (piece.length === 0 || at + piece.length > pointer.size) throw new FileChangedError("the attachment has another size")
      ciphertext.set(piece, at)
      at += piece.length
      options.progress?.(at)
    }
    return openFile(pointer, ciphertext, options.boundTo)
  }

  private async putMissing(convoId: string, attachmentId: string, partSize: number, file: SealedFile, options: TransferOptions) {
    const { main } = mls.getAttachmentStatus
    const params = new URLSearchParams({ convoId, attachmentId })
    const status = decodeAnswer(main, await this.again({ method: main.nsid, params }, options))
    if (status.state !== "uploading") return // completing says what has become of it
    const there = new Set(status.parts)
    for (let part = 1; part <= status.partCount; part++) {
      const end = Math.min(part * partSize, file.size)
      if (!there.has(part)) {
        const bytes = file.ciphertext.subarray((part - 1) * partSize, end)
        const where = new URLSearchParams({ convoId, attachmentId, part: String(part) })
        await this.again({ method: mls.putAttachmentPart.main.nsid, params: where, bytes }, options)
      }
      options.progress?.(end)
    }
  }

  private async complete(convoId: string, attachmentId: string, options: TransferOptions) {
    const { main } = mls.completeAttachment
    await this.again({ method: main.nsid, body: encodeInput(main, { convoId, attachmentId }) }, options)
  }

  private again(call: Call, options: TransferOptions): Promise<string> {
    return this.repeat(options, (signal) => this.transport.call({ ...call, ...(signal && { signal }) }))
  }

  private async repeat<T>({ signal }: TransferOptions, attempt: (signal?: AbortSignal) => Promise<T>): Promise<T> {
    for (let n = 1; ; n++) {
      try {
        return await attempt(signal)
      } catch (err) {
        if (!(err instanceof NoAnswerError) && verdictOf(err) !== "again") throw err
        if (signal?.aborted) throw err
        await this.clock.sleep(waitOf(err, this.clock, n), signal ?? new AbortController().signal)
        if (signal?.aborted) throw err
      }
    }
  }
}
