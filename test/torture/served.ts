// A service behind a gateway gets the attempt, and not the token under which the gateway holds the key. Here what the service did
// is put under the token of the claim that was granted for this key and attempt. What no gateway had claimed keeps the service's
// name.
import type { Claim } from '../../src/core/store.ts'
import type { LedgerLine, Line, Written } from './journal.ts'

export interface Named {
  readonly lines: Written[]
  readonly ledger: LedgerLine[]
}

/** In the order of time: the last claim that was granted before is the one. */
export function nameServed(lines: readonly Written[], ledger: readonly LedgerLine[]): Named {
  const claims = new Map<string, Claim>()
  const tokens = new Map<string, string>()
  const tokenOf = (name: string): string => tokens.get(name) ?? name
  const place = (id: string, attempt: number): string => `${id} ${attempt}`
  const named = lines.map((line): Written => {
    const claim = line.is === 'operation-answer' ? grantedBy(line) : undefined
    if (claim) claims.set(place(claim.key.id, claim.attempt), claim)
    if (line.is === 'served') {
      const { id, attempt, token, call, derivedKey, atMs, process } = line
      const held = claims.get(place(id, attempt))
      if (held) tokens.set(token, held.token)
      const under = { token: tokenOf(token), fence: held?.fence ?? 0 }
      return { is: 'execution', call, attempt, derivedKey, atMs, process, ...under }
    }
    if (line.is === 'ended') return { ...line, token: tokenOf(line.token) }
    if (line.is === 'answer' && 'token' in line.answer)
      return { ...line, answer: { ...line.answer, token: tokenOf(line.answer.token) } }
    return line
  })
  return { lines: named, ledger: ledger.map((line) => ({ ...line, token: tokenOf(line.token) })) }
}

function grantedBy({ answer }: Line & { is: 'operation-answer' }): Claim | undefined {
  const verdict = answer as { readonly is?: string; readonly claim?: Claim } | undefined
  return verdict?.is === 'granted' ? verdict.claim : undefined
}
