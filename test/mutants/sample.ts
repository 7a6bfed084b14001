// A plug-in of the mutation tester: of each file it lets a share of the mutants through, and refuses the rest before they run. A
// mutant is in the sample by a hash of the seed and of what it changes, so that a seed names the same mutants again.

import { createHash } from 'node:crypto'
import { join, relative } from 'node:path'

export interface Sample {
  /** Above 0 and up to 1. */
  readonly share: number
  readonly seed: number
}

interface Position {
  readonly line: number
  readonly column: number
}

interface Mutant {
  readonly id: string
  readonly fileName: string
  readonly replacement: string
  readonly location: { readonly start: Position; readonly end: Position }
}

/** Checkers run in a process of their own. This brings them the sample. */
export const sampleVariable = 'ONCEONLY_MUTANT_SAMPLE'

const root = join(import.meta.dirname, '../..')

export function isInSample({ share, seed }: Sample, { fileName, location, replacement }: Omit<Mutant, 'id'>): boolean {
  const { start, end } = location
  const named = [seed, relative(root, fileName), start.line, start.column, end.line, end.column, replacement]
  const drawn = createHash('sha256').update(JSON.stringify(named)).digest().readUInt32BE()
  return drawn < share * 2 ** 32
}

function checkerOf(sample: Sample): object {
  return {
    init: () => Promise.resolve(),
    group: (mutants: readonly Mutant[]) => Promise.resolve([mutants.map(({ id }) => id)]),
    check: (mutants: readonly Mutant[]) =>
      Promise.resolve(
        Object.fromEntries(
          mutants.map((mutant) => [
            mutant.id,
            isInSample(sample, mutant) ? { status: 'passed' } : { status: 'compileError', reason: 'not in the sample' },
          ]),
        ),
      ),
  }
}

export const strykerPlugins = [
  {
    kind: 'Checker',
    name: 'sample',
    factory: () => checkerOf(JSON.parse(process.env[sampleVariable] ?? '{ "share": 1, "seed": 0 }') as Sample),
  },
]
