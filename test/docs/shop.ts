// The shop that README imports as yours: a payment provider and a warehouse.

interface Charge {
  readonly id: string
  readonly cents: number
}

const charges = new Map<string, Charge>()
const refunds = new Set<string>()
const holds = new Set<string>()

export const provider = {
  async charge(cents: number, { idempotencyKey }: { idempotencyKey: string }): Promise<Charge> {
    const charge = charges.get(idempotencyKey) ?? { id: `charge-${charges.size}`, cents }
    charges.set(idempotencyKey, charge)
    return charge
  },
  async find(key: string): Promise<{ found: Charge } | 'not-found'> {
    const charge = charges.get(key)
    return charge ? { found: charge } : 'not-found'
  },
  async refund(chargeKey: string, { idempotencyKey }: { idempotencyKey: string }): Promise<void> {
    if (refunds.has(idempotencyKey)) return
    refunds.add(idempotencyKey)
    charges.delete(chargeKey)
  },
}

export const stock = {
  async reserve(id: string, key: string): Promise<{ id: string }> {
    holds.add(`${id} ${key}`)
    return { id }
  },
  async free(id: string, key: string): Promise<void> {
    holds.delete(`${id} ${key}`)
  },
}
