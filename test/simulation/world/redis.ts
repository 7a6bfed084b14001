// The shipped Redis store on a simulated network in front of a simulated Redis: every command is a message that can be lost,
// late or doubled. What the commands ask for, and every change of an entry, goes into the history as a trigger would see it.

import { keyString } from '../../../src/core/key.ts'
import type { Key } from '../../../src/core/key.ts'
import type { ClaimRequest, Retention, Verdict } from '../../../src/core/store.ts'
import { readVerdict } from '../../../src/stores/redis/entries.ts'
import { namesUnder } from '../../../src/stores/redis/names.ts'
import { claimScript, inspectScript, writeScript } from '../../../src/stores/redis/decisions.lua.ts'
import {
  claimWords,
  durationPlaces,
  entryLength,
  entryPlaces,
  inspectWords,
  keyAt,
  lengthOf,
  mendingPlaces,
  numberAt,
  recordTail,
  textAt,
  valueAt,
  writeWords,
} from '../../../src/stores/redis/places.ts'
import { redisStore } from '../../../src/stores/redis.ts'
import type { RedisStore } from '../../../src/stores/redis.ts'
import { recordAnswer } from '../../../src/testing/history-checker.ts'
import type { History, HistoryRow, RowChange } from '../../../src/testing/history-checker.ts'
import type { Network, SentOperation } from './network.ts'
import { createRedisServer } from './redis/server.ts'
import type { RedisServer } from './redis/server.ts'
import type { Life, World } from './world.ts'

export interface SimulatedRedis {
  readonly server: RedisServer
  /** Keys that were given to an instance which had heard of writes that were lost since. */
  readonly givenBlindly: string[]
  /** What was written since `remember` is lost, or everything. */
  lose(how: 'emptied' | 'went-back'): void
  remember(): void
  /** A person has looked at it, and lets claims in again. */
  endQuarantine(): void
  /** The store as this life of a process has it. */
  connect(life: Life, timeoutMs: number): RedisStore
}

const names = namesUnder('onceonly')

type Command = readonly (string | Buffer)[]

export function createRedis(world: World, network: Network, history: History): SimulatedRedis {
  const givenBlindly: string[] = []
  const { server, decide } = auditedServer(world, history)
  let rememberedAtMs = 0
  let restartedAtMs = -Infinity
  /** What was decided between these two is lost, and no person has looked at it yet. */
  let lost: { readonly fromMs: number; readonly untilMs: number } | undefined
  const isLost = (atMs: number): boolean => lost !== undefined && atMs >= lost.fromMs && atMs < lost.untilMs

  function senderOf(life: Life): (command: Command) => Promise<unknown> {
    let heardOf = -1
    return async (command) => {
      // What the server says of itself is not what this is about.
      if (command[0] === 'INFO') return server.run(command, () => {})
      const asked = askedBy(command)
      // What the store knows when it writes a command.
      const knows = heardOf
      let wroteAtMs = -1
      const sentAtMs = world.now()
      let isAnswered = false
      const answer = await network.send(life, asked, async (operation) => {
        // A restart ends every connection, and nothing that an old one carried reaches the server any more. A client may send once
        // more what it had no reply to (ioredis does), and what it had a reply to it never sends again.
        const isOld = history.operations[operation]?.repeated && sentAtMs < restartedAtMs
        if (isOld && isAnswered) throw new Error('ECONNRESET')
        const { told, changes } = decide(command, asked, operation)
        if (isLost(knows)) givenBlindly.push(...changes.filter(isGrant).map(({ key }) => key))
        // The sender hears nothing of what the network delivers once more.
        if (changes.length > 0 && !history.operations[operation]?.repeated) wroteAtMs = world.now()
        return told
      })
      isAnswered = true
      heardOf = Math.max(heardOf, wroteAtMs)
      return answer
    }
  }

  return {
    server,
    givenBlindly,
    lose(how) {
      restartedAtMs = world.now()
      lost = { fromMs: how === 'emptied' ? 0 : rememberedAtMs, untilMs: restartedAtMs }
      server.lose(how)
    },
    remember() {
      rememberedAtMs = world.now()
      server.remember()
    },
    endQuarantine() {
      lost = undefined
      server.endQuarantine()
    },
    connect(life, timeoutMs) {
      const client = { withTypeMapping: () => client, sendCommand: senderOf(life) }
      return redisStore({ client, clock: life.clock, timeoutMs, eviction: 'accept', durability: 'relaxed' })
    },
  }
}

function isGrant({ before, after }: RowChange): boolean {
  return after?.wrote === 'claim' && before?.token !== after.token
}

interface AuditedServer {
  readonly server: RedisServer
  /** Carries out a command, and writes down the answer of each of its calls and what the call changed. */
  decide(
    command: Command,
    asked: readonly SentOperation[],
    operation: number,
  ): { readonly told: unknown; readonly changes: readonly RowChange[] }
}

function auditedServer(world: World, history: History): AuditedServer {
  let first = 0
  const server = createRedisServer({
    nowUs: () => world.now() * 1_000,
    onChange(name, before, after, call) {
      const rows = { before: rowOf(before), after: rowOf(after) }
      const key = keyString(names.keyOf(name)!)
      history.changes.push({ key, atMs: Math.floor(world.now()), ...rows, by: first + call })
    },
  })
  return {
    server,
    decide(command, asked, operation) {
      first = operation
      const nowMs = Math.floor(world.now())
      const changesBefore = history.changes.length
      const told = server.run(command, (call, answer) => {
        const verdict = toldBy(asked[call]!, answer, nowMs)
        if (verdict !== undefined) recordAnswer(history, operation + call, verdict, nowMs)
      })
      return { told, changes: history.changes.slice(changesBefore) }
    },
  }
}

