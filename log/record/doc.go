// Package record reads, checks, builds and rewrites Kafka record batches of
// format version 2: bytes in, bytes out.
//
// # Layout
//
// All integers are big endian. length counts the bytes after itself, that is
// from leaderEpoch to the end of the batch.
//
//	 0        8       12           16    17    21         23
//	+--------+-------+------------+-----+-----+----------+-----------------+
//	| base   | length| leader     |magic| crc | attri-   | lastOffsetDelta |
//	| Offset |       | Epoch      | = 2 |     | butes    |                 |
//	|  i64   |  i32  |  i32       | i8  | u32 |  i16     |  i32            |
//	+--------+-------+------------+-----+-----+----------+-----------------+
//	27            35            43         51            53             57
//	+-------------+-------------+----------+-------------+--------------+---
//	| base        | max         | producer | producer    | baseSequence |
//	| Timestamp   | Timestamp   | ID       | Epoch       |              |
//	|  i64 (ms)   |  i64 (ms)   |  i64     |  i16        |  i32         |
//	+-------------+-------------+----------+-------------+--------------+---
//	57            61                                      12+length
//	+-------------+---------------------------------------+
//	| recordCount | records, or one compressed blob       |
//	|  i32        |                                       |
//	+-------------+---------------------------------------+
//
//	attributes: bits 0-2 codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd),
//	            bit 3 timestamp type (1 = log append time), bit 4 transactional,
//	            bit 5 control, bit 6 delete horizon
//
// crc is CRC-32C (Castagnoli) over bytes 21 to the end. baseOffset, length,
// leaderEpoch and magic lie before it, so a leader stamps offset and epoch in
// place without touching the checksum.
//
// One record inside the (decompressed) blob; varint is zigzag, null is length -1:
//
//	length varint | attributes i8 | timestampDelta varlong | offsetDelta varint |
//	keyLength varint | key | valueLength varint | value | headerCount varint |
//	{ keyLength varint | key | valueLength varint | value } ...
//
// # What it promises
//
//   - The hot path never touches a record: [Next], [ParseHeader], the accessors
//     of [Batch], [Batch.CheckCRC] and the raw path of [Validate] allocate
//     nothing and look at the header and the checksum alone.
//   - One decoder (trap L22): recovery, fetch, replication and compaction all
//     frame batches with [Next] or [ParseHeader] and trust them after
//     [Batch.Check]; nothing else in the program knows the layout.
//   - No length read from a batch is trusted (trap N4): a length is compared
//     with the bytes that are really there before anything is allocated.
//   - Decompression is streamed and bounded (trap N5): memory follows the
//     largest single record, not the decompressed size, and more than the
//     limit ends in [ErrDecompressedTooLarge].
//   - No input makes a function of this package panic.
//
// # Who calls it
//
// transport/kafka validates what producers send, log appends, scans and
// searches, replication checks what it fetched, tools print. The package starts
// no goroutine, opens no file, reads no clock, and keeps no state apart from
// pools of buffers, compressors and decompressors.
//
// # Ownership
//
// A [Batch] is a view of the caller's bytes. [Next] and [Validate] return views
// of their input (Validate patches it in place where timestamps must change,
// and returns fresh memory only when the topic demands another codec). The key,
// value and headers of a [Record] passed to a callback are valid only during
// that call.
package record
