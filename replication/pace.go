package replication

// pace remembers when and how much was appended above the high watermark: to count the bytes that a move of it makes readable, and how long they took. Guarded by the
// partition's lock.
type pace struct {
	rounds []paceRound // rounds[head:] lie above the high watermark
	head   int
}

type paceRound struct {
	next  int64 // exclusive end of the round
	bytes int64
	at    Instant
}

// paceRounds bounds the memory while the high watermark stands still; rounds beyond it are added to the last, so that only their time is lost.
const paceRounds = 1024

func (p *pace) add(next, bytes int64, at Instant) {
	if p.head == len(p.rounds) {
		p.rounds, p.head = p.rounds[:0], 0
	} else if p.head > paceRounds {
		p.rounds = p.rounds[:copy(p.rounds, p.rounds[p.head:])]
		p.head = 0
	}
	if n := len(p.rounds); n-p.head >= paceRounds {
		p.rounds[n-1].next = next
		p.rounds[n-1].bytes += bytes
		return
	}
	p.rounds = append(p.rounds, paceRound{next, bytes, at})
}

// passed removes the rounds below the high watermark, calls observe with the age of each, and returns their bytes.
func (p *pace) passed(highWatermark int64, now Instant, observe func(Instant)) (bytes int64) {
	for p.head < len(p.rounds) && p.rounds[p.head].next <= highWatermark {
		bytes += p.rounds[p.head].bytes
		observe(now - p.rounds[p.head].at)
		p.head++
	}
	return bytes
}

func (p *pace) reset() { p.rounds, p.head = p.rounds[:0], 0 }
