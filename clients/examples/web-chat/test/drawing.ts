// A picture that a test sends.

import { crc32, deflateSync } from "node:zlib"

/** Makes a PNG with a soft pattern: always the same. */
export function drawing(width: number, height: number): Buffer {
  const rows = Buffer.alloc((width * 3 + 1) * height)
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const at = y * (width * 3 + 1) + 1 + x * 3
      const bowl = Math.hypot((x - width / 2) / width, (y - height / 2) / height)
      const inside = bowl < 0.36
      rows[at] = inside ? 205 - Math.round(bowl * 160) : 236 - Math.round((y / height) * 30)
      rows[at + 1] = inside ? 82 - Math.round(bowl * 90) : 226 - Math.round((x / width) * 24)
      rows[at + 2] = inside ? 48 : 208
    }
  }
  const head = Buffer.alloc(13)
  head.writeUInt32BE(width, 0)
  head.writeUInt32BE(height, 4)
  head.set([8, 2, 0, 0, 0], 8)
  const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])
  return Buffer.concat([signature, chunk("IHDR", head), chunk("IDAT", deflateSync(rows)), chunk("IEND", Buffer.alloc(0))])
}

function chunk(type: string, content: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(type, "latin1"), content])
  const [length, check] = [Buffer.alloc(4), Buffer.alloc(4)]
  length.writeUInt32BE(content.length)
  check.writeUInt32BE(crc32(body))
  return Buffer.concat([length, body, check])
}
