import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { guarantees } from '../src/testing/store-contract.ts'
import { storeContractCases } from '../src/testing/store-contract.ts'
import { contractMatrix } from './contract-matrix.ts'
import { contractPart } from './subjects/contract-part.ts'
import type { TestOutcome } from './contract-matrix.ts'

const inFile = (store: string, name: string, state: TestOutcome['state'] = 'passed'): TestOutcome => ({
  file: `/somewhere/src/stores/${store}/contract.test.ts`,
  name,
  state,
})

function lineOf(lines: readonly string[], label: string): string {
  return lines
    .find((line) => line.trim().startsWith(`${label} `))!
    .trim()
    .replaceAll(/ +/g, ' ')
}

test('every case of the contract counts for its guarantee, in the column of its store', () => {
  const lines = contractMatrix([
    ...storeContractCases.map(({ name }) => inFile('memory', `memory: ${name}`)),
    ...storeContractCases.map(({ name }, at) => inFile('redis', `ioredis: ${name}`, at === 0 ? 'failed' : 'passed')),
  ])
  expect(lines.map((line) => line.trim())).toEqual(expect.arrayContaining(['1  memory', '2  redis: ioredis']))
  for (const name of Object.keys(guarantees)) {
    const total = storeContractCases.filter((each) => each.guarantee === name).length
    const passed = storeContractCases[0]!.guarantee === name ? total - 1 : total
    expect(lineOf(lines, name)).toBe(`${name} ${total}/${total} ${passed}/${total}`)
  }
})

test('what a store cannot is a letter, and each reason is told once', () => {
  const swept = storeContractCases.filter(({ guarantee }) => guarantee === 'sweep')
  const others = storeContractCases.filter(({ guarantee }) => guarantee !== 'sweep')
  const lines = contractMatrix(
    ['a store', 'another'].flatMap((contract) => [
      ...swept.map(({ name }) => inFile('some', `${contract}: ${name} (cannot: it is (nearly) too old)`, 'skipped')),
      ...others.map(({ name }) => inFile('some', `${contract}: ${name}`)),
    ]),
  )
  expect(lineOf(lines, 'sweep')).toBe('sweep a a')
  expect(lines.filter((line) => line.trim() === 'a  it is (nearly) too old')).toHaveLength(1)
})

test('a run without a contract prints nothing, and neither does one whose servers are missing', () => {
  const { name } = storeContractCases[0]!
  expect(contractMatrix([])).toEqual([])
  expect(contractMatrix([inFile('redis', 'a pool of node-redis is one store')])).toEqual([])
  expect(contractMatrix([inFile('redis', `ioredis: ${name}`, 'skipped')])).toEqual([])
  // The store that the contract is tried on is no store.
  expect(contractMatrix([{ file: '/somewhere/src/testing/broken-stores.test.ts', name, state: 'passed' }])).toEqual([])
})

test('a guarantee of which no case ran is a dot beside those that did', () => {
  const [first] = storeContractCases
  const lines = contractMatrix([inFile('memory', `memory: ${first!.name}`)])
  expect(lineOf(lines, first!.guarantee)).toBe(`${first!.guarantee} 1/1`)
  expect(lineOf(lines, 'commit-faults')).toBe('commit-faults .')
})

test('a part of the contract on another form of a store counts in the column of that form, whatever the length of the names', () => {
  const names: string[] = []
  const record = Object.assign((name: string) => void names.push(name), { skip: () => {} })
  contractPart({
    name: 'serializable',
    cases: storeContractCases,
    create: () => Promise.reject(new Error('no case runs here')),
    test: record,
  })
  expect(Math.max(...names.map((name) => name.length))).toBeGreaterThan(40)
  const lines = contractMatrix(names.map((name) => inFile('postgres', name)))
  expect(lines.map((line) => line.trim())).toContain('1  postgres: serializable')
  for (const name of Object.keys(guarantees)) {
    const total = storeContractCases.filter((each) => each.guarantee === name).length
    expect(lineOf(lines, name)).toBe(`${name} ${total}/${total}`)
  }
})

// Vitest cuts what it puts for $name after 40 characters: long names were not counted, short ones in the column of another form.
test('no test of a store registers cases of the contract by test.each', () => {
  const root = join(import.meta.dirname, '..')
  const cutting = globSync('src/stores/**/*.test.ts', { cwd: root }).filter((path) => {
    const text = readFileSync(join(root, path), 'utf8')
    return text.includes('storeContractCases') && /\.each\((cases|storeContractCases)/.test(text)
  })
  expect(cutting).toEqual([])
})

test('a name that the runner has cut is reported, and not left out in silence', () => {
  const { name } = storeContractCases[0]!
  const lines = contractMatrix([
    inFile('memory', `memory: ${name}`),
    inFile('postgres', `postgres: ${name.slice(0, 30)}…`),
  ])
  expect(lines.at(-1)).toBe('  1 tests are not counted, because the runner has cut their names')
})
