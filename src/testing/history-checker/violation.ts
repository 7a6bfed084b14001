// What a history can be accused of. Each name is one assertion. A seeded bug names the assertion that must find it.

export const assertions = [
  'answer-after-settle',
  'answer-has-effect',
  'asked-for',
  'attempts-grow',
  'began-before-run',
  'calm-is-free',
  'cancel-heard',
  'claim-before-effect',
  'deaths-counted',
  'ends-whole',
  'everybody-answered',
  'fence-grows',
  'forward-or-back',
  'holder-writes',
  'linearizable',
  'live-kept',
  'newer-untouched',
  'no-unhandled-rejection',
  'no-wedge',
  'not-executed-left-nothing',
  'one-execution-a-claim',
  'one-fingerprint',
  'one-holder',
  'operation-ends',
  'own-answer',
  'parked-stays',
  'parked-visible',
  'quiet-after-end',
  'quarantine-holds',
  'record-by-holder',
  'records-kept',
  'records-in-order',
  'release-fits-effect',
  'same-answer',
  'same-derived-key',
  'settled-is-final',
  'step-as-asked',
  'step-not-again',
  'step-once',
  'storage-bounded',
  'told-when-lost',
  'transaction-once',
  'typed-errors',
  'undo-in-reverse',
  'undo-needed',
  'undo-once',
  'undo-tried',
  'write-after-effect',
] as const

export type Assertion = (typeof assertions)[number]

export interface Violation {
  readonly assertion: Assertion
  /** As `keyString` writes it. */
  readonly key?: string
  readonly message: string
}
