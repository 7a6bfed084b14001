// How a step ends the function of its operation other than by failing: these are thrown through the user's code, and no step
// begins after them, also when that code catches them.

/** The operation goes back: the function is left as soon as it asks for something that is not done. */
export class Rewind extends Error {
  constructor() {
    super('The operation goes back; nothing more is begun.')
    this.name = 'Rewind'
  }
}

/** The operation waits for a person. */
export class Stopped extends Error {
  readonly why: 'in-doubt' | 'undo-stuck' | 'past-pivot'

  constructor(why: Stopped['why'], message: string) {
    super(message)
    this.name = 'Stopped'
    this.why = why
  }
}
