// What schedules of the inbox have been through, and the least that a thousand of them must have met: a run that met too little has
// shown nothing.

export interface InboxCounts {
  schedules: number
  published: number
  effects: number
  duplicates: number
  busy: number
  failed: number
  parked: number
  redriven: number
  stale: number
  tooOld: number
  mismatches: number
  crashes: number
  pauses: number
  takeovers: number
  zombies: number
  rewinds: number
  lostRequests: number
  lostAcknowledgements: number
  lateRequests: number
  unknownCommits: number
  conflicts: number
  hangs: number
  outages: number
  clockJumps: number
  sweeps: number
  stops: number
}

export const noInboxCounts = (): InboxCounts => ({
  schedules: 1,
  published: 0,
  effects: 0,
  duplicates: 0,
  busy: 0,
  failed: 0,
  parked: 0,
  redriven: 0,
  stale: 0,
  tooOld: 0,
  mismatches: 0,
  crashes: 0,
  pauses: 0,
  takeovers: 0,
  zombies: 0,
  rewinds: 0,
  lostRequests: 0,
  lostAcknowledgements: 0,
  lateRequests: 0,
  unknownCommits: 0,
  conflicts: 0,
  hangs: 0,
  outages: 0,
  clockJumps: 0,
  sweeps: 0,
  stops: 0,
})

/** A third of what a thousand schedules meet when the generator is in order. */
export const inboxQuotas: Readonly<Record<string, number>> = {
  published: 9_000,
  effects: 11_000,
  duplicates: 7_000,
  busy: 14_000,
  failed: 2_500,
  parked: 900,
  redriven: 400,
  stale: 550,
  tooOld: 400,
  mismatches: 250,
  crashes: 600,
  pauses: 400,
  takeovers: 2_000,
  zombies: 3_900,
  rewinds: 190,
  lostRequests: 4_000,
  lostAcknowledgements: 2_800,
  lateRequests: 170,
  unknownCommits: 350,
  conflicts: 550,
  hangs: 200,
  outages: 120,
  clockJumps: 120,
  sweeps: 9_000,
  stops: 120,
}

/** The same for the whole chain. */
export const chainQuotas: Readonly<Record<string, number>> = {
  published: 7_500,
  effects: 7_000,
  duplicates: 5_500,
  crashes: 380,
  pauses: 380,
  takeovers: 1_700,
  zombies: 3_000,
  rewinds: 200,
  unknownCommits: 120,
  relayKills: 380,
  repeated: 400,
}

/** The same for the relay. */
export const relayQuotas: Readonly<Record<string, number>> = {
  committed: 11_000,
  rolledBack: 2_000,
  kills: 1_300,
  pauses: 1_700,
  takeovers: 1_700,
  fenced: 130,
  lostReplies: 2_600,
  repeated: 1_200,
  held: 9_000,
  dead: 180,
}

/** The same for the ways of the inbox that do not commit the mark with the effect. */
export const waysQuotas: Readonly<Record<string, number>> = {
  published: 6_990,
  effects: 8_330,
  duplicates: 5_580,
  busy: 4_320,
  failed: 3_700,
  parked: 230,
  crashes: 940,
  pauses: 770,
  takeovers: 350,
  zombies: 3_120,
  rewinds: 490,
  lostRequests: 430,
  lostAcknowledgements: 1_850,
  lateRequests: 19,
  unknownCommits: 110,
  conflicts: 66,
  hangs: 320,
  again: 2_490,
  withoutEffect: 540,
  deadLetters: 73,
}
