// docs/events.md and the events that the source publishes: the same channels, fields and publishers, both ways.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { eventNames } from '../src/core/events.ts'
import { codeIn, read, sources } from './tidy/project.ts'

const page = readFileSync(join(import.meta.dirname, '..', 'docs', 'events.md'), 'utf8')

interface Row {
  readonly fields: readonly string[]
  readonly by: readonly string[]
}

const documented = new Map<string, Row>(
  Array.from(page.matchAll(/^\| `onceonly:([a-z-]+)` \|([^|]*)\| ([^|]+) \| [^|]+ \|$/gm), ([, name, fields, by]) => [
    name!,
    { fields: [...fields!.matchAll(/`(\w+)`/g)].map(([, field]) => field!), by: by!.split(', ').toSorted() },
  ]),
)

/** The members of each event, from the interface that its publishers are checked against. */
function declared(): Map<string, readonly string[]> {
  const [, body] = /^export interface Events \{\n([^]*?)^\}$/m.exec(read('src/core/events.ts'))!
  const events = body!.matchAll(/^ {2}'?([a-z-]+)'?: (?:Record<never, never>|\{([^}]*)\})$/gm)
  return new Map<string, readonly string[]>(
    Array.from(events, ([, name, members = '']) => [
      name!,
      [...members.matchAll(/(\w+)\??:/g)].map(([, member]) => member!),
    ]),
  )
}

const roomWords: readonly (readonly [prefix: string, words: readonly string[]])[] = [
  ['src/core/once/on-record', ['inbox', 'outbox', 'webhooks', 'sessions']],
  ['src/core/once', ['once']],
  ['src/core/operations', ['operations']],
  // What both of them call.
  ['src/core/call', ['once', 'operations']],
  ['src/core/timed-call', ['once', 'operations', 'sessions']],
  ['src/http/', ['HTTP']],
  ['src/gateway/', ['gateway']],
  ['src/stores/redis/', ['Redis store']],
  ['src/messages/inbox', ['inbox']],
  ['src/messages/relay', ['relay']],
  ['src/webhooks/', ['webhooks']],
  ['src/messages/', ['messages']],
]

function publishers(): Map<string, Set<string>> {
  const found = new Map<string, Set<string>>()
  for (const path of sources) {
    const code = codeIn(path)
    // Other functions have the same name.
    const events = code.includes("/events.ts'") ? code.matchAll(/\bpublish\('([a-z-]+)'/g) : []
    for (const [, name] of [...events, ...code.matchAll(/(?:channel\(|Channel = )'onceonly:([a-z-]+)'/g)]) {
      const words = roomWords.find(([prefix]) => path.startsWith(prefix))?.[1] ?? [path]
      const known = found.get(name!) ?? new Set<string>()
      words.forEach((word) => known.add(word))
      found.set(name!, known)
    }
  }
  return found
}

test('every channel that the source publishes on is on the page, and no other is', () => {
  expect([...declared().keys()].toSorted()).toEqual([...eventNames].toSorted())
  // Of one adapter, and not an event of a key.
  expect([...documented.keys()].toSorted()).toEqual([...eventNames, 'handler-failed'].toSorted())
  expect([...documented.keys()].toSorted()).toEqual([...publishers().keys()].toSorted())
})

test('every field of a message is on the page, in its order, and no other is', () => {
  const fields = new Map(Array.from(documented, ([name, row]) => [name, row.fields]))
  expect(fields).toEqual(new Map([...declared(), ['handler-failed', ['error']]]))
})

test('the page names those that publish each of them', () => {
  const by = Array.from(publishers(), ([name, words]) => [name, [...words].toSorted()] as const)
  expect(new Map(Array.from(documented, ([name, row]) => [name, row.by]))).toEqual(new Map(by))
})
