// Files: those that are on their way, and those that others have sent.

import {
  Attachments, body, type BodyOf, type Client, type ConvoId, encodeContent, errorName, type FilePointer, sealFile, type SealedFile, type Store,
} from "mlsd-client"
import { Observable } from "./observable.js"
import { jsonChange, names, readAllJson } from "./records.js"

/** A file that is on its way. */
export interface Upload {
  readonly id: string
  readonly convo: ConvoId
  readonly name: string
  readonly mimeType: string
  /** Bytes of the plaintext. */
  readonly size: number
  readonly alt?: string
  readonly width?: number
  readonly height?: number
  readonly createdAt: string
  readonly sealed: Omit<SealedFile, "ciphertext">
}

/** An upload as it is now. */
export interface ShownUpload extends Upload {
  /** From 0 to 1. */
  readonly progress: number
  readonly problem?: string
}

/** What a person says about a file. */
export interface Described {
  readonly alt?: string
  readonly width?: number
  readonly height?: number
}

/** The types that are shown as pictures. SVG is none: it can have scripts. */
const pictures = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/avif"]

export function isPicture(mimeType: string): boolean {
  return pictures.includes(mimeType)
}

export class Files extends Observable {
  private readonly uploads = new Map<string, ShownUpload>()
  private readonly running = new Map<string, AbortController>()
  private readonly opened = new Map<string, Promise<Uint8Array>>()
  private readonly attachments: Attachments

  constructor(
    private readonly client: Client,
    private readonly store: Store,
    private readonly onFailure: (err: unknown) => void,
  ) {
    super()
    this.attachments = new Attachments(client.transport)
  }

  /** Goes on with what an earlier life of the page has not finished. */
  async open(): Promise<void> {
    for (const upload of await readAllJson<Upload>(this.store, names.files)) this.go(upload)
  }

  /** What is on its way into a convo. */
  in(convo: ConvoId): ShownUpload[] {
    return [...this.uploads.values()].filter((upload) => upload.convo === convo)
  }

  /** Seals a file and keeps it. When it returns, the file cannot get lost. */
  async send(convo: ConvoId, file: File, described: Described = {}): Promise<void> {
    const { ciphertext, ...sealed } = await sealFile(new Uint8Array(await file.arrayBuffer()))
    const upload: Upload = {
      id: crypto.randomUUID(), convo, name: file.name.slice(0, 200) || "file", mimeType: file.type || "application/octet-stream",
      size: file.size, createdAt: new Date().toISOString(), sealed, ...described,
    }
    await this.store.write(new Map([...jsonChange(names.file(upload.id), upload), [names.fileBytes(upload.id), ciphertext]]))
    this.go(upload)
  }

  /** Takes a file back that is on its way. */
  async cancel(id: string): Promise<void> {
    this.running.get(id)?.abort()
    await this.store.write(new Map([[names.file(id), undefined], [names.fileBytes(id), undefined]]))
    this.end(id)
  }

  /** Uploads a file that no message names yet, and returns what a reader needs. */
  async upload(convo: ConvoId, file: File): Promise<FilePointer> {
    return this.attachments.upload(convo, await sealFile(new Uint8Array(await file.arrayBuffer())))
  }

  /** The content of a file that somebody has sent. It is fetched once in a life of the page. */
  content(convo: ConvoId, { file }: Pick<BodyOf<"attachment">, "file">, progress?: (bytes: number) => void): Promise<Uint8Array> {
    const content = this.opened.get(file.id) ?? this.attachments.download(convo, file, progress && { progress }).catch((err: unknown) => {
      this.opened.delete(file.id)
      throw err
    })
    this.opened.set(file.id, content)
    return content
  }

  private go(upload: Upload): void {
    this.uploads.set(upload.id, { ...upload, progress: 0 })
    this.changed()
    this.run(upload).catch((err: unknown) => {
      if (!this.uploads.has(upload.id)) return // it was taken back
      this.uploads.set(upload.id, { ...this.uploads.get(upload.id)!, problem: "This file could not be sent" })
      this.changed()
      this.onFailure(err)
    })
  }

  private async run(upload: Upload): Promise<void> {
    const { id, convo, name, mimeType, size, alt, width, height, sealed } = upload
    const ciphertext = await this.store.read(names.fileBytes(id))
    if (ciphertext === undefined) return this.end(id)
    const stop = new AbortController()
    this.running.set(id, stop)
    try {
      const progress = (bytes: number) => this.progress(id, bytes / sealed.size)
      const file = await this.attachments.upload(convo, { ...sealed, ciphertext }, { progress, signal: stop.signal })
      const described = { ...(alt && { alt }), ...(width && { width }), ...(height && { height }) }
      const content = { body: body.attachment({ file, name, mimeType, size, ...described }) }
      const changes = new Map([[names.file(id), undefined], [names.fileBytes(id), undefined]])
      await this.client.send(convo, encodeContent(content), { embedUri: file.uri, changes })
      this.end(id)
    } catch (err) {
      if (errorName(err) !== "InvalidAsset") throw err
      // The server got other bytes than announced: the file is announced anew, under another key.
      const anew = { ...upload, sealed: { ...sealed, idempotencyKey: crypto.randomUUID() } }
      await this.store.write(jsonChange(names.file(id), anew))
      await this.run(anew)
    }
  }

  private progress(id: string, progress: number): void {
    const upload = this.uploads.get(id)
    if (upload === undefined) return
    this.uploads.set(id, { ...upload, progress })
    this.changed()
  }

  private end(id: string): void {
    this.running.delete(id)
    this.uploads.delete(id)
    this.changed()
  }
}
