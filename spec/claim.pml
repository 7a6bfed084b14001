/* The key protocol as a SPIN model: claim, lease, heartbeat, fence, settle and release of one key by several workers.
 *
 * Time is left out: a lease may end whenever the world likes, so every pause, delay and skew is covered. A request may be lost,
 * its reply may be lost, and any request may come (again) at any later time. Workers crash, throw, and never begin.
 * Each is bounded by a number below; all orders of what is left are tried. A worker asks until it is told an answer: a key that
 * nobody can ever get is a deadlock, which SPIN reports as an invalid end state.
 *
 * With -DFENCES the row has its fence and every write carries the one that its sender heard; and somebody forgets the key by hand
 * under a worker that lives, so that a claim which comes again gives the old token another life.
 *
 * Known bugs are switched on by -DBUG_...; test/simulation/model.test.ts expects each of them to be found.
 * By hand: spin -a claim.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m100000
 */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef CRASHES
#define CRASHES 1   /* of all workers together; the same for those below */
#endif
#ifndef FAILURES
#define FAILURES 1  /* effects that throw, or never begin */
#endif
#ifndef LOSSES
#define LOSSES 1    /* requests and replies that are lost */
#endif
#ifndef GHOSTS
#define GHOSTS 1    /* requests that come once more, late */
#endif
#ifndef LAPSES
#define LAPSES 1    /* leases that end under a worker that lives: it stood still, or its heartbeats were lost */
#endif

#ifndef MENDS
#define MENDS 1     /* keys that are forgotten by hand while somebody works; only with FENCES */
#endif

#define TOKENS 14   /* more than the bounds above can use up; asserted */

mtype = { ABSENT, RUNNING, OPEN, SETTLED }                       /* the entry; abandoned is RUNNING and not alive */
mtype = { CLAIM, EXTEND, SETTLE, GIVE_BACK, FORGET, NOTHING }    /* requests */

/* The row. */
mtype row = ABSENT
byte token = 0
byte attempt = 0
#ifdef FENCES
byte fence = 0
#endif
byte outcome = 0
bool alive = false       /* the lease */

/* What the checker knows and no worker sees. */
byte tokens = 0          /* given out */
byte lastGranted = 0
#ifdef FENCES
byte lastFence = 0       /* a counter tells apart what is otherwise the same state, so it is only kept when asked for */
#endif
byte told = 0            /* the answer that somebody was given */
bool working[TOKENS]     /* a worker that lives works under this token */
bool began[TOKENS]       /* the effect under this token began */
byte crashes = CRASHES
byte failures = FAILURES
byte losses = LOSSES
byte ghosts = GHOSTS
byte lapses = LAPSES
byte finished = 0

/* A request on its way for the second time. */
mtype ghostCall = NOTHING
byte ghostToken = 0
#ifdef FENCES
byte ghostFence = 0
byte mends = MENDS
#endif

/* What a worker carries beside its token. Who was never told gives back whatever its token holds. */
#define UNTOLD 0
#ifdef FENCES
#define HEARD_FENCE f
#define GHOST_FENCE ghostFence
#else
#define HEARD_FENCE UNTOLD
#define GHOST_FENCE UNTOLD
#endif

inline assertHolder(t, f) {
  /* After a takeover, no write of the old token is accepted; and none of the token's life before this one. */
  assert(t == lastGranted);
#ifdef FENCES
  assert(f == UNTOLD || f == lastFence)
#endif
}

inline grant(t) {
  /* One holder: nobody is pushed out under a living lease, and what is settled is not given away. */
  assert(row != SETTLED);
  assert(!(row == RUNNING && alive));
  attempt = (row == ABSENT -> 1 : attempt + 1);
#ifdef FENCES
#ifdef BUG_FENCE_IS_ATTEMPT
  fence = attempt;
#else
  fence = lastFence + 1;
#endif
  assert(fence > lastFence);
  lastFence = fence;
#endif
#ifdef BUG_TOKEN_KEPT
  token = (row == RUNNING -> token : t);
#else
  token = t;
#endif
  row = RUNNING;
  alive = true;
#ifdef BUG_TOKEN_KEPT
  keptBy[t] = token;
#endif
  lastGranted = t
}

