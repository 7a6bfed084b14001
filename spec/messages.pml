/* Outbox, relay, broker and inbox as a SPIN model: what transactions add, relays publish from one shard and consumers of one partition
 * handle.
 *
 * Time is left out: the lease of a shard may end whenever the world likes, and every process may stand still between two steps, so
 * zombies of relays and consumers are covered. Requests and replies are lost, the broker duplicates and delivers from the beginning
 * again, relays and consumers crash at any step, handlers throw. Each is bounded by a number below; all orders of what is left are tried.
 * When nothing moves any more, what was committed has had its one effect, and nothing else has (process Judge).
 *
 * A partition has two consumers at any time: one of them is a zombie, and neither knows which.
 *
 * Known bugs are switched on by -DBUG_...; test/simulation/model.test.ts expects each of them to be found.
 * By hand: spin -a messages.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m100000
 */

#ifndef EVENTS
#define EVENTS 2     /* of one key; of three, the first and the last are of one key */
#endif
#define KEYS (EVENTS - 1)
#define KEY(e) (e % KEYS)
#define NOBODY 255

#ifndef RELAYS
#define RELAYS 2
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 1  /* of all transactions together; the same for those below */
#endif
#ifndef CRASHES
#define CRASHES 1    /* of relays and consumers */
#endif
#ifndef LOSSES
#define LOSSES 1     /* requests and replies: of a publish, a commit, an acknowledgement */
#endif
#ifndef LAPSES
#define LAPSES 1     /* leases that end under a relay that lives */
#endif
#ifndef DUPLICATES
#define DUPLICATES 1 /* messages that the broker has twice, and partitions that are read from the beginning again */
#endif

#define LOG 12       /* more than the bounds above can publish; asserted */

mtype = { ABSENT, ADDED, COMMITTED, ABORTED }

/* The outbox: rows, the lock of each lane, and the shard. */
mtype row[EVENTS] = ABSENT
byte position[EVENTS]
byte lane[KEYS] = NOBODY
byte sequence = 0
byte cursor[KEYS]
byte epoch = 0
bool alive = false       /* the lease of the shard */
bool orphan = false      /* its holder is dead */

/* The broker: one partition, and what is acknowledged of it. */
byte log[LOG]
byte length = 0
byte acknowledged = 0

/* The inbox: marks, and which consumer has a mark locked in its transaction. */
#ifdef BUG_ID_FROM_OFFSET
#define MARKS LOG
#define MARK(e, at) at
#else
#define MARKS EVENTS
#define MARK(e, at) e
#endif
bool marked[MARKS]
byte hands[MARKS] = NOBODY

/* What the checker knows and no process sees. */
byte rank[EVENTS]        /* which commit of its key it was */
byte commits[KEYS]
byte effects[EVENTS]
byte applied[KEYS]
byte rollbacks = ROLLBACKS
byte crashes = CRASHES
byte losses = LOSSES
byte lapses = LAPSES
byte duplicates = DUPLICATES

/* A transaction that adds one event. The position is taken under the lock of its lane, which is held to the commit: so the order of
 * positions is the order of commits. */
proctype Transaction(byte e) {
#ifndef BUG_NO_LANE_LOCK
  atomic { lane[KEY(e)] == NOBODY -> lane[KEY(e)] = e };
#endif
  atomic { sequence++; position[e] = sequence; row[e] = ADDED };
  if
  :: atomic { row[e] = COMMITTED; commits[KEY(e)]++; rank[e] = commits[KEY(e)]; lane[KEY(e)] = NOBODY }
  :: atomic { rollbacks > 0 -> rollbacks--; row[e] = ABORTED; lane[KEY(e)] = NOBODY }
  fi
}

#ifdef BUG_READS_UNCOMMITTED
#define VISIBLE(e) (row[e] == ADDED || row[e] == COMMITTED)
#else
#define VISIBLE(e) (row[e] == COMMITTED)
#endif
#define UNSENT(e) (VISIBLE(e) && position[e] > known[KEY(e)])
/* Of one key the one with the lower position comes first. */
#define BEFORE(e, f) (KEY(f) == KEY(e) && UNSENT(f) && position[f] < position[e])
#if EVENTS == 2
#define HEAD(e) (UNSENT(e) && !BEFORE(e, 0) && !BEFORE(e, 1))
#define ANY_HEAD (HEAD(0) || HEAD(1))
#else
#define HEAD(e) (UNSENT(e) && !BEFORE(e, 0) && !BEFORE(e, 1) && !BEFORE(e, 2))
#define ANY_HEAD (HEAD(0) || HEAD(1) || HEAD(2))
#endif

inline append(e) {
  assert(length < LOG);
  log[length] = e;
  length++
}

inline choose(e) {
  if
  :: HEAD(0) -> e = 0
  :: HEAD(1) -> e = 1
#if EVENTS == 3
  :: HEAD(2) -> e = 2
#endif
  fi
}

/* Marks what was sent in the statement that checks the epoch. */
inline mark(e, mine, heard) {
  if
#ifdef BUG_NO_EPOCH
  :: true ->
#else
  :: epoch == mine ->
#endif
     /* Nobody but the holder of the shard moves a cursor, so it never goes back. */
     assert(position[e] > cursor[KEY(e)]);
     cursor[KEY(e)] = position[e];
     known[KEY(e)] = position[e];
     heard = true
#ifndef BUG_NO_EPOCH
  :: epoch != mine -> heard = false
#endif
  fi
}

