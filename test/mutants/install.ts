// The mutation tester lives in a package of its own, so that `npm ci` of the repository stays light.

import { spawnSync } from 'node:child_process'
import { existsSync, statSync } from 'node:fs'
import { join } from 'node:path'

const folder = import.meta.dirname

/** Installs what is wanted and missing. Returns the program. */
export function installStryker(): string {
  const program = join(folder, 'node_modules/@stryker-mutator/core/bin/stryker.js')
  const [installed, wanted] = [join(folder, 'node_modules/.package-lock.json'), join(folder, 'package-lock.json')]
  if (existsSync(installed) && statSync(installed).mtimeMs >= statSync(wanted).mtimeMs) return program
  process.stdout.write(
    'npm ci in test/mutants/: the mutation tester is not installed yet, or another than that wanted\n',
  )
  const { status, error } = spawnSync('npm', ['ci', '--no-audit', '--no-fund'], {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  if (status === 0) return program
  throw new Error(`npm ci in test/mutants/ ended with ${error?.message ?? status}`)
}
