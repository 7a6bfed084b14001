// The matrix of store × guarantee at the end of a run: how many cases of the store contract passed, of those that ran. It is
// read from the names of the tests alone, so that it does not matter in which process they ran.

import { basename, dirname } from 'node:path'
import { guarantees } from '../src/testing/store-contract.ts'
import type { Guarantee } from '../src/testing/store-contract.ts'
import { storeContractCases } from '../src/testing/store-contract.ts'

export interface TestOutcome {
  /** The path of the test file. */
  readonly file: string
  readonly name: string
  readonly state: 'passed' | 'failed' | 'skipped' | 'pending'
}

interface Cell {
  passed: number
  ran: number
  cannot?: string
}

type Column = Map<Guarantee, Cell>

const guaranteeOf = new Map(storeContractCases.map((each) => [each.name, each.guarantee]))
const labelWidth = Math.max(...Object.keys(guarantees).map((name) => name.length)) + 1

/** No lines when no contract ran. */
export function contractMatrix(outcomes: readonly TestOutcome[]): readonly string[] {
  const stores = [...columnsOf(outcomes)].filter(([, column]) => [...column.values()].some(({ ran }) => ran > 0))
  if (stores.length === 0) return []
  const cut = outcomes.filter(({ file, name }) => isOfStore(file) && name.includes('…')).length
  const rows = Object.keys(guarantees) as Guarantee[]
  const reasons = rows.flatMap((each) => stores.map(([, column]) => column.get(each)?.cannot))
  const told = [...new Set(reasons.filter((reason) => reason !== undefined))]
  const marks = new Map(told.map((reason, at) => [reason, markOf(at)]))
  const row = (label: string, cells: readonly string[]): string =>
    `  ${label.padEnd(labelWidth)}${cells.map((cell) => cell.padStart(7)).join('')}`.trimEnd()
  return [
    'Store contract: cases that passed, of those that ran; a letter where the store cannot, with the reason below',
    '',
    ...stores.map(([name], at) => `  ${`${at + 1}`.padStart(2)}  ${name}`),
    '',
    row(
      '',
      [...stores.keys()].map((at) => `${at + 1}`),
    ),
    ...rows.map((each) =>
      row(
        each,
        stores.map(([, column]) => textOf(column.get(each), marks)),
      ),
    ),
    ...[...marks].map(([reason, mark], at) => `${at === 0 ? '\n' : ''}  ${mark}  ${reason}`),
    ...(cut > 0 ? [`  ${cut} tests are not counted, because the runner has cut their names`] : []),
  ]
}

function columnsOf(outcomes: readonly TestOutcome[]): ReadonlyMap<string, Column> {
  const columns = new Map<string, Column>()
  for (const { file, name, state } of outcomes) {
    const read = isOfStore(file) ? readName(name) : undefined
    if (!read) continue
    const store = storeOf(file, read.contract)
    const column = columns.get(store) ?? new Map<Guarantee, Cell>()
    columns.set(store, column)
    const cell: Cell = column.get(read.guarantee) ?? { passed: 0, ran: 0 }
    column.set(read.guarantee, cell)
    if (read.cannot !== undefined) cell.cannot = read.cannot
    else if (state === 'passed' || state === 'failed') cell.ran++
    if (state === 'passed') cell.passed++
  }
  return columns
}

const isOfStore = (file: string): boolean => /\/src\/stores\/[^/]+\/[^/]+$/.test(file)

/** Undefined for a test that is no case of the contract. */
function readName(name: string): { contract: string; guarantee: Guarantee; cannot?: string } | undefined {
  const [, full = name, cannot] = /^(.*?)(?: \(cannot: (.*)\))?$/s.exec(name) ?? []
  // A case may have a colon, too; the name of its contract stands before the first that leaves one.
  for (let from = 0; from >= 0;) {
    const guarantee = guaranteeOf.get(full.slice(from))
    if (guarantee) return { contract: full.slice(0, Math.max(0, from - 2)), guarantee, ...(cannot && { cannot }) }
    const next = full.indexOf(': ', from)
    from = next < 0 ? -1 : next + 2
  }
  return undefined
}

/** The folder says which store, the name of the contract which variant of it. */
function storeOf(file: string, contract: string): string {
  const store = basename(dirname(file))
  if (contract === '' || contract === store) return store
  return contract.startsWith(store) ? contract : `${store}: ${contract}`
}

function textOf(cell: Cell | undefined, marks: ReadonlyMap<string, string>): string {
  const mark = cell?.cannot === undefined ? '' : marks.get(cell.cannot)!
  return cell && cell.ran > 0 ? `${mark} ${cell.passed}/${cell.ran}` : mark || '.'
}

// a to z, then aa: nobody reads more reasons than that anyway.
function markOf(at: number): string {
  const letter = String.fromCodePoint('a'.codePointAt(0)! + (at % 26))
  return letter.repeat(1 + Math.floor(at / 26))
}
