// Runs a PDS on a free port, with the settings of its environment, and prints its URL.
import { PDS, envToCfg, envToSecrets, readEnv } from '@atproto/pds'

const env = readEnv()
const pds = await PDS.create(envToCfg(env), envToSecrets(env))
const server = await pds.start()
console.log(`PDS on http://localhost:${server.address().port}`)
process.stdin.resume()
process.stdin.on('end', () => process.exit(0)) // the test has ended