/** What the calls of a command ask for. A command that is none of ours changes nothing. */
function askedBy(command: Command): readonly SentOperation[] {
  const phase = [claimScript, writeScript, inspectScript].find(
    (each) => command[1] === each.sha || command[1] === each.source,
  )
  if (!phase) return [{ call: 'look', what: String(command[0]), key: '' }]
  const count = Number(command[2])
  const entries = command.slice(3 + Object.keys(keyAt).length, 3 + count) as string[]
  const values = command.slice(3 + count)
  const value = (at: number): string | Buffer => values[at - 1] ?? ''
  const width = phase.wordsLength + lengthOf(recordTail)
  let from = 0
  return entries.map((name, call) => {
    const record = String(value(valueAt.records)).slice(call * width, (call + 1) * width)
    const [words, tail] = [record.slice(0, phase.wordsLength), record.slice(phase.wordsLength)]
    const durations = String(value(valueAt.bytes + numberAt(tail, recordTail.durations)))
    const length = numberAt(tail, recordTail.bytes)
    const bytes = Number.isNaN(length)
      ? new Uint8Array(0)
      : (value(valueAt.bytes) as Buffer).subarray(from, (from += length))
    const key = keyString(names.keyOf(name)!)
    if (phase === claimScript) return { call: 'claim', key, request: requestOf(words, durations) }
    return phase === writeScript ? writeOf(key, words, durations, bytes) : inspectionOf(key, words, durations, bytes)
  })
}

function requestOf(words: string, durations: string): ClaimRequest {
  return {
    token: textAt(words, claimWords.token),
    fingerprint: textAt(words, claimWords.fingerprint),
    version: numberAt(words, claimWords.version),
    leaseMs: numberAt(durations, durationPlaces.lease),
    retention: retentionOf(durations),
    onTakeover: textAt(durations, durationPlaces.onTakeover).trimEnd() as ClaimRequest['onTakeover'],
    onExpired: textAt(durations, durationPlaces.onExpired).trimEnd() as ClaimRequest['onExpired'],
  }
}

function retentionOf(durations: string): Retention {
  return {
    keepMs: numberAt(durations, durationPlaces.keep),
    tombstoneMs: numberAt(durations, durationPlaces.tombstone),
  }
}

function writeOf(key: string, words: string, durations: string, bytes: Uint8Array): SentOperation {
  const verb = textAt(words, writeWords.verb)
  const held = { fence: numberAt(words, writeWords.fence), token: textAt(words, writeWords.token) }
  if (verb === 'e') return { call: 'extend', key, ...held, leaseMs: numberAt(durations, durationPlaces.lease) }
  if (verb !== 's') return { call: 'release', key, ...held, how: verb === 'o' ? 'open' : 'forget' }
  return { call: 'settle', key, ...held, outcome: bytes, retention: retentionOf(durations) }
}

function inspectionOf(key: string, words: string, durations: string, bytes: Uint8Array): SentOperation {
  const action = textAt(words, inspectWords.action).trimEnd()
  if (action === 'look') return { call: 'look', what: 'show', key }
  const [keepMs, tombstoneMs] = [mendingPlaces.keep, mendingPlaces.tombstone].map((place) => numberAt(durations, place))
  if (action === 'keep') return { call: 'mend', key, action: { keepMs: keepMs! } }
  if (action !== 'resolve') return { call: 'mend', key, action: action as 'release' | 'forget' }
  const outcome = bytes.subarray(numberAt(durations, mendingPlaces.reason))
  const retention = { keepMs: keepMs!, tombstoneMs: tombstoneMs! }
  return { call: 'mend', key, action: { resolve: outcome, retention } }
}

/** What the caller will make of it. Undefined when nothing was decided: it came too late, or is quarantined. */
function toldBy(asked: SentOperation, answer: string | number, nowMs: number): Verdict | 'done' | 'lost' | undefined {
  if (typeof answer === 'number') return answer === 1 ? 'done' : 'lost'
  if (asked.call !== 'claim') return 'done'
  if (answer === 'quarantined') return undefined
  const [scope, id] = asked.key.split('\n') as [string, string]
  const key: Key = { scope, id }
  return readVerdict(key, asked.request, { bytes: Buffer.from(answer, 'latin1'), nowMs })
}

const wrote = { running: 'claim', open: 'release', settled: 'settle' } as const

function rowOf(entry: string | undefined): HistoryRow | undefined {
  if (entry === undefined) return undefined
  const { lease, expires, forgotten } = entryPlaces
  const [leaseUntilMs, expiresMs, forgottenMs] = [lease, expires, forgotten].map((place) => numberAt(entry, place))
  const state = textAt(entry, entryPlaces.state).trimEnd() as keyof typeof wrote
  return {
    token: textAt(entry, entryPlaces.token),
    attempt: numberAt(entry, entryPlaces.attempt),
    fence: numberAt(entry, entryPlaces.fence),
    fingerprint: textAt(entry, entryPlaces.fingerprint),
    wrote: wrote[state],
    leaseUntilMs: leaseUntilMs!,
    keepMs: expiresMs! - leaseUntilMs!,
    tombstoneMs: forgottenMs! - expiresMs!,
    ...(state === 'settled' && { outcome: Buffer.from(entry.slice(entryLength + 1), 'latin1') }),
  }
}
