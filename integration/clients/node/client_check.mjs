// The Node clients behind the line protocol of the client tests (see ../README.md). They consume in groups only, so that
// another client reads back what they produce.
// usage: node client_check.mjs kafkajs|platformatic HOST:PORT
import { readFileSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import zlib from 'node:zlib'
import * as zstd from '@bokuweb/zstd-wasm'

const [library, bootstrap] = process.argv.slice(2)
const BATCH = 700_000 // bytes: both send what they are given as one batch, which must stay below the broker's limit

await zstd.init()
// Node before 22.15 has no zstd of its own; the clients put what comes out into frames of their own making.
zlib.zstdCompressSync ??= data => Buffer.from(zstd.compress(data, 3))
zlib.zstdDecompressSync ??= data => Buffer.from(zstd.decompress(data))

const encode = b => (b == null ? '-' : Buffer.from(b).toString('base64'))
const lineOf = (offset, timestamp, key, value) => [offset, timestamp, encode(key), encode(value)].join('\t') + '\n'

// enough resolves once n lines were taken, and fails when nothing more comes.
function enough (n) {
  const lines = []
  let done, timer
  const all = new Promise((resolve, reject) => {
    done = resolve
    timer = setTimeout(() => reject(new Error(`${lines.length} of ${n} records came in time`)), 60_000)
  })
  const take = line => {
    if (lines.length === n) return false
    if (lines.push(line) === n) { clearTimeout(timer); done(lines) }
    return true
  }
  return { all, take }
}

const decode = s => (s === '-' ? null : Buffer.from(s, 'base64'))

function load (file) {
  return readFileSync(file, 'utf8').split('\n').filter(Boolean).map(line => {
    const f = line.split('\t')
    const headers = []
    for (let i = 4; i < f.length; i += 2) headers.push([f[i], decode(f[i + 1])])
    return { timestamp: f[1], key: decode(f[2]), value: decode(f[3]), headers, size: 70 + line.length }
  })
}

function * batches (records) {
  let batch = []
  let size = 0
  for (const r of records) {
    if (batch.length && size + r.size > BATCH) {
      yield batch
      batch = []
      size = 0
    }
    batch.push(r)
    size += r.size
  }
  if (batch.length) yield batch
}

async function kafkajs () {
  const { default: lib } = await import('kafkajs')
  const { default: snappy } = await import('kafkajs-snappy')
  const { lz4Compress, lz4Decompress } = await import('@platformatic/wasm-utils')
  const { CompressionTypes: T, CompressionCodecs } = lib
  CompressionCodecs[T.Snappy] = snappy
  CompressionCodecs[T.LZ4] = () => ({ compress: async e => lz4Compress(e.buffer), decompress: async b => lz4Decompress(b) })
  CompressionCodecs[T.ZSTD] = () => ({ compress: async e => zlib.zstdCompressSync(e.buffer), decompress: async b => zlib.zstdDecompressSync(b) })
  const types = { none: T.None, gzip: T.GZIP, snappy: T.Snappy, lz4: T.LZ4, zstd: T.ZSTD }
  const kafka = new lib.Kafka({ brokers: [bootstrap], logLevel: lib.logLevel.NOTHING, retry: { retries: 3 } })
  const during = async (client, work) => {
    await client.connect()
    try { return await work(client) } finally { await client.disconnect() }
  }
  return {
    metadata: topic => during(kafka.admin(), async a => (await a.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length),
    create: (topic, n) => during(kafka.admin(), a => a.createTopics({ topics: [{ topic, numPartitions: +n }], waitForLeaders: true })),
    delete: topic => during(kafka.admin(), a => a.deleteTopics({ topics: [topic] })),
    offset: (topic, partition, at) => during(kafka.admin(), async a => {
      if (+at < 0) {
        const p = (await a.fetchTopicOffsets(topic)).find(p => p.partition === +partition)
        return +at === -1 ? p.high : p.low
      }
      return (await a.fetchTopicOffsetsByTimestamp(topic, +at)).find(p => p.partition === +partition).offset
    }),
    produce: (topic, partition, codec, idempotent, file) => during(kafka.producer({ idempotent: idempotent === 'true', maxInFlightRequests: 1 }), async p => {
      for (const batch of batches(load(file))) {
        const messages = batch.map(r => {
          const headers = {}
          for (const [k, v] of r.headers) headers[k] = k in headers ? [].concat(headers[k], v) : v
          return { partition: +partition, timestamp: r.timestamp, key: r.key, value: r.value, headers }
        })
        await p.send({ topic, messages, compression: types[codec], acks: -1 })
      }
    }),
    group: (groupId, protocol, topic, n, file) => during(kafka.consumer({ groupId, maxWaitTimeInMs: 200 }), async c => {
      const { all, take } = enough(+n)
      const next = new Map()
      await c.subscribe({ topic, fromBeginning: true })
      await c.run({
        autoCommit: false,
        eachMessage: async ({ partition, message: m }) => {
          if (take(lineOf(m.offset, m.timestamp, m.key, m.value))) next.set(partition, (BigInt(m.offset) + 1n).toString())
        }
      })
      writeFileSync(file, (await all).join(''))
      await c.commitOffsets([...next].map(([partition, offset]) => ({ topic, partition, offset })))
    })
  }
}

async function platformatic () {
  const k = await import('@platformatic/kafka')
  const base = { clientId: 'client-check', bootstrapBrokers: [bootstrap], retries: 3 }
  const during = async (client, work) => {
    try { return await work(client) } finally { await client.close() }
  }
  return {
    metadata: topic => during(new k.Admin(base), async a => (await a.metadata({ topics: [topic], forceUpdate: true })).topics.get(topic).partitionsCount),
    create: (topic, n) => during(new k.Admin(base), a => a.createTopics({ topics: [topic], partitions: +n, replicas: 1 })),
    delete: topic => during(new k.Admin(base), a => a.deleteTopics({ topics: [topic] })),
    offset: (topic, partition, at) => during(new k.Admin(base), async a => {
      const listed = await a.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex: +partition, timestamp: BigInt(at) }] }] })
      return listed[0].partitions[0].offset
    }),
    produce: (topic, partition, codec, idempotent, file) => during(new k.Producer({ ...base, compression: codec, idempotent: idempotent === 'true' }), async p => {
      for (const batch of batches(load(file))) {
        const messages = batch.map(r => ({
          topic, partition: +partition, timestamp: BigInt(r.timestamp), key: r.key, value: r.value,
          headers: new Map(r.headers.map(([key, v]) => [Buffer.from(key), v])) // keyed by object, so that a name may come twice
        }))
        await p.send({ messages, acks: -1 })
      }
    }),
    group: async (groupId, groupProtocol, topic, n, file) => {
      const c = new k.Consumer({ ...base, groupId, groupProtocol })
      try {
        const { all, take } = enough(+n)
        const next = new Map()
        const s = await c.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false, maxWaitTime: 200 })
        s.on('error', () => {})
        s.on('data', m => { if (take(lineOf(m.offset, m.timestamp, m.key, m.value))) next.set(m.partition, m) })
        writeFileSync(file, (await all).join(''))
        await c.commit({ offsets: [...next.values()].map(m => ({ topic, partition: m.partition, offset: m.offset + 1n, leaderEpoch: -1 })) })
      } finally { await c.close(true) }
    }
  }
}

// everything tells an error and what caused it in one line.
function everything (e) {
  return [e, ...(e.errors ?? []), e.cause].filter(Boolean).map(x => `${x.name}: ${x.message}` + (x.apiId ? ` (${x.apiId})` : '') + (x !== e && (x.errors || x.cause) ? ' ' + everything(x) : '')).join('; ').replace(/\s+/g, ' ')
}

const client = await { kafkajs, platformatic }[library]()
for await (const line of createInterface({ input: process.stdin })) {
  const [op, ...args] = line.split('\t')
  try {
    console.log(`ok\t${(await client[op](...args)) ?? ''}`)
  } catch (e) {
    console.log(`error\t${everything(e)}`)
  }
}
process.exit(0)
