// Mutants that change nothing that can be observed, each with the reason. Whoever finds a way to observe one writes the test
// and takes its row out.

export interface Equivalent {
  readonly file: string
  /** Part of the line in which it stands. */
  readonly line: string
  /** What is replaced, or its beginning, and by what. */
  readonly from: string
  readonly to: string
  readonly why: string
}

export const equivalents: readonly Equivalent[] = [
  {
    file: 'src/core/key.ts',
    line: `!(kind === 'number' && Number.isFinite(part))`,
    from: `kind === 'number'`,
    to: 'true',
    why: 'Number.isFinite is false for everything but a number.',
  },
  {
    file: 'src/core/key.ts',
    line: 'part.length > keyPartBytesMax ||',
    from: 'part.length > keyPartBytesMax',
    to: 'false',
    why: 'A text has at least as many bytes as characters, so the next condition refuses it, too. This one only makes that cheap.',
  },
  {
    file: `src/core/call/attempt.ts`,
    line: `stopHeartbeat()`,
    from: `stopHeartbeat()`,
    to: `;`,
    why: `Whoever holds a key calls stop() when it is done, which stops the heartbeat, too. Here it only stops a little earlier.`,
  },
  {
    file: `src/core/call/heartbeat.ts`,
    line: `return end('silent')`,
    from: `'silent'`,
    to: `""`,
    why: `The listener compares with 'lost' only.`,
  },
]
