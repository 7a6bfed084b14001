// The other end of killable.ts, in the process that is to be killed.

export interface Keeper {
  /** Kills this process here, if this is the point that it was told. Nothing after it happens. */
  point(name: string): void
  /** Says something, and resolves when the keeper has dealt with it. */
  ask(said: object): Promise<void>
  say(said: object): void
}

export function keeperOf(onTold: (told: object) => void): Keeper {
  const questions = new Map<number, () => void>()
  let asked = 0
  let killAt: string | undefined
  process.on('message', (told: { readonly killAt?: string; readonly answered?: number }) => {
    if (told.answered !== undefined) questions.get(told.answered)?.()
    else if (told.killAt !== undefined) killAt = told.killAt
    else onTold(told)
  })
  process.on('disconnect', () => process.exit())
  // Ctrl-C reaches the whole group. The demo ends this process when the demo is done with it.
  process.on('SIGINT', () => {})
  return {
    point(name) {
      if (killAt === name) process.kill(process.pid, 'SIGKILL')
    },
    async ask(said) {
      const number = (asked += 1)
      await new Promise<void>((resolve) => {
        questions.set(number, resolve)
        process.send?.({ ...said, ask: number })
      })
      questions.delete(number)
    },
    say: (said) => void process.send?.(said),
  }
}
