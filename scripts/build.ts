// Builds dist/ with plain tsc. A stale file of an earlier build would be published, so the folder is made anew; the new one
// takes the place of the old in one rename, so that a program that starts meanwhile never sees half of it.

import { spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

const root = join(import.meta.dirname, '..')
const fresh = mkdtempSync(join(root, '.dist-'))
const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc')
const built = spawnSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json'), '--outDir', fresh], {
  stdio: 'inherit',
})
if (built.status !== 0) {
  rmSync(fresh, { recursive: true })
  process.exit(built.status ?? 1)
}
chmodSync(fresh, 0o755)
// Pages, styles and schemas are used as they are: whatever is no TypeScript goes along.
cpSync(join(root, 'src'), fresh, { recursive: true, filter: (path) => !path.endsWith('.ts') })
// The schema of the gateway's file is made of the table that reads it.
const { configSchema } = (await import(pathToFileURL(join(fresh, 'cli', 'gateway', 'config.js')).href)) as {
  configSchema: () => object
}
writeFileSync(join(fresh, 'cli', 'gateway', 'config.schema.json'), `${JSON.stringify(configSchema(), undefined, 2)}\n`)
const program = join(fresh, 'cli', 'main.js')
if (existsSync(program)) chmodSync(program, 0o755)
const dist = join(root, 'dist')
if (existsSync(dist)) {
  const old = mkdtempSync(join(root, '.dist-'))
  renameSync(dist, join(old, 'dist'))
  rmSync(old, { recursive: true })
}
renameSync(fresh, dist)
