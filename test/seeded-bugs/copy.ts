// A copy of the project in a temporary folder, in which the bugs are put: the source that people work on is never touched. It
// has links to the installed packages, so it costs no more than its own text.

import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import type { SeededBug } from './bug.ts'

export const root: string = join(import.meta.dirname, '../..')

export interface Copy {
  readonly path: string
  /** Puts the bug in. The returned function takes it out. */
  seed(bug: SeededBug): () => void
}

const copied = ['src', 'test', 'docs', 'examples', 'package.json', 'tsconfig.json', 'vitest.config.ts'] as const

/** `folder` is where it is made, and goes with it. */
export function makeCopy(folder: string): Copy {
  const path = mkdtempSync(join(folder, 'seeded-'))
  const filter = (source: string): boolean => basename(source) !== 'node_modules'
  for (const name of copied) cpSync(join(root, name), join(path, name), { recursive: true, filter })
  // What npm, and npm run servers, have installed.
  const packages = 'test/servers/packages'
  const ofPackages = readdirSync(join(root, packages)).map((name) => join(packages, name, 'node_modules'))
  for (const name of ['node_modules', '.servers', ...ofPackages])
    if (existsSync(join(root, name))) symlinkSync(join(root, name), join(path, name))
  return {
    path,
    seed(bug) {
      const file = join(path, bug.file)
      const sound = readFileSync(file, 'utf8')
      writeFileSync(file, seeded(sound, bug))
      return () => writeFileSync(file, sound)
    },
  }
}

export function seeded(sound: string, { id, file, find, replace }: SeededBug): string {
  const times = sound.split(find).length - 1
  if (times !== 1) throw new Error(`"${id}": expected its find to be in ${file} once, got ${times} times: ${find}`)
  return sound.replace(find, () => replace)
}
