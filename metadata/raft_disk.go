package metadata

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// A disk that hangs takes a write and does not come back with it: for the length of a failover of a storage array, or for ever. Raft
// writes from the goroutine that does all else a leader does, while its heartbeats go out from others. So a leader whose disk
// hangs would keep its lead, and commit nothing: what is asked of it waits, on all brokers. Nor can Raft give the lead away then.
//
// So a leader whose write has been under way for diskHangsAfter falls silent: what it would send to followers is refused here, and
// they elect another one. It is the controller no longer, and says so to those who ask; and it sends no heartbeats
// of its broker, as no broker does whose disk hangs: it applies nothing any more, so that its partitions and groups are
// better off elsewhere. A follower whose disk hangs is missed by nobody while there is a majority without it.
//
// When the write comes back all goes on: Raft finds that it has lost the lead or, when nobody could take it over, that it has it still.
// Nothing of this is needed for safety: what is committed is on the disks of a majority, whoever is silent.

// diskHangsAfter is for how long a write of Raft's log, term or vote may be under way. A disk that others keep busy takes a
// second now and then; a lead takes a second to move.
const diskHangsAfter = 3 * time.Second

// diskWatch notices that writes don't come back.
type diskWatch struct {
	// changed is told that the disk hangs, or that it has come back, from a goroutine that may not wait for either.
	changed func(hangs bool, since time.Time)
	hangs   atomic.Bool

	mu struct {
		sync.Mutex
		writes int       // under way
		since  time.Time // when the first of them began, or the last one came back that went with them
		timer  *time.Timer
	}
}

// begin notes that a write begins. Each is followed by an end.
func (d *diskWatch) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.writes++; d.mu.writes == 1 {
		d.armLocked()
	}
}

// end notes that a write has come back.
func (d *diskWatch) end() {
	d.mu.Lock()
	d.mu.writes--
	since := d.mu.since
	if d.mu.writes > 0 {
		d.armLocked()
	} else {
		d.mu.timer.Stop()
	}
	back := d.hangs.Swap(false)
	d.mu.Unlock()
	if back {
		d.changed(false, since)
	}
}

func (d *diskWatch) armLocked() {
	d.mu.since = time.Now()
	if d.mu.timer == nil {
		d.mu.timer = time.AfterFunc(diskHangsAfter, d.look)
	} else {
		d.mu.timer.Reset(diskHangsAfter)
	}
}

// look is called when a write has been under way for long; it may have come back meanwhile.
func (d *diskWatch) look() {
	d.mu.Lock()
	since := d.mu.since
	hangs := d.mu.writes > 0 && time.Since(since) >= diskHangsAfter && !d.hangs.Swap(true)
	d.mu.Unlock()
	if hangs {
		d.changed(true, since)
	}
}

// hungFor returns for how long the disk has not come back with a write, 0 if it does not hang.
func (d *diskWatch) hungFor() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.hangs.Load() {
		return 0
	}
	return time.Since(d.mu.since)
}

// diskChanged is told by diskWatch.
func (s *Store) diskChanged(hangs bool, since time.Time) {
	if hangs {
		lead := s.dropLead()
		s.logger.Error("the disk of the metadata log hangs", "dir", s.cfg.Dir, "waited", time.Since(since).Round(time.Millisecond).String(), "controller", lead)
	} else {
		s.logger.Info("the disk of the metadata log has come back", "dir", s.cfg.Dir, "waited", time.Since(since).Round(time.Millisecond).String())
	}
	select {
	case s.diskKick <- struct{}{}:
	default:
	}
}

// DiskHang returns for how long the disk of the metadata log has not come back with a write; 0 when it does. This broker
// applies nothing meanwhile, and is no controller.
func (s *Store) DiskHang() time.Duration { return s.disk.hungFor() }

// diskError says that this broker's disk hangs, nil if it does not.
func (s *Store) diskError() error {
	hung := s.disk.hungFor()
	if hung == 0 {
		return nil
	}
	return &Error{
		Kind: ErrNotController,
		What: fmt.Sprintf("broker %d can't write its metadata", s.cfg.NodeID),
		Why:  fmt.Sprintf("the disk of %s has not come back with a write for %v", s.cfg.Dir, hung.Round(time.Second)),
		Fix:  "look at that disk (dmesg, iostat); the broker goes on by itself when it answers, and may be stopped without harm",
	}
}

// errDiskHangs is what Raft gets instead of an answer from a follower.
var errDiskHangs = errors.New("raft: the disk of the metadata log hangs, this server is silent")

// silenced is a transport through which a leader whose disk hangs sends nothing.
type silenced struct {
	raft.Transport
	disk *diskWatch
}

// AppendEntries passes on a message, or refuses it.
func (s *silenced) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if s.disk.hangs.Load() {
		return errDiskHangs
	}
	return s.Transport.AppendEntries(id, target, args, resp)
}

// AppendEntriesPipeline opens a pipeline, or refuses it.
func (s *silenced) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if s.disk.hangs.Load() {
		return nil, errDiskHangs
	}
	inner, err := s.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &silencedPipeline{inner, s.disk}, nil
}

// InstallSnapshot passes on a snapshot, or refuses it.
func (s *silenced) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if s.disk.hangs.Load() {
		return errDiskHangs
	}
	return s.Transport.InstallSnapshot(id, target, args, resp, data)
}

// RequestPreVote is the method of raft.WithPreVote, which embedding the interface hides.
func (s *silenced) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return preVote(s.Transport, id, target, args, resp)
}

// silencedPipeline is a pipeline of silenced.
type silencedPipeline struct {
	raft.AppendPipeline
	disk *diskWatch
}

// AppendEntries passes on a message, or refuses it; Raft then closes the pipeline.
func (p *silencedPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if p.disk.hangs.Load() {
		return nil, errDiskHangs
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}
