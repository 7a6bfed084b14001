// What still breaks a rule of tidy. Each list may only shrink: tidy fails on a new exception, and on a listed one that is gone.

export const exceptions: Readonly<
  Record<
    'typeNamesTwice' | 'unreached' | 'serverTexts' | 'skips' | 'withoutExample' | 'missingFiles',
    readonly string[]
  >
> = {
  typeNamesTwice: [
    'Calls',

    'Asked',
    'Call',
    'Change',
    'Journal',
    'OperationStore',
    'RequestRules',
    'Result',
    'Steps',
  ],
  serverTexts: [],
  withoutExample: [
    './dynamodb dynamodbStore',
    './memory memoryData',
    './mongodb mongodbStore',
    './postgres postgresStore',
    './writes dynamodbWrites',
    './writes mongodbWrites',
    './writes postgresWrites',
    './writes sqliteWrites',
    './writes stateMachine',
  ],
  missingFiles: [],
  skips: [],
  unreached: [],
}
