// The peers live in a package of their own, so that `npm ci` of the repository stays light; a bench that needs them installs
// them. Without them it still measures what it can.

import { spawnSync } from 'node:child_process'
import { existsSync, statSync } from 'node:fs'
import { join } from 'node:path'

const folder = import.meta.dirname

export function installPeers(): 'installed' | 'missing' {
  const [installed, wanted] = [join(folder, 'node_modules', '.package-lock.json'), join(folder, 'package-lock.json')]
  if (existsSync(installed) && statSync(installed).mtimeMs >= statSync(wanted).mtimeMs) return 'installed'
  process.stdout.write('npm ci in bench/: the peers are not installed yet, or others than those wanted\n')
  const { status, error } = spawnSync('npm', ['ci', '--no-audit', '--no-fund'], {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  if (status === 0) return 'installed'
  process.stdout.write(`The peers are left out: npm ci in bench/ ended with ${error?.message ?? status}\n`)
  return 'missing'
}
