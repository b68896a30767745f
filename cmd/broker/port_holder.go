package broker

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// portHolder names the process that listens on a TCP port of this machine, as far as /proc shows it to this user:
// "process 4711 (java)", or "another process".
func portHolder(port string) string {
	const unknown = "another process"
	n, err := strconv.Atoi(port)
	if err != nil {
		return unknown
	}
	inodes := listeningInodes(n)
	if len(inodes) == 0 {
		return unknown
	}
	descriptors, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return unknown
	}
	for _, d := range descriptors {
		target, err := os.Readlink(d)
		if err != nil || !inodes[target] {
			continue
		}
		pid := strings.Split(d, "/")[2]
		if pid == strconv.Itoa(os.Getpid()) {
			return "this process"
		}
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			return "process " + pid
		}
		return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(name)))
	}
	return unknown
}

// listeningInodes returns the sockets that listen on a port, as /proc/*/fd names them.
func listeningInodes(port int) map[string]bool {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			const local, state, inode, listening = 1, 3, 9, "0A"
			if len(fields) > inode && fields[state] == listening && strings.HasSuffix(fields[local], fmt.Sprintf(":%04X", port)) {
				inodes["socket:["+fields[inode]+"]"] = true
			}
		}
		f.Close()
	}
	return inodes
}
