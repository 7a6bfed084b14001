// Java's consumer as a judge of what a topic holds (Judge.java), in a process of its own.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { kafkaJava } from '../../servers/kafka.ts'

export interface Judged {
  readonly partition: number
  readonly offset: number
  readonly key: string
  readonly value: string
}

export interface Judge extends AsyncDisposable {
  /** What it has read until now, in the order of each partition. */
  readonly read: readonly Judged[]
  /** Reads on to the end that the topic has now, and ends. */
  end(): Promise<readonly Judged[]>
}

export function startJudge(url: string, topic: string, isolation: 'read_committed' | 'read_uncommitted'): Judge {
  const { file, args } = kafkaJava(join(import.meta.dirname, 'Judge.java'), [new URL(url).host, topic, isolation])
  // Standard error is the log of the client, which says that the broker is away.
  const child: ChildProcess = spawn(file, args, { stdio: ['pipe', 'pipe', 'ignore'] })
  const read: Judged[] = []
  const lines = createInterface({ input: child.stdout! })
  lines.on('line', (line) => {
    const [partition, offset, key, value] = line.split('\t')
    if (value !== undefined) read.push({ partition: Number(partition), offset: Number(offset), key: key!, value })
  })
  const closed = once(lines, 'close')
  return {
    read,
    async end() {
      child.stdin!.end('\n')
      const [code] = (await once(child, 'exit')) as [number | null]
      await closed
      if (code !== 0) throw new Error(`the judge of ${topic} ended with ${code}`)
      return read
    },
    async [Symbol.asyncDispose]() {
      if (child.exitCode !== null || child.signalCode !== null) return
      const exited = once(child, 'exit')
      child.kill('SIGKILL')
      await exited
    },
  }
}
