package broker

import (
	"os"
	"runtime"
	"time"
)

// How many threads run Go code is a trade. A goroutine in a file system call keeps its thread until the runtime notices, so
// two more than cores let the cores work on meanwhile: more records are synced. But each of them is looked through and woken
// when something arrives, and keeps memory of its own: a broker whose clients only send heartbeats paid up to a fifth of its CPU
// and a tenth of a group's memory for threads that it has no work for. So a broker at rest makes do with restingThreads.
//
// It goes back within a second of being busy, which is not the runtime's to notice: what is missing until then is two
// threads, or on a large machine the use of more than two cores.
const (
	// threadsLook is how often it looks.
	threadsLook = time.Second
	// threadsRest is how long a broker must have been at rest.
	threadsRest = 10 * time.Second
	// Shares of one core, in percent. A thousand groups take some five, a hundred synced records a second some fifteen.
	threadsBusy, threadsQuiet = 20, 12
	// restingThreads is enough for one goroutine to run while another is in a system call.
	restingThreads = 2
	// moreThreads is how many more than the runtime's own choice, the cores or the container's share of them, a busy one has.
	moreThreads = 2
)

// restingThreadsCore decides whether the broker is at rest. It has no clock, and is for one goroutine.
type restingThreadsCore struct {
	rests bool
	quiet time.Duration // for how long it has been
}

// look is told the CPU time that the process used in the last while, and reports whether the broker rests.
func (r *restingThreadsCore) look(used, while time.Duration) bool {
	switch share := 100 * used / max(while, 1); {
	case share >= threadsBusy:
		r.rests, r.quiet = false, 0
	case share >= threadsQuiet:
		r.quiet = 0
	default:
		r.quiet += while
		r.rests = r.rests || r.quiet >= threadsRest
	}
	return r.rests
}

// keepThreadsFew runs for the rest of the process's life, unless GOMAXPROCS says what is wanted or the system does not tell a
// process's CPU time.
func keepThreadsFew() {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	manyThreads()
	used, ok := processCPU()
	if !ok || runtime.GOMAXPROCS(0) <= restingThreads {
		return
	}
	go func() {
		var r restingThreadsCore
		for at := time.Now(); ; {
			time.Sleep(threadsLook)
			now, until := time.Now(), time.Duration(0)
			if until, ok = processCPU(); !ok {
				continue
			}
			was := r.rests
			switch rests := r.look(until-used, now.Sub(at)); {
			case rests && !was:
				runtime.GOMAXPROCS(restingThreads)
			case was && !rests:
				manyThreads()
			}
			used, at = until, now
		}
	}()
}

// manyThreads asks the runtime again how many there should be, since a container's share of the cores may have changed.
func manyThreads() {
	runtime.SetDefaultGOMAXPROCS()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + moreThreads)
}
