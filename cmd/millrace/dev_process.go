package main

import (
	"os"
	"runtime"
	"time"
)

// processID names a process for longer than its pid lasts: a pid is given to another process once its own has ended.
type processID struct {
	PID int `json:"pid" doc:"process id"`
	// Started is the process's start as the system tells it, in a form of its own; "" where it tells none.
	Started string `json:"started" doc:"when the process started, as the system tells it"`
}

// identify returns the identity of a running process.
func identify(pid int) processID { return processID{PID: pid, Started: processStart(pid)} }

// alive says whether the process still runs. Where the system does not tell when processes started, no recorded process
// is known to be alive: better to leave one running than to end a stranger's.
func (p processID) alive() bool {
	return p.PID > 0 && p.Started != "" && processStart(p.PID) == p.Started
}

// kill ends the process at once, as kill -9 does, if it is still the one that was recorded. It says whether it did.
//
// On Linux the handle is taken first and then compared, so that the process cannot be exchanged in between.
func (p processID) kill() bool {
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return false
	}
	defer func() { _ = handle.Release() }()
	return p.alive() && handle.Kill() == nil
}

// waitGone waits until the process has ended, at most so long.
func (p processID) waitGone(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for p.alive() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

// terminate asks a child to stop. Windows knows no such request: there it is ended.
func terminate(p *os.Process) error {
	if runtime.GOOS == "windows" {
		return p.Kill()
	}
	return p.Signal(terminateSignal)
}
