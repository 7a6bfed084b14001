// docs/webhooks.md is true: its programs run as they are written and print what it says.

import { testPrinting } from './programs.ts'

testPrinting('docs/webhooks.md')
