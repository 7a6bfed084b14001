// The story of operations: that of the store, with what was recorded, which steps were called, and what took effect.

import { newRecords } from '../checker.ts'
import type { OperationHistory } from '../checker.ts'
import { tellStory } from '../../../../../src/testing/history-checker.ts'
import type { Line } from '../../../../../src/testing/history-checker.ts'

export function tellOperations({ store, records, invocations, ledger, answers, operations }: OperationHistory): string {
  const asked = answers.flatMap(({ operation, how, process, startedAtMs, endedAtMs, is, text }): Line[] => [
    { atMs: startedAtMs, text: `${process} is asked to ${how} ${shown(operation)}` },
    ...(endedAtMs === undefined
      ? []
      : [{ atMs: endedAtMs, text: `${process} answers for ${shown(operation)}: ${is} ${text}` }]),
  ])
  const recorded = records.flatMap((change) =>
    newRecords(change).map(([name, head]) => {
      const what = name === '' ? `the course is ${head.direction}` : `"${name}" is ${head.state}`
      return { atMs: change.atMs, text: `    recorded of ${shown(change.key)}: ${what}` }
    }),
  )
  const called = invocations.map(({ operation, step, does, process, token, atMs, isHolder, ended }) => ({
    atMs,
    text: `${process} calls ${does} of "${step}" of ${shown(operation)}, token ${token.slice(0, 6)}${isHolder ? '' : ' (a zombie)'}: ${ended ?? 'asked'}`,
  }))
  const effects = ledger.map(({ system, subject, does, atMs, isOvertaken }) => ({
    atMs,
    text: `  ${system}: ${does} of ${shown(subject)} takes effect${isOvertaken ? ' (overtaken)' : ''}`,
  }))
  const ends = operations.map(({ key, life, end }) => ({
    atMs: Number.MAX_SAFE_INTEGER,
    text: `life ${life} of ${shown(key)} came to ${end ? `${end.state}: ${end.text}` : 'nothing'}`,
  }))
  // Workers ask all the time, and mostly there is nothing.
  const told = store.operations.filter((operation) => operation.call !== 'look' || operation.what !== 'due')
  return tellStory({ ...store, operations: told }, [...asked, ...recorded, ...called, ...effects, ...ends])
}

function shown(key: string): string {
  return key.replaceAll('\n', '/')
}
