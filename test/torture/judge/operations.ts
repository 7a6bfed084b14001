// What operations of several steps must show after all crashes. Each step in a transaction committed once. Each outside step was
// asked for under one key. A step that was recorded never ran again. A failed operation was undone, each undo once.
import { transactionalSteps } from '../asking.ts'
import type { Written } from '../journal.ts'
import type { Found } from '../judge.ts'

interface Story {
  /** Rows of each step in the store's database. */
  readonly rows: Map<string, number>
  readonly keys: Map<string, Set<string>>
  readonly recordedAtMs: Map<string, number>
  readonly undone: Set<string>
  ended: 'value' | 'failure' | undefined
  /** What the last call was told, if that did not end it. */
  lastAnswer: string
}

export function checkOperations(
  lines: readonly Written[],
  effects: readonly Record<string, unknown>[],
  report: (found: Found) => void,
): void {
  const stories = new Map<string, Story>()
  const storyOf = (id: string): Story => {
    const story = stories.get(id) ?? newStory()
    stories.set(id, story)
    return story
  }
  for (const { step, id } of effects) {
    if (String(step) === '') continue
    const { rows } = storyOf(String(id))
    rows.set(String(step), (rows.get(String(step)) ?? 0) + 1)
  }
  const calls = new Map<string, string>()
  for (const line of lines) {
    if (line.is === 'step') tell(storyOf(line.id), line, report)
    if (line.is === 'call') calls.set(line.call, line.key.id)
    if (line.is !== 'answer') continue
    const story = stories.get(calls.get(line.call) ?? '')
    if (!story) continue
    if (line.answer.is === 'value' || line.answer.is === 'failure') story.ended = line.answer.is
    else story.lastAnswer = JSON.stringify(line.answer)
  }
  for (const [id, story] of stories) checkStory(id, story, report)
}

const newStory = (): Story => ({
  rows: new Map(),
  keys: new Map(),
  recordedAtMs: new Map(),
  undone: new Set(),
  ended: undefined,
  lastAnswer: 'none',
})

function tell(story: Story, line: Written & { is: 'step' }, report: (found: Found) => void): void {
  const { id, step, what, key, atMs } = line
  if (what === 'recorded') story.recordedAtMs.set(step, story.recordedAtMs.get(step) ?? atMs)
  if (what === 'undone') story.undone.add(step)
  if (what !== 'ran') return
  const recordedAtMs = story.recordedAtMs.get(step)
  if (recordedAtMs !== undefined) {
    report({ assertion: 'step-never-again', key: id, message: `${step} ran again after it was recorded as done` })
  }
  story.keys.set(step, (story.keys.get(step) ?? new Set()).add(key))
}

function checkStory(
  id: string,
  { rows, keys, undone, ended, lastAnswer }: Story,
  report: (found: Found) => void,
): void {
  const fail = (assertion: string, message: string): void => report({ assertion, key: id, message })
  for (const [step, count] of rows) if (count > 1) fail('step-once', `${step} was committed ${count} times`)
  for (const [step, set] of keys)
    if (set.size > 1) fail('same-derived-key', `${step} was asked for under ${set.size} keys`)
  if (ended === undefined) return fail('no-wedge', `an operation never came to an end. The last answer: ${lastAnswer}`)
  if (ended === 'value') {
    for (const step of transactionalSteps)
      if (!rows.has(step)) fail('step-once', `${step} is missing, and it completed`)
    return
  }
  if (rows.has('reserve') && !rows.has('undo reserve')) fail('compensated', 'reserve was never undone')
  if (keys.has('charge') && !undone.has('charge')) fail('compensated', 'charge was never undone')
  if (rows.has('ship')) fail('compensated', 'ship was committed by an operation that failed')
}
