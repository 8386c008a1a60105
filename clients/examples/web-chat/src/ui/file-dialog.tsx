// What a person says about a file before it is sent.

import { useEffect, useState } from "react"
import { type Described, isPicture } from "../model/files.js"
import { sizeOf } from "../model/words.js"
import { Dialog } from "./dialog.js"

export function FileDialog({ file, onSend, onClose }: { file: File; onSend: (described: Described) => void; onClose: () => void }) {
  const [src, setSrc] = useState<string>()
  const [alt, setAlt] = useState("")
  const [size, setSize] = useState<{ width: number; height: number }>()
  const shows = isPicture(file.type)
  useEffect(() => {
    if (!shows) return
    const url = URL.createObjectURL(file)
    setSrc(url)
    return () => URL.revokeObjectURL(url)
  }, [file, shows])
  return (
    <Dialog title={shows ? "Send a picture" : "Send a file"} onClose={onClose}>
      <form className="fields" onSubmit={(event) => { event.preventDefault(); onSend({ ...size, ...(alt.trim() && { alt: alt.trim() }) }) }}>
        {src !== undefined && <img className="whole-picture" src={src} alt="The picture that you send" onLoad={({ currentTarget: { naturalWidth: width, naturalHeight: height } }) => setSize({ width, height })} />}
        <p><b>{file.name}</b> <small>{sizeOf(file.size)}</small></p>
        {shows && (
          <label>What it shows <small>for people who do not see it</small>
            <input value={alt} onChange={({ target }) => setAlt(target.value)} maxLength={2000} />
          </label>
        )}
        <button className="main">Send</button>
      </form>
    </Dialog>
  )
}
