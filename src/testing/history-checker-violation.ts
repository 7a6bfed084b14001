// What a history can be accused of. Each name is one assertion; a seeded bug says by which it must be found.

export const assertions = [
  'answer-after-settle',
  'answer-has-effect',
  'attempts-grow',
  'calm-is-free',
  'claim-before-effect',
  'everybody-answered',
  'fence-grows',
  'holder-writes',
  'linearizable',
  'live-kept',
  'no-unhandled-rejection',
  'no-wedge',
  'not-executed-left-nothing',
  'one-execution-a-claim',
  'one-fingerprint',
  'one-holder',
  'own-answer',
  'quiet-after-end',
  'release-fits-effect',
  'same-answer',
  'same-derived-key',
  'settled-is-final',
  'storage-bounded',
  'told-when-lost',
  'transaction-once',
  'typed-errors',
  'write-after-effect',
] as const

export type Assertion = (typeof assertions)[number]

export interface Violation {
  readonly assertion: Assertion
  /** As `keyString` writes it. */
  readonly key?: string
  readonly message: string
}
