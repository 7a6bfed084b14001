// Which seeded bugs run when not all can: those that need no server and no time always, and of the others one third per day.

import type { SeededBug } from './bug.ts'

export const parts = 3

const dayMs = 86_400_000

export const isSlow = ({ caughtBy }: SeededBug): boolean => 'needs' in caughtBy

/** The parts follow each other day by day, so that three days in a row run every bug. */
export const partOfDay = (nowMs: number): number => Math.floor(nowMs / dayMs) % parts

export function rotate(bugs: readonly SeededBug[], part: number): { bugs: SeededBug[]; left: SeededBug[] } {
  if (!Number.isSafeInteger(part) || part < 0 || part >= parts)
    throw new Error(`expected --part to be a whole number from 0 to ${parts - 1}, got "${part}"`)
  const slow = bugs.filter(isSlow)
  const left = new Set(slow.filter((_, at) => at % parts !== part))
  return { bugs: bugs.filter((bug) => !left.has(bug)), left: [...left] }
}
