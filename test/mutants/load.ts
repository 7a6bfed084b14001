// Runs before the tests of each file: loads every file that is mutated. A framework's app is loaded by the first test that starts it,
// and what the files behind it make at that moment (tables, patterns) would count as reached by that one test, and be judged by it alone.
// Loaded here it is seen for what it is, made at load, and is not mutated (ignoreStatic in run.ts).

import { join } from 'node:path'
import { mutatedVariable } from './tests.ts'

const root = join(import.meta.dirname, '../..')

for (const file of JSON.parse(process.env[mutatedVariable] ?? '[]') as string[]) await import(join(root, file))
