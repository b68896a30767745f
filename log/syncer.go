package log

import (
	"sync"

	"github.com/millrace/millrace/log/vfs"
)

// syncer is the pool of workers that sync partitions: many partitions at once, one worker per partition (W5). More
// than 16 concurrent fdatasyncs gain nothing, 4 stall the write-ahead log (wal.md 8).
type syncer struct {
	d    *Dir
	lock sync.Locker
	// work wakes workers, done wakes those who wait for the pool.
	work, done vfs.Cond
	queue      []*Log
	workers    int
	// advancing counts the logs with jobAdvance waiting or running, retiring those with jobRetire.
	advancing, retiring int
	stopped             bool
}

// job is the state of a log in the pool; guarded by syncer.lock.
type job struct {
	// wanted is the work to do, running what a worker is doing now.
	wanted, running jobKind
	queued          bool
}

type jobKind uint8

const (
	// jobSync makes the log durable up to its end.
	jobSync jobKind = 1 << iota
	// jobAdvance also syncs the derived files and moves the recovery point.
	jobAdvance
	// jobRetire is jobSync for a file of the write-ahead log that waits to be retired.
	jobRetire
)

func newSyncer(d *Dir, workers int) *syncer {
	s := &syncer{d: d, lock: d.cfg.Tasks.Locker()}
	s.work, s.done = d.cfg.Tasks.Cond(s.lock), d.cfg.Tasks.Cond(s.lock)
	s.workers = workers
	for range workers {
		d.cfg.Tasks.Go("sync", s.run)
	}
	return s
}

// request asks for work on a log; it is done once for any number of requests that come before it begins.
func (s *syncer) request(l *Log, kind jobKind) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.stopped {
		return
	}
	if kind == jobAdvance && (l.job.wanted|l.job.running)&jobAdvance == 0 {
		s.advancing++
	}
	if kind == jobRetire && (l.job.wanted|l.job.running)&jobRetire == 0 {
		s.retiring++
	}
	l.job.wanted |= kind
	if l.job.queued || l.job.running != 0 {
		return // a running worker looks again when it is done
	}
	l.job.queued = true
	s.queue = append(s.queue, l)
	s.work.Signal()
}

// waitAdvanced waits until no jobAdvance is waiting or running.
func (s *syncer) waitAdvanced() {
	s.lock.Lock()
	for s.advancing > 0 {
		s.done.Wait()
	}
	s.lock.Unlock()
}

// syncAll makes logs durable up to their ends, many at a time, and waits for it. Logs that are closed or offline are
// left as they are.
func (s *syncer) syncAll(logs []*Log) {
	for _, l := range logs {
		s.request(l, jobRetire)
	}
	s.lock.Lock()
	for s.retiring > 0 {
		s.done.Wait()
	}
	s.lock.Unlock()
}

func (s *syncer) run() {
	s.lock.Lock()
	for {
		for len(s.queue) == 0 && !s.stopped {
			s.work.Wait()
		}
		if len(s.queue) == 0 {
			break
		}
		l := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		kind := l.job.wanted
		l.job.wanted, l.job.running, l.job.queued = 0, kind, false
		s.lock.Unlock()

		// Errors have poisoned the directory, or say that the log was closed.
		if kind&jobAdvance != 0 {
			_ = l.advance()
		} else {
			_ = l.Flush()
		}

		s.lock.Lock()
		l.job.running = 0
		if kind&jobAdvance != 0 {
			if l.job.wanted&jobAdvance == 0 {
				s.advancing--
			}
			s.done.Broadcast()
		}
		if kind&jobRetire != 0 {
			if l.job.wanted&jobRetire == 0 {
				s.retiring--
			}
			s.done.Broadcast()
		}
		if l.job.wanted != 0 {
			l.job.queued = true
			s.queue = append(s.queue, l)
			// This worker takes the next of the queue; nobody needs waking unless others sleep beside work.
			s.work.Signal()
		}
	}
	s.workers--
	s.done.Broadcast()
	s.lock.Unlock()
}

// stop lets the workers finish what is queued and waits for them.
func (s *syncer) stop() {
	s.lock.Lock()
	s.stopped = true
	s.work.Broadcast()
	for s.workers > 0 {
		s.done.Wait()
	}
	s.lock.Unlock()
}
