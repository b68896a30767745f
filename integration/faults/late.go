package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What late requests are about: records of payments, and offsets of ledger, which nobody writes to.
const (
	payments = "payments"
	ledger   = "ledger"
)

// lateClients begins the client ids of those whose requests are held here, and nowhere else.
const lateClients = "late-"

const (
	latePlayers  = 2
	latePatience = 25 * time.Second // of one attempt
	lateAttempts = 8                // leaders and coordinators die meanwhile
	lateShort    = 1500 * time.Millisecond
	lateAtTheEnd = 4 * time.Minute // for what is left when the faults are over
)

// lateNext is what the producer does before the held request arrives.
type lateNext int

const (
	lateNothing   lateNext = iota // it has not begun another transaction
	lateElsewhere                 // it has, with another partition and no group
	lateSame                      // it has, with the same partition or group
)

// lateCard is one way in which a request comes too late for its transaction.
type lateCard struct {
	key    int16 // of the request
	second bool  // the protocol of KIP-890
	// timedOut: the transaction was aborted by its timeout, not ended by its producer.
	timedOut bool
	next     lateNext
}

// hole says that the protocol lets the late request in, Apache Kafka's broker like ours: two transactions of the first protocol
// have the same producer id and epoch, and a request does not name the one it means (P7, P8; KIP-890 closed it). After a
// timeout the epoch is another one.
func (c lateCard) hole() bool {
	return !c.second && !c.timedOut && (c.next == lateSame || c.key == keyEndTxn && c.next == lateElsewhere)
}

func (c lateCard) String() string {
	protocol, end := "first protocol", "ended by its producer"
	if c.second {
		protocol = "second protocol"
	}
	if c.timedOut {
		end = "aborted by its timeout"
	}
	next := [...]string{"no other", "another one elsewhere", "another one in the same place"}[c.next]
	return fmt.Sprintf("%s, %s, past a transaction %s, %s begun", kmsg.NameForKey(c.key), protocol, end, next)
}

// row is how a card is summed up in the table.
func (c lateCard) row() string {
	return fmt.Sprintf("%-16s %s", kmsg.NameForKey(c.key), map[bool]string{false: "first protocol", true: "second protocol"}[c.second])
}

// lateCards are all there are.
func lateCards() (all []lateCard) {
	for _, key := range []int16{keyProduce, keyTxnOffsetCommit, keyEndTxn} {
		for _, second := range []bool{false, true} {
			for _, timedOut := range []bool{false, true} {
				for _, next := range []lateNext{lateNothing, lateElsewhere, lateSame} {
					all = append(all, lateCard{key, second, timedOut, next})
				}
			}
		}
	}
	return all
}

// lateDeck is what of them is still to be played, and what came of the rest.
type lateDeck struct {
	mu      sync.Mutex
	left    []lateCard
	tried   map[lateCard]int
	broken  map[lateCard]error // why the last attempt came to nothing
	verdict map[string]map[string]int
	judged  int
	cards   int
}

// newLateDeck shuffles some cards.
func newLateDeck(cards []lateCard, random *rand.Rand) *lateDeck {
	d := &lateDeck{left: slices.Clone(cards), tried: map[lateCard]int{}, broken: map[lateCard]error{}, verdict: map[string]map[string]int{}, cards: len(cards)}
	random.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	return d
}

// draw takes the next card; false: there is none.
func (d *lateDeck) draw() (c lateCard, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.left) == 0 {
		return c, false
	}
	c = d.left[0]
	d.left = d.left[1:]
	d.tried[c]++
	return c, true
}

// back takes back a card whose play came to nothing.
func (d *lateDeck) back(c lateCard, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken[c] = why
	if d.tried[c] < lateAttempts {
		d.left = append(d.left, c)
	}
}

// judge notes what a held request was answered.
func (d *lateDeck) judge(c lateCard, verdict string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.verdict[c.row()] == nil {
		d.verdict[c.row()] = map[string]int{}
	}
	d.verdict[c.row()][verdict]++
	d.judged++
	delete(d.broken, c)
}

// notes are the lines of the table.
func (d *lateDeck) notes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := []string{fmt.Sprintf("held past the end of their transactions: %d of %d ways judged", d.judged, d.cards)}
	for _, row := range slices.Sorted(maps.Keys(d.verdict)) {
		var parts []string
		for _, v := range slices.SortedFunc(maps.Keys(d.verdict[row]), func(a, b string) int {
			return cmp.Or(d.verdict[row][b]-d.verdict[row][a], cmp.Compare(a, b))
		}) {
			parts = append(parts, fmt.Sprintf("%d %s", d.verdict[row][v], v))
		}
		out = append(out, fmt.Sprintf("  %s: %s", row, strings.Join(parts, ", ")))
	}
	return out
}

// notDrawn are the cards that were never played to their end.
func (d *lateDeck) notDrawn() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.left {
		if d.broken[c] == nil {
			out = append(out, c.String())
		}
	}
	for c, why := range d.broken {
		out = append(out, fmt.Sprintf("%s (%d attempts, the last: %v)", c, d.tried[c], why))
	}
	slices.Sort(out)
	return out
}

// startLate begins to play all cards, beside the faults.
func (r *run) startLate(cards []lateCard) {
	r.late = newLateDeck(cards, rand.New(rand.NewPCG(r.seed, 11)))
	ctx, cancel := context.WithCancel(context.Background())
	r.stopLate = cancel
	for player := range latePlayers {
		r.latePlaying.Go(func() { r.playLate(ctx, player) })
	}
}

// endLate waits until every card was played, and says which were not: what was not drawn proves nothing.
func (r *run) endLate(ctx context.Context) {
	if r.late == nil {
		return
	}
	over := make(chan struct{})
	go func() {
		r.latePlaying.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(lateAtTheEnd):
	case <-ctx.Done():
	}
	r.stopLate()
	<-over
	for _, card := range r.late.notDrawn() {
		r.fail("not drawn: %s", card)
	}
	for _, line := range r.late.notes() {
		r.remark("%s", line)
	}
}

// playLate is one player: it has a partition of its own, and one for what goes elsewhere.
func (r *run) playLate(ctx context.Context, player int) {
	random := rand.New(rand.NewPCG(r.seed, uint64(player)<<8|13))
	for n := 0; ctx.Err() == nil; n++ {
		card, ok := r.late.draw()
		if !ok {
			return
		}
		r.logf("late: %s", card)
		play := latePlay{r: r, card: card, random: random, partition: int32(player % r.perTopic), elsewhere: int32((player + 1) % r.perTopic), name: fmt.Sprintf("%s%d-%d", lateClients, player, n)}
		attempt, cancel := context.WithTimeout(ctx, latePatience)
		verdict, err := play.run(attempt, fmt.Sprintf("%s%d", lateClients, player))
		cancel()
		if err != nil {
			r.logf("late: %s: %v", card, err)
			r.late.back(card, err)
			continue
		}
		r.logf("late: %s: %s", card, verdict)
		r.late.judge(card, verdict)
	}
}

// refusal says whether an error is a judgement about the late request, and not about the broker that it came to.
func refusal(err error) bool {
	var refused *kerr.Error
	return errors.As(err, &refused) && (!refused.Retriable || errors.Is(err, kerr.ConcurrentTransactions))
}
