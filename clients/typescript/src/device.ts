// Opening a device of ts-mls. In Node, device-node.ts corrects ts-mls before it loads this file.

import type { CiphersuiteName } from "ts-mls"
import { sha256 } from "./bytes.js"
import { Client, type ClientOptions } from "./client.js"
import { asDid } from "./ids.js"
import { TsMls, type TsMlsOptions } from "./mls-ts.js"
import { names } from "./records.js"
import { OwnedStore } from "./store.js"
import type { Transport } from "./transport.js"

/** What a device works with. */
export interface DeviceOptions extends Omit<ClientOptions, "mls" | "transport"> {
  /** A way to the service, or what makes it for the device's id, as {@link SessionTransport} needs. */
  readonly transport: Transport | ((deviceId: string) => Transport)
  /** Of a new device. The groups that it makes have the same. */
  readonly cipherSuite?: CiphersuiteName
  readonly tsMls?: TsMlsOptions
}

/**
 * Opens the device that the store has, or makes one, with a signature key of its own.
 *
 * @throws StoreOpenError if another client has the store, and is not closed
 */
export async function openDevice(options: DeviceOptions): Promise<Client> {
  const store = OwnedStore.take(options.store)
  try {
    return await openWith(store, options)
  } catch (err) {
    await store.release()
    throw err
  }
}

async function openWith(store: OwnedStore, options: DeviceOptions): Promise<Client> {
  const { did, transport, cipherSuite = "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", tsMls, ...others } = options
  const saved = await store.read(names.device)
  const mls = saved === undefined ? await TsMls.create(asDid(did), cipherSuite, tsMls) : await TsMls.import(saved, tsMls)
  if (mls.identity !== did) throw new Error(`the store has the device of ${mls.identity}, not of ${did}`)
  if (saved === undefined) await store.write(new Map([[names.device, mls.export()]]))
  const way = typeof transport === "function" ? transport(await sha256(mls.signatureKey)) : transport
  return Client.open({ ...others, did, store, mls, transport: way })
}
