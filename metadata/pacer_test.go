package metadata

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// What is paced never works on for much longer than paceWork, and for its part of the time only.
func TestPacerRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const piece, pieces, parts = 100 * time.Microsecond, 1000, 4
		p := NewPacer(parts, make(chan struct{}))
		begun := time.Now()
		var stretch, longest time.Duration
		for range pieces {
			time.Sleep(piece) // works
			stretch += piece
			longest = max(longest, stretch)
			before := time.Now()
			p.Breathe()
			if time.Since(before) > 0 {
				stretch = 0
			}
		}
		require.LessOrEqual(t, longest, paceWork+piece)
		require.InDelta(t, float64(parts*piece*pieces), float64(time.Since(begun)), float64(parts*paceWork))
	})
}

// On a machine that is busy with other things each piece seems to take long: rests are bounded, each and in all.
func TestPacerComesToAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(4, nil)
		var rested time.Duration
		for range 1000 {
			time.Sleep(50 * time.Millisecond)
			before := time.Now()
			p.Breathe()
			require.LessOrEqual(t, time.Since(before), paceRest)
			rested += time.Since(before)
		}
		require.Equal(t, paceTotal, rested)
	})
}

// Who closes does not wait for rests, not even for one that has begun.
func TestPacerHurries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hurry := make(chan struct{})
		p := NewPacer(20, hurry)
		time.AfterFunc(2*time.Millisecond, func() { close(hurry) })
		begun := time.Now()
		p.Breathe()
		time.Sleep(time.Millisecond)
		p.Breathe()
		require.Equal(t, 2*time.Millisecond, time.Since(begun))
		time.Sleep(time.Second)
		before := time.Now()
		p.Breathe()
		require.Zero(t, time.Since(before))
	})
	var none *Pacer
	none.Breathe()
}

// slowSink takes time to write, and does something else meanwhile.
type slowSink struct {
	bytes.Buffer
	meanwhile func()
}

func (s *slowSink) Write(b []byte) (int, error) {
	time.Sleep(2 * time.Millisecond)
	s.meanwhile()
	return s.Buffer.Write(b)
}

func (s *slowSink) ID() string    { return "slow" }
func (s *slowSink) Cancel() error { return nil }
func (s *slowSink) Close() error  { return nil }

// M3: a snapshot that is written with rests while entries are applied is the one of the state that it was taken of, byte for
// byte, and it is written with rests indeed, until the broker closes.
func TestSnapshotIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := bigFSM(t, 1, 1000, 3)
		topic := f.st.topic("topic-00000000")
		f.st = fillOffsets(f.st, topic, 100, 300)
		hurry := make(chan struct{})
		f.published, f.hurry = func(*state, uint64) {}, hurry
		want := snapshotBytes(t, f.st, f.index)
		f.batches = 1
		applied := 0
		sink := &slowSink{}
		sink.meanwhile = func() {
			name := fmt.Sprintf("consumer-group-%06d", applied%100)
			by, epoch := f.by(name)
			c := &commitOffsets{broker: by, epoch: epoch, coordinatorEpoch: f.st.coordinatorEpoch, sequence: uint64(applied + 1)}
			c.commits = []OffsetCommit{{Group: name, Generation: -1, Time: 5, Offsets: entriesFor(topic.ID, 300, int64(applied)+1<<40)}}
			v, err := f.do(c)
			require.NoError(t, err)
			require.NoError(t, v.([]commitOutcome)[0].err)
			applied++
		}
		snapshot, err := f.Snapshot()
		require.NoError(t, err)
		begun := time.Now()
		require.NoError(t, snapshot.Persist(sink))
		paced := time.Since(begun)
		require.Positive(t, applied)
		require.True(t, bytes.Equal(want, sink.Bytes()))
		require.NotEqual(t, want, snapshotBytes(t, f.st, f.index), "something was applied")
		work := 2 * time.Millisecond * time.Duration(applied)
		require.GreaterOrEqual(t, paced, work*(snapshotWriteParts-1))

		close(hurry)
		snapshot, err = f.Snapshot()
		require.NoError(t, err)
		applied, sink.meanwhile = 0, func() { applied++ }
		begun = time.Now()
		require.NoError(t, snapshot.Persist(sink))
		require.Equal(t, 2*time.Millisecond*time.Duration(applied), time.Since(begun))
	})
}

// slowReader takes time to read.
type slowReader struct{ io.Reader }

func (r slowReader) Read(b []byte) (int, error) {
	time.Sleep(2 * time.Millisecond)
	return r.Reader.Read(b)
}

// A snapshot that another broker sends is read with rests too; one that a broker starts from is not.
func TestRestoreIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := bigFSM(t, 1, 1000, 3)
		f.st = fillOffsets(f.st, f.st.topic("topic-00000000"), 100, 300)
		encoded := snapshotBytes(t, f.st, f.index)
		took := func(hurry chan struct{}) time.Duration {
			g := newTestFSM(t)
			g.hurry = hurry
			begun := time.Now()
			require.NoError(t, g.Restore(io.NopCloser(slowReader{bytes.NewReader(encoded)})))
			require.Equal(t, stateHash(f.st, f.index), stateHash(g.st, g.index))
			return time.Since(begun)
		}
		atOnce := took(nil)
		require.GreaterOrEqual(t, took(make(chan struct{})), atOnce*3/2)
	})
}

var _ raft.SnapshotSink = (*slowSink)(nil)
