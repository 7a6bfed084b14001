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
import type { RedisClient, RedisStore, RedisStoreOptions } from '../../../src/stores/redis.ts'
import { recordAnswer } from '../../../src/testing/history-checker.ts'
import type { History, HistoryRow, RowChange } from '../../../src/testing/history-checker.ts'
import type { Network, SentOperation } from './network.ts'
import { createRedisServer, infoOf, isNativeCommand, shortScriptOf, unfolded } from './redis/server.ts'
import type { RedisServer } from './redis/server.ts'
import type { Life, World } from './world.ts'

/** By native commands, on a server with or without IFEQ, or, as an older version of the store, by scripts alone. */
export type RedisWay = 'ifeq' | 'swaps' | 'scripts'

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
  connect(life: Life, timeoutMs: number, way: RedisWay): RedisStore
  /** Native commands write a claim before it is checked. What no caller was told of was taken back, and counts for nothing. */
  markUntold(): void
}

const names = namesUnder('onceonly')

type Command = readonly (string | Buffer)[]

export function createRedis(world: World, network: Network, history: History): SimulatedRedis {
  const givenBlindly: string[] = []
  const natively: NativeGrants = { told: new Set(), blind: new Map(), changes: new Set() }
  const { server, decide } = auditedServer(world, history)
  let connection = 1
  const onReconnecting: (() => void)[] = []
  let rememberedAtMs = 0
  let restartedAtMs = -Infinity
  /** What was decided between these two is lost, and no person has looked at it yet. */
  let lost: { readonly fromMs: number; readonly untilMs: number } | undefined
  const isLost = (atMs: number): boolean => lost !== undefined && atMs >= lost.fromMs && atMs < lost.untilMs

  const wire: Socket = {
    world,
    network,
    history,
    server,
    decide,
    natively,
    givenBlindly,
    isLost,
    connection: () => connection,
    restartedAtMs: () => restartedAtMs,
  }
  return {
    server,
    get givenBlindly() {
      return [
        ...givenBlindly,
        ...[...natively.blind].flatMap(([claim, key]) => (natively.told.has(claim) ? [key] : [])),
      ]
    },
    markUntold() {
      const untold = [...natively.changes].filter(({ after }) => !natively.told.has(claimName(after!)))
      for (const change of untold) change.untold = true
      const claims = new Set(untold.map(({ after }) => claimName(after!)))
      for (const operation of history.operations)
        if (operation.call === 'release' && claims.has(claimName(operation))) operation.takesBack = true
    },
    lose(how) {
      restartedAtMs = world.now()
      connection++
      for (const reconnecting of onReconnecting) reconnecting()
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
    connect(life, timeoutMs, way) {
      const used: Used = { lastAtMs: -1 }
      const byScript = senderOf(wire, life, used)
      const byPipeline = pipelineOf(wire, life, used)
      const { load } = server
      const sent: Sent = { byScript, natively: byPipeline, load, connection: () => connection, onReconnecting }
      return storeOn(clientOf(sent, way), { clock: life.clock, timeoutMs }, natively)
    },
  }
}

/** What all sockets have around them. */
interface Socket {
  readonly world: World
  readonly network: Network
  readonly history: History
  readonly server: RedisServer
  readonly decide: AuditedServer['decide']
  readonly natively: NativeGrants
  /** Keys that scripts gave to an instance which had heard of writes that were lost since. */
  readonly givenBlindly: string[]
  isLost(atMs: number): boolean
  connection(): number
  restartedAtMs(): number
}

/** When a client last sent something. */
interface Used {
  lastAtMs: number
}

/** One message for each command of a script. */
function senderOf(socket: Socket, life: Life, used: Used): (command: Command) => Promise<unknown> {
  const { world, network, history, server, decide, givenBlindly, isLost, restartedAtMs } = socket
  let heardOf = -1
  return async (command) => {
    // What the server says of itself is not what this is about.
    if (command[0] === 'INFO') return server.run(command, () => {})
    const asked = askedBy(command)
    // What the store knows when it writes a command.
    const knows = heardOf
    let wroteAtMs = -1
    const sentAtMs = (used.lastAtMs = world.now())
    let isAnswered = false
    let decidedAtMs = -1
    // A restart ends every connection. A client hears what the old one still brings, and connects anew after that: once it has sent
    // something on the new one, nothing comes from the old one any more.
    const isOpen = (): boolean => decidedAtMs >= restartedAtMs() || used.lastAtMs < restartedAtMs()
    const decided = async (operation: number): Promise<unknown> => {
      if (!history.operations[operation]?.repeated) decidedAtMs = world.now()
      // A restart ends every connection, and nothing that an old one carried reaches the server any more. A client may send once
      // more what it had no reply to (ioredis does), and what it had a reply to it never sends again.
      const isOld = history.operations[operation]?.repeated && sentAtMs < restartedAtMs()
      if (isOld && isAnswered) throw new Error('ECONNRESET')
      const { told, changes } = decide(command, asked, operation)
      if (isLost(knows)) givenBlindly.push(...changes.filter(isGrant).map(({ key }) => key))
      // The sender hears nothing of what the network delivers once more.
      if (changes.length > 0 && !history.operations[operation]?.repeated) wroteAtMs = world.now()
      return told
    }
    const answer = await network.send(life, asked, decided, undefined, isOpen)
    isAnswered = true
    heardOf = Math.max(heardOf, wroteAtMs)
    return answer
  }
}

/**
 * One socket: what is written to it in one turn arrives together, in its order, and never twice. What is not written when the connection
 * ends goes out on the next one, and nobody hears of it, unless it was dropped.
 */
function pipelineOf(socket: Socket, life: Life, used: Used): Sent['natively'] {
  const { world, network, history, server, decide, natively, isLost, connection } = socket
  let waiting: Piped[] = []
  let heardOf = -1
  const blind: string[] = []
  const carryOut = async (piped: readonly Piped[], sentAtMs: number, knows: number, operation: number) => {
    const isCut = (): boolean => sentAtMs < socket.restartedAtMs()
    if (isCut() && piped[0]!.isDropped) throw new Error('ECONNRESET')
    const commands = piped.map(({ command }) => command)
    const sets = commands.filter(([name]) => name === 'SET')
    const told = sets.map((command, index) => decideNatively({ decide, history, natively }, command, operation + index))
    for (const { key, claim } of told.flatMap(({ granted }) => granted ?? [])) {
      if (!isLost(knows)) continue
      natively.blind.set(claim, key)
      blind.push(claim)
    }
    // Others come in between.
    await new Promise<void>((resolve) => world.after(world.random.fraction() * 3, resolve))
    const isLeft = !isCut() || !piped.at(-1)!.isDropped
    const rest = isLeft ? commands.slice(sets.length).map((command) => server.run(command, () => {})) : []
    if (isCut()) throw new Error('ECONNRESET')
    // A claim is given by its check. A person may have looked at what is lost since the claim was written.
    if (!isLost(knows) && commands.some(([name]) => name === 'MGET'))
      for (const claim of blind.splice(0)) if (!natively.told.has(claim)) natively.blind.delete(claim)
    return { replies: [...told.map(({ reply }) => reply), ...rest], wrote: told.some(({ isChange }) => isChange) }
  }
  const flush = (): void => {
    const piped = waiting
    waiting = []
    const [sentAtMs, knows, epoch] = [world.now(), heardOf, connection()]
    used.lastAtMs = sentAtMs
    const sets = piped.filter(({ command }) => command[0] === 'SET')
    const asked = sets.map(({ command }) => nativelyAsked(command))
    const what = asked.length > 0 ? asked : ([{ call: 'look', what: 'check', key: '' }] as const)
    const onLost = (): void => {}
    network
      .send(life, what, (operation) => carryOut(piped, sentAtMs, knows, operation), onLost)
      .then(
        ({ replies, wrote }) => {
          if (wrote && epoch === connection()) heardOf = Math.max(heardOf, sentAtMs)
          piped.forEach(({ resolve }, index) => resolve(replies[index]))
        },
        (error: unknown) => piped.forEach(({ reject }) => reject(error as Error)),
      )
  }
  return (command, unwritten) =>
    new Promise((resolve, reject) => {
      const piped = { command, resolve, reject, isDropped: false }
      unwritten?.addEventListener('abort', () => (piped.isDropped = true))
      if (waiting.push(piped) === 1) queueMicrotask(flush)
    })
}

interface Sent {
  byScript(command: Command): Promise<unknown>
  natively(command: Command, unwritten: AbortSignal | undefined): Promise<unknown>
  readonly load: RedisServer['load']
  connection(): number
  /** What is told when a connection has ended. */
  readonly onReconnecting: (() => void)[]
}

const versions: Readonly<Record<RedisWay, string>> = {
  ifeq: 'valkey_version:8.1.1',
  swaps: 'redis_version:7.4.0',
  scripts: 'redis_version:6.2.0',
}

function clientOf({ byScript, natively, load, connection, onReconnecting }: Sent, way: RedisWay): RedisClient {
  const info = infoOf(versions[way])
  const client = {
    withTypeMapping: () => client,
    async sendCommand(command: Command, options?: { readonly abortSignal?: AbortSignal }): Promise<unknown> {
      // What the server says of itself is not what this is about.
      if (command[0] === 'INFO') return info
      if (!isNativeCommand(command)) return byScript(command)
      const script = shortScriptOf(command)
      if (!script) return natively(command, options?.abortSignal)
      load(command, script)
      // The model knows the commands. That nothing comes between them is more than it asks for.
      const { commands, fold } = unfolded(command)
      return fold(await Promise.all(commands.map((each) => natively(each, options?.abortSignal))))
    },
    on: (_event: 'reconnecting', listener: () => void) => void onReconnecting.push(listener),
    isReady: true,
    get socketEpoch() {
      return connection()
    },
  }
  return client
}

/** The shipped store. Which grants its callers were told is written down. */
function storeOn(
  client: RedisClient,
  options: Pick<RedisStoreOptions, 'clock' | 'timeoutMs'>,
  { told }: NativeGrants,
): RedisStore {
  const store = redisStore({ client, ...options, eviction: 'accept', durability: 'relaxed' })
  return {
    ...store,
    async claim(key, request) {
      const verdict = await store.claim(key, request)
      if (verdict.is === 'granted') told.add(claimName(verdict.claim))
      return verdict
    },
  }
}

interface Piped {
  readonly command: Command
  isDropped: boolean
  resolve(reply: unknown): void
  reject(error: Error): void
}

const claimName = ({ token, fence }: { readonly token: string; readonly fence?: number | undefined }): string =>
  `${token} ${fence}`

interface NativeGrants {
  /** The claims whose callers were told, by token and fence. */
  readonly told: Set<string>
  /** The keys by the claims that were given to an instance which had heard of writes that were lost since. */
  readonly blind: Map<string, string>
  readonly changes: Set<RowChange & { untold?: true }>
}

interface NativeDecision {
  readonly reply: unknown
  readonly granted: { readonly key: string; readonly claim: string } | undefined
  readonly isChange: boolean
}

/** A stamp is earlier than the decision, or later by what is not known of the server's clock. The model counts from the decision. */
function decideNatively(
  {
    decide,
    history,
    natively,
  }: { readonly natively: NativeGrants; readonly history: History } & Pick<AuditedServer, 'decide'>,
  command: Command,
  operation: number,
): NativeDecision {
  const asked = history.operations[operation]!
  const decidedAtMs = asked.decidedAtMs!
  const row = rowOf(Buffer.from(command[2] as string).toString('latin1'))!
  const leaseMs = row.leaseUntilMs - decidedAtMs
  if (asked.call === 'claim') Object.assign(asked, { request: { ...asked.request, leaseMs } })
  const keepMs = row.leaseUntilMs + row.keepMs - decidedAtMs
  if (asked.call === 'settle') Object.assign(asked, { retention: { keepMs, tombstoneMs: row.tombstoneMs } })
  const { told, changes } = decide(command, [asked as SentOperation], operation)
  const granted = changes.find(isGrant)
  if (granted) natively.changes.add(granted)
  return {
    reply: told,
    granted: granted && { key: granted.key, claim: claimName(granted.after!) },
    isChange: changes.length > 0,
  }
}

/** What a `SET` asks for. How takeovers and expiry are to be decided is not in it: a script decides them. */
function nativelyAsked(command: Command): SentOperation {
  const key = keyString(names.keyOf(String(command[1]))!)
  const text = Buffer.from(command[2] as string).toString('latin1')
  const row = rowOf(text)!
  const { token, fence, fingerprint, keepMs, tombstoneMs } = row
  const retention = { keepMs, tombstoneMs }
  if (!command.includes('IFEQ')) {
    const leaseMs = row.leaseUntilMs - numberAt(text, entryPlaces.first)
    const version = numberAt(text, entryPlaces.version)
    const request = { token, fingerprint, version, leaseMs, retention, onTakeover: 'run', onExpired: 'refuse' } as const
    return { call: 'claim', key, request }
  }
  return { call: 'settle', key, token, fence, outcome: row.outcome!, retention }
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
        if (isNativeCommand(command) && isForScript(asked[call]!, answer, nowMs)) return
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

/** What a native claim found and cannot decide. */
function isForScript(asked: SentOperation, answer: string | number, nowMs: number): boolean {
  if (asked.call !== 'claim' || typeof answer === 'number' || answer.startsWith('granted')) return false
  const row = rowOf(answer)!
  if (row.wrote === 'settle') return nowMs >= row.leaseUntilMs + row.keepMs || answer.length <= entryLength
  return row.wrote === 'release' || row.token === asked.request.token || nowMs >= row.leaseUntilMs
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
