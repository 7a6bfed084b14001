// The one check of the runtime. Everything that users create passes it before it opens, claims or listens: without it an old Node fails at
// the first function that it lacks, which is after the claim, and the key stays blocked for a lease.

import { OnceError } from '../errors.ts'

/** As `engines` in package.json has it. */
export const nodeVersionMin = '22.13'

/** Throws on a Node that is too old. Runtimes that do not say which Node they stand for (browsers, workers at the edge) are let through. */
export function checkNodeVersion(): void {
  const found = (globalThis as { process?: { versions?: { node?: string } } }).process?.versions?.node
  if (found === undefined) return
  const [major = 0, minor = 0] = found.split('.').map(Number)
  const [majorMin = 0, minorMin = 0] = nodeVersionMin.split('.').map(Number)
  if (major > majorMin || (major === majorMin && minor >= minorMin)) return
  throw new OnceError('UNSUPPORTED', {
    message: `onceonly needs Node ${nodeVersionMin} or later, and this is Node ${found}. Nothing was run. Install a newer Node (https://nodejs.org).`,
  })
}