#ifdef FENCES
#ifdef BUG_TOKEN_ALONE
/* Whichever life the token is from. */
#define SAME_LIFE(f) true
#else
#define SAME_LIFE(f) (f == UNTOLD || f == fence)
#endif
#else
#define SAME_LIFE(f) true
#endif

#ifdef BUG_TOKEN_IS_ATTEMPT
/* The attempt number stands for the token: a zombie of a forgotten attempt 1 passes for the new attempt 1. */
#define MINE(t, f) (row == RUNNING && attempt == attemptOf[t])
byte attemptOf[TOKENS]
#else
#ifdef BUG_TOKEN_KEPT
/* Who takes over writes with the token that it found. */
#define MINE(t, f) (row == RUNNING && token == keptBy[t])
byte keptBy[TOKENS]
#else
#define MINE(t, f) (row == RUNNING && token == t && SAME_LIFE(f))
#endif
#endif

#define SETTLED_MINE(t, f) (row == SETTLED && token == t && SAME_LIFE(f))

/* Whether asking can bring anything but "busy". */
#ifdef BUG_NO_TAKEOVER
#define FREE (row != RUNNING)
#else
#define FREE (row != RUNNING || !alive)
#endif

/* The decisions of the store: each is one atomic step. `heard` is the answer. */
inline decideClaim(t, heard) {
  if
  :: row == SETTLED -> heard = SETTLED
  :: row == RUNNING && token == t -> alive = true; heard = RUNNING   /* a claim that comes again recognises itself */
  :: row == OPEN && token == t -> heard = ABSENT                     /* a late duplicate of what was given back: busy */
#ifdef BUG_NO_TAKEOVER
  :: row == RUNNING && token != t -> heard = ABSENT
#else
  :: row == RUNNING && token != t && alive -> heard = ABSENT         /* busy */
  :: row == RUNNING && token != t && !alive -> grant(t); heard = RUNNING
#endif
  :: row == ABSENT || (row == OPEN && token != t) -> grant(t); heard = RUNNING
  fi;
#ifdef BUG_TOKEN_IS_ATTEMPT
  attemptOf[t] = (heard == RUNNING -> attempt : attemptOf[t]);
#endif
}

inline decideExtend(t, f, heard) {
  if
#ifdef BUG_EXTEND_ANY
  :: row == RUNNING -> assertHolder(t, f); alive = true; heard = RUNNING
  :: row != RUNNING -> heard = ABSENT
#else
  :: MINE(t, f) -> assertHolder(t, f); alive = true; heard = RUNNING
  :: !MINE(t, f) -> heard = ABSENT
#endif
  fi
}

inline write(t, f, heard) {
  assertHolder(t, f);
  assert(outcome == 0);
  assert(began[t]);
  row = SETTLED;
  token = t;
  outcome = t;
  alive = false;
  heard = SETTLED
}

inline decideSettle(t, f, heard) {
  if
  :: SETTLED_MINE(t, f) -> heard = SETTLED                             /* the same settle once more */
#ifdef BUG_NO_FENCE
  :: !SETTLED_MINE(t, f) -> write(t, f, heard)
#else
#ifdef BUG_FENCE_ON_STATE
  :: row == RUNNING -> write(t, f, heard)
  :: row != RUNNING && !SETTLED_MINE(t, f) -> heard = ABSENT
#else
  :: MINE(t, f) -> write(t, f, heard)
  :: !MINE(t, f) && !SETTLED_MINE(t, f) -> heard = ABSENT
#endif
#endif
  fi
}

inline giveBack(t, f) {
  assertHolder(t, f);
  row = OPEN;
  alive = false
}

inline decideGiveBack(t, f) {
  if
#ifdef BUG_RELEASE_ANY
  :: row == RUNNING -> giveBack(t, f)
  :: row != RUNNING -> skip
#else
  :: MINE(t, f) -> giveBack(t, f)
  :: !MINE(t, f) -> skip
#endif
  fi
}

