// For a process that is killed at its n-th step: node SCRIPT … STEP, the number being its last argument. 0 is never.
import { writeSync } from 'node:fs'

const lastStep = Number(process.argv.at(-1))
let steps = 0

export function step(name: string): void {
  if (++steps !== lastStep) return
  writeSync(1, `killed ${name}\n`)
  process.kill(process.pid, 'SIGKILL')
}

/** Each call is two steps: before it, and after it. */
export function stepping<Args extends unknown[], T>(
  name: string,
  call: (...args: Args) => Promise<T>,
): (...args: Args) => Promise<T> {
  return async (...args) => {
    step(`before ${name}`)
    const result = await call(...args)
    step(`after ${name}`)
    return result
  }
}
