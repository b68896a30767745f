package replication

// pace remembers when and how much was appended above the high watermark: to count the bytes that a move of it makes
// readable, and how long they took. Guarded by the partition's lock.
type pace struct {
	rounds []paceRound // rounds[head:] end above the high watermark, in order
	head   int
}

// paceRound is what one call of the log appended: offsets [base, next).
type paceRound struct {
	base, next int64
	bytes      int64
	at         Instant
}

// paceRounds bounds the memory while the high watermark stands still; rounds beyond it are added to the last, so that
// only their time is lost.
const paceRounds = 1024

func (p *pace) add(r paceRound) {
	if p.head == len(p.rounds) {
		p.rounds, p.head = p.rounds[:0], 0
	} else if p.head > paceRounds {
		p.rounds = p.rounds[:copy(p.rounds, p.rounds[p.head:])]
		p.head = 0
	}
	if n := len(p.rounds); n-p.head >= paceRounds {
		p.rounds[n-1].next = r.next
		p.rounds[n-1].bytes += r.bytes
		return
	}
	p.rounds = append(p.rounds, r)
}

// passed takes out what lies below the high watermark and returns its bytes: whole rounds, of which it calls observe
// with the age, and a share of one that is passed in part.
func (p *pace) passed(highWatermark int64, now Instant, observe func(Instant)) (bytes int64) {
	for p.head < len(p.rounds) {
		r := &p.rounds[p.head]
		if r.next > highWatermark {
			if r.base < highWatermark {
				share := r.bytes * (highWatermark - r.base) / (r.next - r.base)
				r.base, r.bytes = highWatermark, r.bytes-share
				bytes += share
			}
			break
		}
		bytes += r.bytes
		observe(now - r.at)
		p.head++
	}
	return bytes
}

func (p *pace) reset() { p.rounds, p.head = p.rounds[:0], 0 }
