// Runs a PDS on a free port of loopback, with the settings of its environment, and prints its URL.
import { once } from 'node:events'
import { createServer } from 'node:net'
import { PDS, envToCfg, envToSecrets, readEnv } from '@atproto/pds'

// The PDS names its port in what it publishes, so it must have one before it starts. It would listen on
// every address.
const bound = createServer().listen(0, '127.0.0.1')
await once(bound, 'listening')
const { port } = bound.address()
const env = { ...readEnv(), port }
const pds = await PDS.create(envToCfg(env), envToSecrets(env))
const { listen } = pds.app
pds.app.listen = () => listen.call(pds.app, bound)
await pds.start()
console.log(`PDS on http://localhost:${port}`)
process.stdin.resume()
process.stdin.on('end', () => process.exit(0)) // the test has ended
