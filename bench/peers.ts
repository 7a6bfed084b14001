// The peers live in a package of their own, so that `npm ci` of the repository stays light; a bench that needs them installs
// them. Without them it still measures what it can.

import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'

export function installPeers(): 'installed' | 'missing' {
  if (existsSync(join(import.meta.dirname, 'node_modules', '.package-lock.json'))) return 'installed'
  process.stdout.write('npm ci in bench/: the peers are not installed yet\n')
  const { status, error } = spawnSync('npm', ['ci', '--no-audit', '--no-fund'], {
    cwd: import.meta.dirname,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  if (status === 0) return 'installed'
  process.stdout.write(`The peers are left out: npm ci in bench/ ended with ${error?.message ?? status}\n`)
  return 'missing'
}
