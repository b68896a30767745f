package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// processStart returns when a process started, "" when there is none: its start in clock ticks since the machine's, and
// the id of that start of the machine. A process that has ended and waits for its parent to notice is none.
func processStart(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field is the program's name in parentheses, and may hold anything; what follows it is numbered from 3.
	const stateField, startField, first = 3, 22, 3
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= startField-first || strings.ContainsAny(string(fields[stateField-first]), "ZXx") {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = []byte("?")
	}
	return fmt.Sprintf("%s@%.8s", fields[startField-first], boot)
}
