// The cells of a run: every point, every way to crash there, and what became of it.

import assert from 'node:assert/strict'
import type { CrashKind } from './points.ts'

export interface CrashCell {
  /** Which call of the process, from 1 on, and its name. */
  readonly point: number
  readonly name: string
  readonly kind: CrashKind
  /** How often the client asked until it had an answer. */
  readonly tries: number
  /** What was wrong. Undefined when all held. */
  readonly broken?: string
}

export interface CrashReport {
  readonly cells: readonly CrashCell[]
  /** All of it, for people. */
  readonly text: string
}

/** Throws when a cell is broken: a test that forgets to look would pass. */
export function reportCells(what: string, cells: readonly CrashCell[]): CrashReport {
  const broken = cells.filter((cell) => cell.broken !== undefined)
  const points = Array.from(Map.groupBy(cells, ({ point }) => point).values(), describePoint)
  const text = [`${cells.length} cells, ${cells.length - broken.length} held`, ...points].join('\n')
  assert.ok(broken.length === 0, `${what}: ${text}`)
  return { cells, text }
}

function describePoint(cells: readonly CrashCell[]): string {
  const { point, name } = cells[0]!
  const marks = cells.map(({ kind, broken }) => `${kind}: ${broken === undefined ? 'held' : 'BROKEN'}`)
  const why = cells.flatMap(({ kind, broken }) => (broken === undefined ? [] : [`       ${kind}: ${broken}`]))
  return [`${String(point).padStart(4)}  ${name}  ${marks.join(', ')}`, ...why].join('\n')
}
