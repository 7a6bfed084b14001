// Keys in a folder, shared by the processes of one machine. Nothing is ever written in place: a file is written beside, flushed, and
// linked or renamed to its name, and then the folder is flushed.
//
//   <operation>.json                the record as it was opened. `link` refuses a name that is taken, so one of many processes wins
//   <operation>.<key>.sent.json     when it was sent, and the server's window
//   <operation>.<key>.answer.json   the answer
//
// The two others have the key in their name: what a late process writes about a record that was removed belongs to no later record.
// Operation and key stand as the first 32 digits of their SHA-256.

import { hash } from 'node:crypto'
import { link, mkdir, open, readdir, readFile, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { systemClock, systemRandom } from '../../core/clock.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'
import { advance, parseRecord } from '../pending.ts'
import type { KeptAnswer, KeyStore, PendingRecord } from '../pending.ts'

interface Sent {
  readonly sentAtMs?: number
  readonly windowMs?: number
}

/** A file that a process left behind when it died while writing. No write takes that long. */
const leftoverMs = 3_600_000

/**
 * Keys in a folder of their own, one file per operation, flushed to disk before the first attempt. Several processes may share it.
 *
 * @example
 * ```ts
 * import { createClient } from 'onceonly/client'
 * import { fileKeys } from 'onceonly/client/node'
 *
 * const client = createClient({ keys: fileKeys('./pending') })
 * ```
 */
export function fileKeys(folder: string): KeyStore {
  if (typeof folder !== 'string' || folder === '')
    throw invalidArgument(`fileKeys: expected a folder, got ${typeof folder}`)
  const pathOf = (operation: string): string => join(folder, `${digest(operation)}.json`)
  const besideOf = (record: PendingRecord, what: 'sent' | 'answer'): string =>
    join(folder, `${digest(record.operation)}.${digest(record.key)}.${what}.json`)

  async function whole(opened: PendingRecord): Promise<PendingRecord> {
    const answer = await readJson<KeptAnswer>(besideOf(opened, 'answer'))
    const sent = (await readJson<Sent>(besideOf(opened, 'sent'))) ?? {}
    const known = { ...opened, ...sent, ...(answer && { answer }) }
    return advance(opened, known) ?? opened
  }

  async function read(path: string): Promise<PendingRecord | undefined> {
    const text = await readText(path)
    return text === undefined ? undefined : whole(parseRecord(text, path))
  }
  const get = (operation: string): Promise<PendingRecord | undefined> => read(pathOf(operation))

  return {
    get: (operation) => failing(folder, () => get(operation)),
    open: (record) =>
      failing(folder, async () => {
        await mkdir(folder, { recursive: true, mode: 0o700 })
        const path = pathOf(record.operation)
        for (;;) {
          if (await linkNew(path, record)) return record
          // Unless it was removed in this moment: then the name is free.
          const standing = await get(record.operation)
          if (standing) return standing
        }
      }),
    save: (record) =>
      failing(folder, async () => {
        const standing = await get(record.operation)
        const next = advance(standing, record)
        if (!standing || !next) return
        if (next.answer && !standing.answer) await replace(besideOf(record, 'answer'), next.answer)
        const { sentAtMs, windowMs } = next
        if (sentAtMs !== standing.sentAtMs || windowMs !== standing.windowMs)
          await replace(besideOf(record, 'sent'), { sentAtMs, windowMs })
        await flushFolder(folder)
      }),
    remove: (operation, key) =>
      failing(folder, async () => {
        const standing = await get(operation)
        if (standing?.key !== key) return
        await removeOnly(pathOf(operation), key)
        await rm(besideOf(standing, 'answer'), { force: true })
        await rm(besideOf(standing, 'sent'), { force: true })
        await flushFolder(folder)
      }),
    list: () =>
      failing(folder, async () => {
        const names = await namesIn(folder)
        await removeLeftovers(folder, names)
        const records = names
          .filter((name) => /^[0-9a-f]{32}\.json$/.test(name))
          .map((name) => read(join(folder, name)))
        const found = (await Promise.all(records)).filter((each) => each !== undefined)
        return found.toSorted((one, other) => one.createdAtMs - other.createdAtMs)
      }),
  }
}

/** False when the name is taken. */
async function linkNew(path: string, record: PendingRecord): Promise<boolean> {
  const written = await writeBeside(path, record)
  try {
    await link(written, path)
    await flushFolder(dirname(path))
    return true
  } catch (error) {
    if (!hasCode(error, 'EEXIST')) throw error
    return false
  } finally {
    await rm(written, { force: true })
  }
}

/**
 * Takes the record away only if it has this key. Between a look at the file and its removal another process may have removed it and
 * opened a new one, so the file is moved aside first and looked at there. If it is the new one, it is put back.
 */
async function removeOnly(path: string, key: string): Promise<void> {
  const aside = `${path}.${systemRandom.uuid()}.tmp`
  try {
    await rename(path, aside)
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return
    throw error
  }
  const taken = parseRecord(await readFile(aside, 'utf8'), aside)
  if (taken.key !== key) await link(aside, path).catch(() => {})
  await rm(aside, { force: true })
}

async function removeLeftovers(folder: string, names: readonly string[]): Promise<void> {
  for (const name of names.filter((each) => each.endsWith('.tmp'))) {
    const found = await stat(join(folder, name)).catch(() => undefined)
    if (found && systemClock.now() - found.mtimeMs > leftoverMs) await rm(join(folder, name), { force: true })
  }
  const opened = new Set(names.filter((name) => /^[0-9a-f]{32}\.json$/.test(name)).map((name) => name.slice(0, 32)))
  const orphans = names.filter((name) => /\.(sent|answer)\.json$/.test(name) && !opened.has(name.slice(0, 32)))
  for (const name of orphans) await rm(join(folder, name), { force: true })
}

function digest(text: string): string {
  return hash('sha256', text, 'hex').slice(0, 32)
}

async function writeBeside(path: string, value: unknown): Promise<string> {
  const written = `${path}.${systemRandom.uuid()}.tmp`
  const file = await open(written, 'wx', 0o600)
  try {
    await file.writeFile(JSON.stringify(value))
    await file.sync()
  } finally {
    await file.close()
  }
  return written
}

async function replace(path: string, value: unknown): Promise<void> {
  await rename(await writeBeside(path, value), path)
}

/** A name in a folder is durable when the folder is flushed. Windows cannot flush one, and does not need it. */
async function flushFolder(folder: string): Promise<void> {
  if (process.platform === 'win32') return
  const file = await open(folder, 'r')
  try {
    await file.sync()
  } finally {
    await file.close()
  }
}

async function readText(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
}

async function readJson<T>(path: string): Promise<T | undefined> {
  const text = await readText(path)
  return text === undefined ? undefined : (JSON.parse(text) as T)
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder)
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return []
    throw error
  }
}

function hasCode(error: unknown, code: string): boolean {
  return (error as { code?: unknown }).code === code
}

/** An error of the file system says which folder, and what was not done. */
async function failing<T>(folder: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof OnceError) throw error
    throw new OnceError('STORE_UNAVAILABLE', {
      executed: 'unknown',
      message: `fileKeys: ${folder} cannot be used: ${(error as Error).message}. Without a durable key nothing is sent. Check that the folder can be written, and has space.`,
      cause: error,
    })
  }
}
