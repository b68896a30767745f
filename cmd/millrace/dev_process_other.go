//go:build !linux

package main

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// processStart returns when a process started, "" when there is none or the system does not tell.
func processStart(pid int) string {
	if runtime.GOOS == "windows" || pid <= 0 {
		return ""
	}
	out, err := exec.Command("ps", "-o", "lstart=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
