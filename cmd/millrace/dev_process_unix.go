//go:build unix

package main

import "syscall"

const terminateSignal = syscall.SIGTERM

// ownGroup keeps a child out of the terminal's process group: Ctrl-C is for the supervisor, which stops its children.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// ownSession takes a process away from the terminal: it goes on when that is closed.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
