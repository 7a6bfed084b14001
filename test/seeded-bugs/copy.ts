// A copy of the project in a temporary folder, in which the bugs are put: the source that people work on is never touched. It
// has links to the installed packages, so it costs no more than its own text.

import { cpSync, existsSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
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
  for (const name of copied) cpSync(join(root, name), join(path, name), { recursive: true })
  // What npm, and npm run servers, have installed.
  for (const name of ['node_modules', '.servers'])
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