proctype Relay() {
  byte known[KEYS];
  byte mine = 0;
  byte e = 0;
  bool heard = false;

end_take:
  atomic {
    !alive ->
    epoch++; mine = epoch; alive = true; orphan = false;
    known[0] = cursor[0]; known[KEYS - 1] = cursor[KEYS - 1]
  };

end_work:
  if
  :: atomic { ANY_HEAD -> choose(e) }
  :: atomic { epoch != mine -> goto forget }
  fi;
#ifdef BUG_MARK_BEFORE_SEND
  atomic { mark(e, mine, heard); if :: heard -> skip :: !heard -> goto forget fi };
#endif
  if
  :: atomic { append(e) }
  :: atomic { duplicates > 0 -> duplicates--; append(e); append(e) }
#ifdef BUG_FAILED_HEAD_SKIPPED
  :: atomic { losses > 0 -> losses--; known[KEY(e)] = position[e]; goto end_work }
#else
  :: atomic { losses > 0 -> losses--; goto end_work }                 /* the request was lost */
#endif
  :: atomic { losses > 0 -> losses--; append(e); goto end_work }      /* the reply was lost */
  :: atomic { crashes > 0 -> crashes--; goto dead }
  fi;
#ifndef BUG_MARK_BEFORE_SEND
  if
  :: atomic { mark(e, mine, heard); if :: heard -> skip :: !heard -> goto forget fi }
  :: atomic { losses > 0 -> losses--; mark(e, mine, heard); goto forget }   /* it does not know, and reads the cursor anew */
  :: atomic { crashes > 0 -> crashes--; goto dead }
  fi;
#endif
  atomic { e = 0; heard = false; goto end_work };

dead:
  atomic { orphan = (epoch == mine -> true : orphan) };
forget:
  atomic {
    /* Who gives up lets its lease run out. */
    orphan = (epoch == mine -> true : orphan);
    known[0] = 0; known[KEYS - 1] = 0; mine = 0; e = 0; heard = false;
    goto end_take
  }
}

/* Leases end: under the living a few times, under the dead always. */
proctype Clock() {
end:
  do
  :: atomic { alive && orphan -> alive = false; orphan = false }
  :: atomic { alive && !orphan && lapses > 0 -> lapses--; alive = false }
  od
}

inline commit(e, m) {
  marked[m] = true;
  effects[e]++;
  /* One effect; of what was committed; in the order of commits of its key. */
  assert(effects[e] == 1);
  assert(row[e] == COMMITTED);
  applied[KEY(e)]++;
  assert(rank[e] == applied[KEY(e)])
}

proctype Consumer(byte me) {
  byte at = 0;
  byte e = 0;
  byte m = 0;

end_read:
  if
  :: atomic { at < length -> e = log[at]; m = MARK(log[at], at) }
  :: atomic { duplicates > 0 && at > 0 -> duplicates--; at = 0; goto end_read }     /* the partition is read again */
  fi;
#ifdef BUG_ACKNOWLEDGED_FIRST
  atomic { acknowledged = (at + 1 > acknowledged -> at + 1 : acknowledged) };
#endif
#ifdef BUG_NO_MARK
  goto handle;
#endif
  /* What another has in its hands is waited for: it comes again, and what comes after it of its key does not begin. */
  if
  :: atomic { hands[m] == NOBODY && marked[m] -> goto acknowledge }
#ifdef BUG_LOOKED_AT_BEFORE
  :: atomic { hands[m] == NOBODY && !marked[m] -> skip }
#else
  :: atomic { hands[m] == NOBODY && !marked[m] -> hands[m] = me }
#endif
#ifdef BUG_AROUND_OTHERS
  :: atomic { hands[m] != NOBODY && hands[m] != me -> goto pass }
#endif
  fi;
handle:
#ifdef BUG_MARKED_EARLIER
  atomic { marked[m] = true; hands[m] = NOBODY };
#endif
  if
  :: atomic { commit(e, m); hands[m] = NOBODY }
#ifdef BUG_MARKED_LATER
     atomic { marked[m] = false };
     if
     :: atomic { marked[m] = true }
     :: atomic { crashes > 0 -> crashes--; goto dead }
     fi
#endif
  :: atomic { losses > 0 -> losses--; commit(e, m); hands[m] = NOBODY; goto end_read }   /* COMMIT had no answer: it comes again */
  :: atomic { losses > 0 -> losses--; hands[m] = NOBODY; goto end_read }                 /* COMMIT was lost, or the handler threw */
  :: atomic { crashes > 0 -> crashes--; goto dead }
  fi;
acknowledge:
  if
  :: atomic { acknowledged = (at + 1 > acknowledged -> at + 1 : acknowledged) }
  :: atomic { losses > 0 -> losses--; skip }
  :: atomic { crashes > 0 -> crashes--; goto dead }
  fi;
pass:
  atomic { at++; e = 0; m = 0; goto end_read };

dead:
  /* The database rolls back what a dead consumer had open, and the next one begins with what is not acknowledged. */
  atomic {
    hands[m] = (hands[m] == me -> NOBODY : hands[m]);
    at = acknowledged; e = 0; m = 0;
    goto end_read
  }
}

/* When nothing moves any more: what was committed has its effect. */
proctype Judge() {
  byte e = 0;
  timeout;
  do
  :: atomic { e < EVENTS -> assert(row[e] != COMMITTED || effects[e] == 1); e++ }
  :: e == EVENTS -> break
  od
}

init {
  byte each = 0;
  atomic {
    do
    :: each < EVENTS -> run Transaction(each); each++
    :: each == EVENTS -> break
    od;
    each = 0;
    do
    :: each < RELAYS -> run Relay(); each++
    :: each == RELAYS -> break
    od;
    each = 0;
    do
    :: each < CONSUMERS -> run Consumer(each); each++
    :: each == CONSUMERS -> break
    od;
    each = 0;
    run Clock();
    run Judge()
  }
}
