// What the Java machine runs to be our MongoDB: mongo-java-server on its H2 file, put together in JavaScript (Rhino), as its own
// main() has a fixed port. Some things are added in front of it. A reply leaves after its data is in the file, as with j: true.
// Its clock can be set: what a command takes from the server's clock ($$NOW, $currentDate) is then taken from there, as Java's
// own cannot be set. It tells what it leaves out: `hello`, and the collation that a collection was created with. And it can
// pretend to be what it is not: a mongos, or a primary whose writes no majority has yet.

export interface ProgramPlace {
  readonly port: number
  readonly dataFile: string
  // Survives a crash of the server, as a clock does.
  readonly clockFile: string
}

/**
 * `{ onceonlyTest: 1, nowMs, helloMessage, majority }` stops the clock there, says what `hello` says it is (`isdbgrid`: a
 * mongos), and lets a majority have everything ('has all') or not yet anything ('has nothing').
 */
export function programOf(place: ProgramPlace): string {
  return `var place = ${JSON.stringify(place)}\n${program}`
}

// Wire version 9 is that of MongoDB 4.4, the oldest that the driver speaks to; the server itself claims 8.
const program = `
var Document = Packages.de.bwaldvogel.mongo.bson.Document
var Files = java.nio.file.Files
var clockPath = java.nio.file.Path.of(place.clockFile)
var nowMs = Files.exists(clockPath) ? Number(Files.readString(clockPath)) : undefined
var helloMessage
var majority = 'has all'
var collations = new java.util.concurrent.ConcurrentHashMap()
var compactMsMax = 2000
var store = new Packages.org.h2.mvstore.MVStore.Builder().fileName(place.dataFile).autoCommitDisabled().open()
var saving = new java.util.concurrent.locks.ReentrantLock()
// Nothing else makes room in the file, now that nothing is saved in the background.
store.compactFile(compactMsMax)

function integer(value) { return java.lang.Integer.valueOf(value) }

function okay() { var reply = new Document(); reply.put('ok', integer(1)); return reply }

function setUp(command) {
  if (command.containsKey('helloMessage')) helloMessage = String(command.get('helloMessage'))
  if (command.containsKey('majority')) majority = String(command.get('majority'))
  if (command.containsKey('nowMs')) {
    nowMs = Number(command.get('nowMs'))
    Files.writeString(clockPath, String(nowMs))
  }
  return okay()
}

function withTime(value, now) {
  if (value instanceof java.util.List) {
    var list = new java.util.ArrayList()
    value.toArray().forEach(function (each) { list.add(withTime(each, now)) })
    return list
  }
  if (value instanceof java.util.Map) {
    var result = new Document()
    var dated = value.get('$currentDate')
    value.keySet().toArray().forEach(function (name) {
      if (name != '$currentDate') result.put(name, withTime(value.get(name), now))
    })
    if (dated) {
      if (!result.containsKey('$set')) result.put('$set', new Document())
      dated.keySet().toArray().forEach(function (name) { result.get('$set').put(name, now) })
    }
    return result
  }
  return value == '$$NOW' ? now : value
}

function tellCollations(reply) {
  reply.get('cursor').get('firstBatch').toArray().forEach(function (each) {
    var collation = collations.get(each.get('name'))
    if (collation) each.get('options').put('collation', collation)
  })
  return reply
}

function carryOut(backend, message) {
  var command = message.getDocument()
  var name = String(command.keySet().iterator().next())
  if (name == 'onceonlyTest') return setUp(command)
  if (name == 'create' && command.get('collation')) collations.put(command.get('create'), command.get('collation'))
  var database = message.getDatabaseName()
  if (name == 'hello') {
    var hello = backend.handleCommand(message.getChannel(), database, 'ismaster', command)
    if (helloMessage) hello.put('msg', helloMessage)
    if (nowMs !== undefined) hello.put('localTime', java.time.Instant.ofEpochMilli(nowMs))
    return hello
  }
  var concern = command.get('readConcern')
  if (majority == 'has nothing' && concern && concern.get('level') == 'majority') {
    command.put('pipeline', java.util.List.of(new Document('$match', new Document('_id', 'nothing'))))
  }
  if (nowMs !== undefined) command = withTime(command, java.time.Instant.ofEpochMilli(nowMs))
  var reply = backend.handleCommand(message.getChannel(), database, name, command)
  return name == 'listCollections' ? tellCollations(reply) : reply
}

// One at a time: a change is no longer called unsaved as soon as somebody begins to save it, and a store whose file could not grow
// calls nothing unsaved at all.
function save() {
  saving.lock()
  try {
    if (store.isClosed()) throw new java.lang.IllegalStateException('the file is closed')
    if (store.hasUnsavedChanges()) store.commit()
  } finally {
    saving.unlock()
  }
}

function refusal(error) {
  var reply = new Document()
  reply.put('ok', integer(0))
  reply.put('errmsg', error.getMessageWithoutErrorCode ? error.getMessageWithoutErrorCode() : String(error))
  if (error.getCode) reply.put('code', integer(error.getCode()))
  return reply
}

var backend = new JavaAdapter(Packages.de.bwaldvogel.mongo.backend.h2.H2Backend, {
  handleMessage: function (message) {
    try {
      return carryOut(this, message)
    } catch (error) {
      return refusal(error.javaException || error)
    } finally {
      save()
    }
  }
}, store)
backend.version(new JavaAdapter(Packages.de.bwaldvogel.mongo.MongoVersion, {
  getVersionArray: function () { return java.util.List.of(integer(4), integer(4), integer(0)) },
  getWireVersion: function () { return 9 }
}))
new Packages.de.bwaldvogel.mongo.MongoServer(backend).bind('127.0.0.1', place.port)
`
