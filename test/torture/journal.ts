// What a process under torture writes down: a line before and after everything it does, with synchronous writes, so that a
// kill -9 loses none. Times are the machine's monotonic clock, which all processes share and no set clock moves, written as wall
// time by one offset for all of them.
import {
  appendFileSync,
  closeSync,
  existsSync,
  fstatSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import type { CallAnswer, CallRecord } from '../../src/testing/history-checker.ts'

/** An answer as a client can know it: the execution behind it is named by its token. */
export type ToldAnswer =
  | { readonly is: 'value' | 'failure'; readonly text: string; readonly token: string; readonly replayed: boolean }
  | { readonly is: 'threw'; readonly message: string; readonly token: string }
  | Extract<CallAnswer, { is: 'refused' | 'stray' }>

export type Ended = 'returned' | 'final' | 'threw'

export type Line =
  | {
      readonly is: 'call'
      readonly call: string
      readonly key: CallRecord['key']
      readonly asked: string
      readonly how: CallRecord['how']
      readonly phase: CallRecord['phase']
      readonly waitMs: number
    }
  | { readonly is: 'answer'; readonly call: string; readonly answer: ToldAnswer }
  /** The process that was to answer is gone. */
  | { readonly is: 'hung-up'; readonly call: string }
  | { readonly is: 'operation'; readonly operation: string; readonly sent: object }
  | { readonly is: 'operation-answer'; readonly operation: string; readonly answer?: unknown; readonly failed?: string }
  | {
      readonly is: 'execution'
      readonly call: string
      readonly token: string
      readonly attempt: number
      readonly fence: number
      readonly derivedKey: string
    }
  /** By the service behind a gateway: `token` is its own name of it. See served.ts. */
  | {
      readonly is: 'served'
      readonly call: string
      readonly token: string
      readonly id: string
      readonly attempt: number
      readonly derivedKey: string
    }
  | { readonly is: 'aborted'; readonly token: string }
  | { readonly is: 'ended'; readonly token: string; readonly ended: Ended }
  | { readonly is: 'step'; readonly id: string; readonly step: string; readonly what: StepWhat; readonly key: string }
  | { readonly is: 'dying'; readonly point: string }
  | { readonly is: 'stopping'; readonly point: string; readonly token: string }
  | { readonly is: 'resumed'; readonly token: string }
  /** Another process has ended the key of this token. */
  | { readonly is: 'taken-over'; readonly token: string }
  | { readonly is: 'listening'; readonly port: number }
  /** The store of this gateway is ours. */
  | { readonly is: 'watched' }
  | { readonly is: 'incident'; readonly text: string }
  | { readonly is: 'unhandled'; readonly message: string }

/** `ran`: its body began. `recorded`: the library said that it is done. */
export type StepWhat = 'ran' | 'recorded' | 'undone'

export type Written = Line & { readonly atMs: number; readonly process: string }

export interface Journal {
  readonly process: string
  readonly folder: string
  nowMs(): number
  write(line: Line): void
  /** The ledger: a separate file, one line for each time that an effect took place, nothing deduplicated. */
  effect(token: string): void
}

/** Monotonic milliseconds to wall time. The supervisor takes it once. */
export function wallOffsetMs(): number {
  return performance.timeOrigin + performance.now() - monotonicMs()
}

function monotonicMs(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

export function openJournal(folder: string, name: string, offsetMs: number): Journal {
  const file = openSync(join(folder, `${name}.journal`), 'a')
  const nowMs = (): number => monotonicMs() + offsetMs
  return {
    process: name,
    folder,
    nowMs,
    write: (line) => void writeSync(file, `${JSON.stringify({ ...line, atMs: nowMs(), process: name }, packed)}\n`),
    effect: (token) => appendFileSync(join(folder, 'ledger'), `${JSON.stringify({ token, atMs: nowMs() })}\n`),
  }
}

interface Packed {
  readonly packedBytes: string
}

// JSON.stringify has called toJSON of a Buffer already when it asks here. `this` still has it.
function packed(this: unknown, name: string, value: unknown): unknown {
  const own = (this as Record<string, unknown>)[name]
  return own instanceof Uint8Array ? { packedBytes: Buffer.from(own).toString('base64') } : value
}

function unpacked(_name: string, value: unknown): unknown {
  const bytes = (value as Packed | null)?.packedBytes
  return typeof bytes === 'string' ? new Uint8Array(Buffer.from(bytes, 'base64')) : value
}

/**
 * Returns what one process has written so far, again and again: only what is new is read. A line that is being written is left
 * for the next time.
 */
export function followJournal(folder: string, name: string): () => readonly Written[] {
  const file = join(folder, `${name}.journal`)
  const lines: Written[] = []
  let readBytes = 0
  return () => {
    const fresh = existsSync(file) ? bytesFrom(file, readBytes) : Buffer.alloc(0)
    const end = fresh.lastIndexOf('\n') + 1
    readBytes += end
    for (const line of fresh.subarray(0, end).toString().split('\n')) {
      if (line !== '') lines.push(JSON.parse(line, unpacked) as Written)
    }
    return lines
  }
}

function bytesFrom(file: string, start: number): Buffer {
  const descriptor = openSync(file, 'r')
  try {
    const bytes = Buffer.alloc(Math.max(0, fstatSync(descriptor).size - start))
    return bytes.subarray(0, readSync(descriptor, bytes, 0, bytes.length, start))
  } finally {
    closeSync(descriptor)
  }
}

export interface LedgerLine {
  readonly token: string
  readonly atMs: number
}

export function readLedger(folder: string): LedgerLine[] {
  const file = join(folder, 'ledger')
  return existsSync(file) ? wholeLines(file).map((line) => JSON.parse(line) as LedgerLine) : []
}

/** Of all processes, in the order of time. */
export function readJournals(folder: string): Written[] {
  const names = readdirSync(folder).filter((name) => name.endsWith('.journal'))
  const lines = names.flatMap((name) =>
    wholeLines(join(folder, name)).map((line) => JSON.parse(line, unpacked) as Written),
  )
  return lines.sort((a, b) => a.atMs - b.atMs)
}

function wholeLines(file: string): string[] {
  return readFileSync(file, 'utf8').split('\n').slice(0, -1)
}
