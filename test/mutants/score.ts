// What became of the mutants of each file: test/mutants/score.json, which is committed. A file that was audited again replaces
// its row.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { equivalents } from './equivalents.ts'
import type { Equivalent } from './equivalents.ts'
import type { Sample } from './sample.ts'

const page = join(import.meta.dirname, 'score.json')

/** The part of the report of StrykerJS that counts (mutation-testing-report-schema). */
export interface Report {
  readonly files: Readonly<Record<string, { readonly source: string; readonly mutants: readonly Mutant[] }>>
}

interface Position {
  readonly line: number
  readonly column: number
}

interface Mutant {
  readonly mutatorName: string
  readonly replacement: string
  /** What the test that noticed it said. */
  readonly statusReason?: string
  readonly status: 'Killed' | 'Timeout' | 'Survived' | 'NoCoverage' | 'Ignored' | 'CompileError' | 'RuntimeError'
  readonly location: { readonly start: Position; readonly end: Position }
}

export interface Survivor {
  readonly line: string
  readonly from: string
  readonly to: string
}

/** What became of the mutants of one file, as it is written down. */
interface AuditedFile {
  /** Which of the mutants were tried. Without one, all. */
  readonly sample?: Sample
  /** Those that could be tried. */
  readonly mutants: number
  /** Includes those that were stopped because they ran too long. */
  readonly killed: number
  /** How many those were. Audits before November 2026 did not say. */
  readonly timedOut?: number
  /** Those that no test noticed, equivalents among them. */
  readonly alive: readonly Survivor[]
  /** Texts of messages, and what is made once when the file is loaded. */
  readonly ignored: number
}

/** The same with the equivalents of today's list told apart. */
export interface FileScore {
  readonly sample: Sample | undefined
  readonly mutants: number
  readonly killed: number
  readonly timedOut: number | undefined
  readonly equivalent: number
  readonly survived: readonly Survivor[]
}

export type Score = Readonly<Record<string, FileScore>>

export function readAudits(): Readonly<Record<string, AuditedFile>> {
  return JSON.parse(readFileSync(page, 'utf8')) as Record<string, AuditedFile>
}

export function readScore(): Score {
  return Object.fromEntries(
    Object.entries(readAudits()).map(([file, { sample, mutants, killed, timedOut, alive }]) => {
      const survived = alive.filter((each) => !equivalents.some((known) => isKnown(known, file, each)))
      return [file, { sample, mutants, killed, timedOut, survived, equivalent: alive.length - survived.length }]
    }),
  )
}

export function writeScore(report: Report, sample: Sample | undefined): Score {
  const audits: Record<string, AuditedFile> = { ...readAudits() }
  for (const [file, { source, mutants }] of Object.entries(report.files)) {
    const count = (...statuses: Mutant['status'][]): number =>
      mutants.filter(({ status }) => statuses.includes(status)).length
    audits[file] = {
      ...(sample && { sample }),
      mutants: mutants.length - count('Ignored'),
      killed: count('Killed', 'Timeout', 'RuntimeError'),
      timedOut: mutants.filter(ranTooLong).length,
      alive: mutants
        .filter(({ status }) => status === 'Survived' || status === 'NoCoverage')
        .map((mutant) => survivorOf(source, mutant)),
      ignored: count('Ignored'),
    }
  }
  const sorted = Object.fromEntries(Object.entries(audits).sort(([a], [b]) => (a < b ? -1 : 1)))
  writeFileSync(page, `${JSON.stringify(sorted, null, 2)}\n`)
  return readScore()
}

/** A mutant, or a test of it that waited for what never came. */
function ranTooLong({ status, statusReason = '' }: Mutant): boolean {
  return status === 'Timeout' || (status === 'Killed' && /\b(?:Test|Hook) timed out in \d+ ?ms/.test(statusReason))
}

function survivorOf(source: string, { location: { start, end }, replacement }: Mutant): Survivor {
  const line = source.split('\n')[start.line - 1]!
  const from =
    start.line === end.line ? line.slice(start.column - 1, end.column - 1) : `${line.slice(start.column - 1)} …`
  return { line: line.trim(), from, to: replacement.replaceAll(/\s+/g, ' ').slice(0, 200) }
}

export function isKnown(known: Equivalent, file: string, { line, from, to }: Survivor): boolean {
  return known.file === file && line.includes(known.line) && from.startsWith(known.from) && to === known.to
}

/** Killed, of those that are not equivalent, in per cent. */
export function percent(scores: readonly FileScore[]): number {
  const killed = scores.reduce((sum, each) => sum + each.killed, 0)
  const alive = scores.reduce((sum, each) => sum + each.survived.length, 0)
  return killed + alive === 0 ? 100 : Math.floor((1_000 * killed) / (killed + alive)) / 10
}
