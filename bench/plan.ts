// What a run of the bench is asked to do: which parts and targets, and how much work. Parts ask `size` how many units to do and `wants`
// whether a target of theirs is asked for. Without a plan (a part that is imported elsewhere) everything runs in full.

/** quick: the table of targets in minutes. full: the record. huge: the record with 10 million entries and 1 million requests. */
export type Effort = 'quick' | 'full' | 'huge'

export interface Part {
  /** The targets (P1 …) that it measures. None: the part stands beside them, and a quick run leaves it out. */
  readonly targets: readonly string[]
  run(): Promise<void>
}

export type Parts = Readonly<Record<string, Part>>

export interface Plan {
  readonly effort: Effort
  /** In the order of the table of parts. */
  readonly parts: readonly string[]
  /** Targets that are asked for by their id. Undefined: all of the parts that run. */
  readonly targets: ReadonlySet<string> | undefined
}

let current: Plan = { effort: 'full', parts: [], targets: undefined }

export function follow(plan: Plan): void {
  current = plan
}

export function effort(): Effort {
  return current.effort
}

/** How many, by effort. Without `huge` a huge run does as much as a full one. */
export function size(full: number, quick: number, huge = full): number {
  return { full, quick, huge }[current.effort]
}

/** Whether a target is asked for. A part that runs because of one of its targets can leave out the others. */
export function wants(target: string): boolean {
  return current.targets === undefined || current.targets.has(target)
}

/**
 * Reads `--only P1,P4,http`, names of parts without a flag, `--quick` and `--huge`. Throws what to tell the user.
 *
 * A part that is asked for by its name runs with all its targets.
 */
export function planOf(words: readonly string[], parts: Parts): Plan {
  const flags = new Set(words.filter((word) => ['--quick', '--huge'].includes(word)))
  if (flags.size > 1) throw new Error('expected --quick or --huge, got both')
  const effort = flags.has('--quick') ? 'quick' : flags.has('--huge') ? 'huge' : 'full'
  const asked = words
    .filter((word) => !flags.has(word) && word !== '--only')
    .flatMap((word) => word.replace(/^--only=/, '').split(','))
    .filter((word) => word !== '')
  const known = new Set([...Object.keys(parts), ...Object.values(parts).flatMap(({ targets }) => targets)])
  const unknown = asked.filter((word) => !known.has(word))
  if (unknown.length > 0) {
    throw new Error(`unknown ${unknown.join(', ')}: expected --quick, --huge, or some of ${[...known].join(', ')}`)
  }
  const names = Object.keys(parts)
  if (asked.length === 0) {
    const all = effort === 'quick' ? names.filter((name) => parts[name]!.targets.length > 0) : names
    return { effort, parts: all, targets: undefined }
  }
  const runs = names.filter((name) => asked.includes(name) || parts[name]!.targets.some((id) => asked.includes(id)))
  const wholly = asked.filter((word) => Object.hasOwn(parts, word)).flatMap((name) => parts[name]!.targets)
  return { effort, parts: runs, targets: new Set([...asked.filter((word) => !Object.hasOwn(parts, word)), ...wholly]) }
}
