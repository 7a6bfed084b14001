// A history as a story: what happened, line by line, in the order of time, for a person who has to understand a violation.

import { describeKey } from '../../core/key.ts'
import type { CallAnswer, CallRecord, ExecutionRecord, History, StoreOperation } from './history.ts'

export interface Line {
  readonly atMs: number
  readonly text: string
}

/**
 * Returns a history as text, one line per event in the order of time. `more` are lines that the history does not have.
 *
 * @example
 * import { emptyHistory, tellStory } from 'onceonly/testing'
 *
 * console.log(tellStory(emptyHistory(), [{ atMs: 12, text: 'the server was restarted' }]))
 */
export function tellStory(history: History, more: readonly Line[] = []): string {
  // Within one moment: what the world does, what clients ask, what is sent and received, what runs, and the answers of clients.
  const lines = [
    ...history.incidents.map(({ atMs, text }) => ({ atMs, text: `*** ${text}` })),
    ...history.calls.map((call) => ({
      atMs: call.startedAtMs,
      text: `${call.process} is asked for ${nameOf(call)}, ${call.how}`,
    })),
    ...history.operations.flatMap(tellOperation),
    ...history.executions.flatMap(tellExecution),
    ...history.effects.map(({ execution, atMs }) => ({
      atMs,
      text: `the effect of execution ${execution} takes place`,
    })),
    ...history.calls.flatMap((call): Line[] => {
      if (!call.answer) return []
      return [
        { atMs: call.endedAtMs!, text: `${call.process} answers for ${nameOf(call)}: ${tellAnswer(call.answer)}` },
      ]
    }),
    ...more,
  ]
  const ordered = lines.map((line, index) => ({ ...line, index })).sort((a, b) => a.atMs - b.atMs || a.index - b.index)
  return ordered.map(({ atMs, text }) => `${atMs.toFixed(1).padStart(9)} ms  ${text}`).join('\n')
}

function nameOf(call: CallRecord): string {
  return `${describeKey(call.key)} (${call.asked})`
}

function tellExecution({ call, token, attempt, startedAtMs, abortedAtMs }: ExecutionRecord, index: number): Line[] {
  const name = `execution ${index}`
  const began = `${name} begins at ${call.process}: ${describeKey(call.key)}, attempt ${attempt}, ${short(token)}`
  const aborted = abortedAtMs === undefined ? [] : [{ atMs: abortedAtMs, text: `${name} is told to stop` }]
  return [{ atMs: startedAtMs, text: began }, ...aborted]
}

function tellAnswer(answer: CallAnswer): string {
  switch (answer.is) {
    case 'value':
      return `the value of execution ${answer.execution}${answer.replayed ? ', replayed' : ''}`
    case 'failure':
      return `the failure of execution ${answer.execution}`
    case 'refused':
      return `${answer.code}, executed: ${answer.executed}`
    case 'threw':
    case 'stray':
      return `the error "${answer.message}"`
  }
}

function tellOperation(operation: StoreOperation): Line[] {
  const token = 'request' in operation ? operation.request.token : 'token' in operation ? operation.token : undefined
  const key = operation.key === '' ? '' : ` ${operation.key.replace('\n', '/')}`
  const call = operation.call === 'look' ? operation.what : operation.call
  const name = `${call}${key}${token ? `, ${short(token)}` : ''}`
  const lines: Line[] = [
    {
      atMs: operation.sentAtMs,
      text: `  ${operation.process} ${operation.repeated ? 'has sent twice' : 'sends'}: ${name}${operation.failed ? ` (${operation.failed})` : ''}`,
    },
  ]
  if (operation.decidedAtMs !== undefined) {
    lines.push({
      atMs: operation.decidedAtMs,
      text: `    the store decides: ${name}: ${tellDecision(operation.answer)}`,
    })
  }
  if (operation.answeredAtMs !== undefined) {
    lines.push({ atMs: operation.answeredAtMs, text: `  ${operation.process} hears of: ${name}` })
  }
  return lines
}

function tellDecision(answer: StoreOperation['answer']): string {
  if (typeof answer !== 'object') return answer ?? 'an error'
  if (!('is' in answer)) return 'done'
  if (answer.is === 'granted') return `granted, ${answer.how}, attempt ${answer.claim.attempt}`
  return answer.is
}

function short(token: string): string {
  return `token ${token.slice(0, 6)}`
}
