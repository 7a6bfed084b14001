// The shop that README imports as yours: a payment provider and a warehouse.

interface Charge {
  readonly id: string
  readonly cents: number
}

const charges = new Map<string, Charge>()
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
  async refund(chargeKey: string, _: { idempotencyKey: string }): Promise<void> {
    charges.delete(chargeKey)
  },
}

export const stock = {
  async reserve(id: string, key: string): Promise<{ id: string }> {
    holds.add(key)
    return { id }
  },
  async free(_id: string, key: string): Promise<void> {
    holds.delete(key)
  },
}
