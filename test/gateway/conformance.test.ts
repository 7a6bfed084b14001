// The conformance cases of HTTP through the gateway: the rules are the exchange's, and a proxy in between changes none of them.
import { describe, test } from 'vitest'
import { type Case, readCases } from '../conformance/cases.ts'
import { runCase, type Subject } from '../conformance/runner.ts'
import { memory, sqlite } from '../conformance/stores.ts'
import { startBehindGateway } from './conformance-app.ts'

/** What a service that knows nothing of onceonly cannot say, and what is shown with real processes beside this file. */
const cannot: Readonly<Record<string, string>> = {
  'CT-02': 'a service behind a gateway writes with no transaction of its store',
  'CT-m2': 'a service behind a gateway writes with no transaction of its store',
  'CT-03': 'the gateway as a process that is killed is processes.test.ts',
  'sqlite IF-03': 'two gateways as processes on one store are processes.test.ts',
  'ST-03':
    'an answer that broke off leaves the key claimed until its lease ends (faults.test.ts), where a handler releases it',
  'AB-02': 'that a client left is not passed on: the service would have to be asked what it did',
}

const cases = [...readCases('cases.json'), ...readCases('more-cases.json')]

function runAll(subject: Subject): void {
  const possible = cases.filter(({ id }) => !(id in cannot) && !(`${subject.storeKind.name} ${id}` in cannot))
  for (const each of possible) test(`${each.id} ${each.title}`, () => runCase(subject, each as Case))
}

describe.each([memory, sqlite])('behind the gateway on $name', (storeKind) => {
  runAll({ adapter: 'gateway', start: startBehindGateway, storeKind })
})
