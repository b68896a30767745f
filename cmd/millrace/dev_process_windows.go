package main

import "syscall"

const terminateSignal = syscall.SIGTERM

func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

func ownSession() *syscall.SysProcAttr { return ownGroup() }

// closeInherited has nothing to do: a child is given the handles that are named for it, and no others.
func closeInherited() {}
