package record

// Record is one record of a batch. Its slices alias the batch, or a buffer that
// is reused for the next record.
type Record struct {
	Attributes     int8   // unused by the protocol so far
	TimestampDelta int64  // ms, relative to the batch's BaseTimestamp
	OffsetDelta    int32  // relative to the batch's BaseOffset
	Key, Value     []byte // nil = null, which differs from empty
	Headers        []RecordHeader
}

// RecordHeader is one application header of a record (KIP-82).
type RecordHeader struct {
	Key   []byte // never null
	Value []byte // nil = null
}

// fields is a decoded record with its headers checked but left in their bytes.
type fields struct {
	attributes     int8
	timestampDelta int64
	offsetDelta    int32
	key, value     []byte // nil = null
	headerCount    int32
	headers        []byte
}

// decode takes a record apart; body is its bytes without the length in front.
// It returns "" or what is wrong. No length in body is trusted: each is held
// against the bytes that follow it, and each header takes two bytes at least.
func (f *fields) decode(body []byte) string {
	if len(body) < minRecordBytes-1 {
		return "record is shorter than its fixed fields"
	}
	f.attributes = int8(body[0])
	at, n := 1, 1
	if body[at] < 0x80 {
		f.timestampDelta = int64(unzigzag(body[at]))
	} else if f.timestampDelta, n = readVarlong(body[at:]); n <= 0 {
		return "bad timestamp delta"
	}
	at += n
	if at < len(body) && body[at] < 0x80 {
		f.offsetDelta, n = unzigzag(body[at]), 1
	} else if f.offsetDelta, n = readVarint(body[at:]); n <= 0 {
		return "bad offset delta"
	}
	at += n
	if f.key, n = readBytes(body[at:]); n <= 0 {
		return "key exceeds its record"
	}
	at += n
	if f.value, n = readBytes(body[at:]); n <= 0 {
		return "value exceeds its record"
	}
	at += n
	if at == len(body)-1 && body[at] == 0 { // the usual end: no headers
		f.headerCount, f.headers = 0, nil
		return ""
	}
	if f.headerCount, n = readVarint(body[at:]); n <= 0 {
		return "bad header count"
	}
	f.headers = body[at+n:]
	return checkHeaders(f.headers, f.headerCount)
}

// checkHeaders walks count headers, which must fill b exactly.
func checkHeaders(b []byte, count int32) string {
	if count < 0 || int64(count)*2 > int64(len(b)) {
		return "header count does not fit the record"
	}
	for ; count > 0; count-- {
		key, n := readBytes(b)
		if n <= 0 || key == nil {
			return "bad header key"
		}
		b = b[n:]
		if _, n = readBytes(b); n <= 0 {
			return "header value exceeds its record"
		}
		b = b[n:]
	}
	if len(b) != 0 {
		return "bytes after the last header of a record"
	}
	return ""
}

// appendHeaders appends the headers of f, which decode has checked, to dst.
func (f *fields) appendHeaders(dst []RecordHeader) []RecordHeader {
	b := f.headers
	for i := int32(0); i < f.headerCount; i++ {
		key, n := readBytes(b)
		b = b[n:]
		value, n := readBytes(b)
		b = b[n:]
		dst = append(dst, RecordHeader{Key: key, Value: value})
	}
	return dst
}

// readBytes reads a length and that many bytes; length -1 is null. It returns
// the bytes and the number of bytes used including the length, ≤ 0 if the
// length is bad or exceeds b.
func readBytes(b []byte) ([]byte, int) {
	var length int32
	n := 1
	if len(b) > 0 && b[0] < 0x80 {
		length = unzigzag(b[0])
	} else {
		length, n = readVarint(b)
	}
	if n <= 0 || length < 0 {
		if length == -1 && n > 0 {
			return nil, n
		}
		return nil, -1
	}
	if int(length) > len(b)-n {
		return nil, -1
	}
	end := n + int(length)
	return b[n:end:end], end
}

// appendRecord appends one encoded record, its length in front.
func appendRecord(dst []byte, timestampDelta int64, offsetDelta int32, key, value []byte, headers []RecordHeader) []byte {
	size := 1 + varintLen(timestampDelta) + varintLen(int64(offsetDelta)) + bytesLen(key) + bytesLen(value) + varintLen(int64(len(headers)))
	for i := range headers {
		size += varintLen(int64(len(headers[i].Key))) + len(headers[i].Key) + bytesLen(headers[i].Value)
	}
	dst = appendVarint(dst, int64(size))
	dst = append(dst, 0) // attributes
	dst = appendVarint(dst, timestampDelta)
	dst = appendVarint(dst, int64(offsetDelta))
	dst = appendBytes(dst, key)
	dst = appendBytes(dst, value)
	dst = appendVarint(dst, int64(len(headers)))
	for i := range headers {
		dst = appendVarint(dst, int64(len(headers[i].Key)))
		dst = append(dst, headers[i].Key...)
		dst = appendBytes(dst, headers[i].Value)
	}
	return dst
}

func bytesLen(b []byte) int {
	if b == nil {
		return 1
	}
	return varintLen(int64(len(b))) + len(b)
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 1) // -1
	}
	dst = appendVarint(dst, int64(len(b)))
	return append(dst, b...)
}
