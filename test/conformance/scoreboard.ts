// Who passed what: a table of adapter and store × group of cases, and below it what cannot hold, with its reason.
import type { Case } from './cases.ts'

export interface Scoreboard {
  passed(row: string, each: Case): void
  failed(row: string, each: Case): void
  cannot(row: string, each: Case, reason: string): void
  table(): string
}

export function scoreboard(): Scoreboard {
  const results = new Map<string, Map<Case, 'passed' | 'failed'>>()
  const reasons = new Map<string, string[]>()
  const mark = (row: string, each: Case, result: 'passed' | 'failed'): void => {
    if (!results.has(row)) results.set(row, new Map())
    results.get(row)!.set(each, result)
  }
  return {
    passed: (row, each) => mark(row, each, 'passed'),
    failed: (row, each) => mark(row, each, 'failed'),
    cannot: (row, each, reason) =>
      void reasons.set(`${each.id}: ${reason}`, [...(reasons.get(`${each.id}: ${reason}`) ?? []), row]),
    table: () =>
      render(results) +
      [...reasons].map(([reason, rows]) => `  cannot, on ${rows.length} of the rows: ${reason}\n`).join(''),
  }
}

function render(results: ReadonlyMap<string, ReadonlyMap<Case, 'passed' | 'failed'>>): string {
  const groups = [...new Set([...results.values()].flatMap((row) => [...row.keys()].map((each) => each.group)))]
  const rows = [...results].map(([name, row]) => [name, ...groups.map((group) => score(row, group)), score(row)])
  const table = [['', ...groups.map(shorten), 'all'], ...rows]
  const widths = table[0]!.map((_, column) => Math.max(...table.map((row) => row[column]!.length)))
  const lines = table.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ')
      .trimEnd(),
  )
  return `\n${lines.join('\n')}\n`
}

function score(row: ReadonlyMap<Case, 'passed' | 'failed'>, group?: string): string {
  const asked = [...row].filter(([each]) => group === undefined || each.group === group)
  return asked.length === 0 ? '–' : `${asked.filter(([, result]) => result === 'passed').length}/${asked.length}`
}

/** Seventeen groups must fit beside each other. */
function shorten(group: string): string {
  return group.split(/[ /]/, 1)[0]!.slice(0, 9)
}
