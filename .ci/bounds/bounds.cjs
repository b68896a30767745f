// Bounds each check of the Node suite to CHECK_LIMIT seconds: its own bound is a minute, which every check that needs a
// group or a transaction waits out.
const limit = +(process.env.CHECK_LIMIT || 0)
if (limit && (process.argv[1] || '').endsWith('kafkajs_checks.js')) {
  const plain = global.setTimeout
  global.setTimeout = (f, ms, ...args) => plain(f, ms === 60000 ? limit * 1000 : ms, ...args)
}
