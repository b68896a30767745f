package vfs

import "sync"

// Tasks is what package log uses for concurrency around file operations: goroutines, locks that are held over file
// operations, and waits for conditions. RealTasks in production, Sim in the deterministic model.
//
// The rule that makes the model possible: package log uses no channel, no plain mutex held over a file operation and
// no timer.
type Tasks interface {
	// Go runs fn concurrently. The name appears in deadlock reports and selects the task's weight in the model.
	Go(name string, fn func())
	// Locker returns a new mutual exclusion lock.
	Locker() sync.Locker
	// Cond returns a new condition variable that uses l, which must come from Locker of the same Tasks.
	Cond(l sync.Locker) Cond
}

// Cond is a condition variable with the semantics of sync.Cond.
type Cond interface {
	// Wait unlocks, waits to be woken, and locks again. Callers re-check their condition in a loop.
	Wait()
	// Signal wakes one waiting task.
	Signal()
	// Broadcast wakes all waiting tasks.
	Broadcast()
}

// RealTasks returns goroutines, sync.Mutex and sync.Cond.
func RealTasks() Tasks { return realTasks{} }

type realTasks struct{}

func (realTasks) Go(_ string, fn func()) { go fn() }

func (realTasks) Locker() sync.Locker { return new(sync.Mutex) }

func (realTasks) Cond(l sync.Locker) Cond { return sync.NewCond(l) }