inline decideForget(t, f) {
  if
  :: MINE(t, f) && attempt > 1 -> giveBack(t, f)
  :: MINE(t, f) && attempt == 1 ->
     assertHolder(t, f);
     /* Leaves no trace, so nothing may have begun. */
     assert(!began[t]);
     row = ABSENT; token = 0; attempt = 0; alive = false
  :: !MINE(t, f) -> skip
  fi
}

/* Somebody is given an answer: it is settled, its effect began, and everybody is told the same. */
inline tell(v) {
  assert(row == SETTLED && v == outcome && began[v]);
  assert(told == 0 || told == v);
  told = v
}

/* This request will also come later. */
inline haunt(what, t, f) {
  if
  :: ghosts > 0 && ghostCall == NOTHING ->
     ghosts--; ghostCall = what; ghostToken = t;
#ifdef FENCES
     ghostFence = f
#endif
  :: true -> skip
  fi
}

active proctype Ghost() {
  mtype heard;
end:
  do
  :: atomic {
       ghostCall != NOTHING ->
       if
       :: ghostCall == CLAIM -> decideClaim(ghostToken, heard)
       :: ghostCall == EXTEND -> decideExtend(ghostToken, GHOST_FENCE, heard)
       :: ghostCall == SETTLE -> decideSettle(ghostToken, GHOST_FENCE, heard)
       :: ghostCall == GIVE_BACK -> decideGiveBack(ghostToken, GHOST_FENCE)
       :: ghostCall == FORGET -> decideForget(ghostToken, GHOST_FENCE)
       fi;
       ghostCall = NOTHING; ghostToken = 0; heard = ABSENT;
#ifdef FENCES
       ghostFence = 0
#endif
     }
  od
}

#ifdef FENCES
/* Somebody takes a key for dead, and forgets it by hand. */
active proctype Person() {
end:
  do
  :: atomic { mends > 0 && row == RUNNING -> mends--; row = ABSENT; token = 0; attempt = 0; fence = 0; alive = false }
  od
}
#endif

/* Leases end: under the living a few times, under the dead always. */
active proctype Clock() {
end:
  do
  :: atomic { row == RUNNING && alive && working[token] && lapses > 0 -> lapses--; alive = false }
#ifndef BUG_HEARTBEAT_OUTLIVES
  :: atomic { row == RUNNING && alive && !working[token] -> alive = false }
#endif
  od
}

inline newToken(t) {
  tokens++;
  assert(tokens < TOKENS);
  t = tokens;
  working[t] = true
}

/* The worker knows nothing any more. What no one can ask about again is wiped, so that equal states are equal. */
inline forgetAll() {
  working[t] = false;
  if
  :: t != token && t != outcome && t != ghostToken -> began[t] = false
  :: else -> skip
  fi;
#ifdef FENCES
  f = 0;
#endif
  t = 0; heard = ABSENT
}

/* The answer to a claim tells its fence. */
inline hearFence() {
#ifdef FENCES
  if
  :: heard == RUNNING -> f = fence
  :: else -> skip
  fi
#else
  skip
#endif
}

active [WORKERS] proctype Worker() {
  byte t = 0;
  mtype heard = ABSENT;
#ifdef FENCES
  byte f = 0;
#endif

ask:
  /* A busy key is waited for: the request that is answered with something else is the one that counts. */
#ifdef BUG_READ_THEN_WRITE
  atomic { FREE -> newToken(t) };
  atomic {
    if
    :: row == SETTLED -> heard = SETTLED
    :: row != SETTLED -> grant(t); heard = RUNNING
    fi;
    hearFence()
  };
#else
  atomic {
    FREE ->
    newToken(t);
    if
    :: haunt(CLAIM, t, UNTOLD); decideClaim(t, heard); hearFence()
    :: losses > 0 -> losses--; haunt(CLAIM, t, UNTOLD); heard = NOTHING                          /* the request was lost */
    :: losses > 0 -> losses--; haunt(CLAIM, t, UNTOLD); decideClaim(t, heard); heard = NOTHING   /* the reply was lost */
    fi
  };
#endif
  if
  :: heard == NOTHING -> goto unheard
  :: heard == RUNNING -> goto work
  :: heard == SETTLED -> atomic { tell(outcome); forgetAll(); goto done }
  :: heard == ABSENT -> atomic { forgetAll(); goto ask }
  fi;

unheard:
#ifdef BUG_RUN_UNHEARD
  goto work;
#endif
  if
  :: atomic { decideClaim(t, heard); hearFence(); haunt(CLAIM, t, UNTOLD) };    /* the driver asks again with the same token */
     if
     :: heard == RUNNING -> goto work
     :: heard == SETTLED -> atomic { tell(outcome); forgetAll(); goto done }
     :: heard == ABSENT -> atomic { forgetAll(); goto ask }
     fi
  :: atomic { haunt(FORGET, t, HEARD_FENCE); decideForget(t, HEARD_FENCE); forgetAll(); goto ask }   /* given up, and given back unheard */
  fi;

work:
  do
  :: atomic { crashes > 0 -> crashes--; forgetAll(); goto ask }
  :: atomic { failures > 0 && !began[t] -> failures--; haunt(FORGET, t, HEARD_FENCE); decideForget(t, HEARD_FENCE); forgetAll(); goto ask }
  :: atomic { failures > 0 && losses > 0 && !began[t] -> failures--; losses--; haunt(FORGET, t, HEARD_FENCE); forgetAll(); goto ask }
  :: atomic {
       !began[t] ->
       /* Nothing runs that was not granted. */
       assert(heard == RUNNING);
       began[t] = true
     }
  :: atomic {
       row == RUNNING && !alive -> haunt(EXTEND, t, HEARD_FENCE); decideExtend(t, HEARD_FENCE, heard);
       if
       :: heard == ABSENT -> goto lost
       :: heard == RUNNING -> skip
       fi
     }
  :: atomic {
       began[t] && failures > 0 -> failures--;
#ifdef BUG_FORGET_BEGUN
       decideForget(t, HEARD_FENCE);
#else
       haunt(GIVE_BACK, t, HEARD_FENCE); decideGiveBack(t, HEARD_FENCE);
#endif
       forgetAll(); goto ask
     }
  :: atomic {
       began[t] && failures > 0 && losses > 0 -> failures--; losses--;
       haunt(GIVE_BACK, t, HEARD_FENCE); forgetAll(); goto ask                     /* the release was lost, or comes late */
     }
  :: began[t] -> break
  od;

settle:
  atomic {
    if
    :: haunt(SETTLE, t, HEARD_FENCE); decideSettle(t, HEARD_FENCE, heard)
    :: losses > 0 -> losses--; haunt(SETTLE, t, HEARD_FENCE); heard = NOTHING
    :: losses > 0 -> losses--; haunt(SETTLE, t, HEARD_FENCE); decideSettle(t, HEARD_FENCE, heard); heard = NOTHING
    :: crashes > 0 -> crashes--; heard = OPEN
    fi
  };
  if
  :: heard == SETTLED -> atomic { tell(t); forgetAll(); goto done }
  :: heard == NOTHING -> goto settle                                  /* written again with the same token */
  :: heard == NOTHING -> atomic { forgetAll(); goto ask }             /* or said to be unknown, and asked again */
  :: heard == OPEN -> atomic { forgetAll(); goto ask }                /* crashed */
  :: heard == ABSENT -> goto lost
  fi;

lost:
#ifdef BUG_LOST_STILL_OK
  atomic { tell(t); forgetAll(); goto done };
#endif
  atomic { forgetAll(); goto ask };

done:
  atomic {
    finished++;
    /* When everybody has been told, there is one outcome, and nobody holds the key. */
    assert(finished < WORKERS || (row == SETTLED && outcome == told))
  }
}
