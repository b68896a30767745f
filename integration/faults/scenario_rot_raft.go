package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/integration/cluster"
)

// The folder of a broker's metadata, below its data directory.
const raftFolder = "raft"

// raftRots are the kinds of damage to the metadata of a stopped broker. Each says what it did; an error: there was nothing
// to damage.
var raftRots = []struct {
	what string
	do   func(r *run, n *cluster.Node) (string, error)
}{
	{"a bit flipped in the metadata log", func(r *run, n *cluster.Node) (string, error) { return n.FlipBit(r.random, raftEntries) }},
	{"a bit flipped in what the metadata log has", func(r *run, n *cluster.Node) (string, error) { return flipEntry(r, n) }},
	{"a bit flipped in what the metadata log has last", func(r *run, n *cluster.Node) (string, error) { return flipLastEntry(r, n) }},
	{"the metadata log truncated", func(r *run, n *cluster.Node) (string, error) { return n.Truncate(r.random, raftEntries) }},
	{"a file of the metadata log deleted", func(r *run, n *cluster.Node) (string, error) { return n.Delete(r.random, raftEntries) }},
	{"a bit flipped in raft.db", func(r *run, n *cluster.Node) (string, error) { return n.FlipBit(r.random, raftDatabase) }},
	{"a bit flipped in a root of raft.db", func(r *run, n *cluster.Node) (string, error) { return flipRoot(r, n) }},
	{"raft.db truncated", func(r *run, n *cluster.Node) (string, error) { return n.Truncate(r.random, raftDatabase) }},
	{"raft.db deleted", func(r *run, n *cluster.Node) (string, error) { return n.Delete(r.random, raftDatabase) }},
	{"a bit flipped in a metadata snapshot", func(r *run, n *cluster.Node) (string, error) { return n.FlipBit(r.random, raftSnapshot) }},
	{"a metadata snapshot truncated", func(r *run, n *cluster.Node) (string, error) { return n.Truncate(r.random, raftSnapshot) }},
	{"the newest metadata snapshot missing", removeSnapshot},
	{"the metadata folder missing", func(_ *run, n *cluster.Node) (string, error) {
		return raftFolder, os.RemoveAll(filepath.Join(n.Data, raftFolder))
	}},
}

func raftDatabase(name string) bool { return name == raftFolder+"/raft.db" }

func raftEntries(name string) bool { return strings.HasPrefix(name, raftFolder+"/raft-log/") }

func raftSnapshot(name string) bool {
	return strings.HasPrefix(name, raftFolder+"/snapshots/") && (strings.HasSuffix(name, "state.bin") || strings.HasSuffix(name, "meta.json"))
}

// flipRoot hits what all else hangs on, which is a small part of the file.
func flipRoot(r *run, n *cluster.Node) (string, error) {
	f, err := os.OpenFile(filepath.Join(n.Data, raftFolder, "raft.db"), os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	at := int64(r.random.IntN(2)*os.Getpagesize() + r.random.IntN(80))
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return "", err
	}
	b[0] ^= 1 << r.random.IntN(8)
	_, err = f.WriteAt(b, at)
	return fmt.Sprintf("byte %d of raft.db", at), err
}

// flipEntry hits what was written: segments are full of zeros beforehand, of which most of them is.
func flipEntry(r *run, n *cluster.Node) (string, error) {
	names, err := filepath.Glob(filepath.Join(n.Data, raftFolder, "raft-log", "*"))
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", fmt.Errorf("damage the metadata of node %d: its log has no files", n.Index)
	}
	name := names[r.random.IntN(len(names))]
	b, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	written := len(bytes.TrimRight(b, "\x00"))
	if written == 0 {
		return "", fmt.Errorf("damage %s: nothing was written to it yet", name)
	}
	at := r.random.IntN(written)
	b[at] ^= 1 << r.random.IntN(8)
	return fmt.Sprintf("byte %d of %s", at, filepath.Base(name)), os.WriteFile(name, b, 0o600)
}

// flipLastEntry hits what a crash could be blamed for: the last 512 bytes of the metadata log that were written.
func flipLastEntry(r *run, n *cluster.Node) (string, error) {
	names, err := filepath.Glob(filepath.Join(n.Data, raftFolder, "raft-log", "*"))
	if err != nil {
		return "", err
	}
	for _, name := range slices.Backward(names) { // sorted
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		at := len(bytes.TrimRight(b, "\x00")) - 1
		if at < 4096 { // nothing but a header
			continue
		}
		at = at - at%512 + r.random.IntN(at%512+1)
		b[at] ^= 1 << r.random.IntN(8)
		return fmt.Sprintf("byte %d of %s", at, filepath.Base(name)), os.WriteFile(name, b, 0o600)
	}
	return "", fmt.Errorf("damage the metadata of node %d: its log is empty", n.Index)
}

func removeSnapshot(_ *run, n *cluster.Node) (string, error) {
	entries, err := os.ReadDir(filepath.Join(n.Data, raftFolder, "snapshots"))
	newest, at := "", time.Time{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().After(at) {
			newest, at = e.Name(), info.ModTime()
		}
	}
	if newest == "" {
		return "", fmt.Errorf("damage the metadata of node %d: no snapshot: %w", n.Index, err)
	}
	return newest, os.RemoveAll(filepath.Join(n.Data, raftFolder, "snapshots", newest))
}

// partitionFiles lists the segments of all partitions with their sizes: what a broker that refuses to start, or has lost its
// metadata, may not touch (I16).
func partitionFiles(n *cluster.Node) (map[string]int64, error) {
	out := map[string]int64{}
	err := filepath.WalkDir(n.Data, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".log" || !ofWorkload(strings.TrimPrefix(path, n.Data+"/")) {
			return err
		}
		info, err := e.Info()
		if err == nil {
			out[strings.TrimPrefix(path, n.Data+"/")] = info.Size()
		}
		return err
	})
	return out, err
}

// roundRotRaft stops one broker, damages its metadata, and starts it again. It must come back with what the others have, or
// refuse and name a mend, which must work.
func roundRotRaft(ctx context.Context, r *run) error {
	r.awaitHealth(ctx, "before metadata is damaged")
	n, why := r.victim()
	rot := raftRots[r.random.IntN(len(raftRots))]
	stop, how := n.Kill, "killed"
	if r.random.IntN(2) == 0 {
		stop, how = n.Stop, "stopped"
	}
	err := r.fault(ctx, n.Index, fmt.Sprintf("%snode %d %s, %s", why, n.Index, how, rot.what), stop, r.between(0, 2*time.Second), func() error {
		what, err := rot.do(r, n)
		if err != nil {
			r.remark("no damage: %v", err)
		} else {
			r.remark("node %d: %s: %s", n.Index, rot.what, what)
		}
		return r.startDamaged(ctx, n)
	})
	if err != nil {
		return err
	}
	r.awaitHealth(ctx, fmt.Sprintf("after rot in the metadata of node %d", n.Index))
	if r.random.IntN(2) == 0 {
		return nil
	}
	// Who was healed must count: the quorum is two of three now.
	o := r.other(n)
	err = r.fault(ctx, o.Index, fmt.Sprintf("kill -9 of node %d, so that node %d counts", o.Index, n.Index), o.Kill, r.between(2*time.Second, 4*time.Second), o.Start)
	r.awaitHealth(ctx, "after a kill of another")
	return err
}

// tornTail is what recovery may cut off a segment after a kill.
const tornTail = 64 << 10

// replaceHint is the mend that a refusal names.
var replaceHint = regexp.MustCompile(`--replace (\d+) added`)

// startDamaged starts a broker with damaged metadata, and does what it says when it refuses.
func (r *run) startDamaged(ctx context.Context, n *cluster.Node) error {
	before, err := partitionFiles(n)
	if err != nil {
		return err
	}
	printed := n.LogSize()
	if err := n.Start(); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, startPatience)
	err = n.Serves(wait, 1)
	cancel()
	if err == nil {
		r.remark("node %d serves with it", n.Index)
		return nil
	}
	if n.Running() {
		r.fail("node %d neither serves nor ends: %v", n.Index, err)
		return nil
	}
	after, err := partitionFiles(n)
	if err != nil {
		return err
	}
	for name, size := range before {
		if got, there := after[name]; !there || got < size-tornTail {
			r.fail("node %d refused to start, and %s has %d bytes of %d", n.Index, name, after[name], size)
		}
	}
	text := n.LogFrom(printed)
	hint := replaceHint.FindStringSubmatch(text)
	if !strings.Contains(text, "why:") || hint == nil {
		r.fail("node %d ended without the mend: %.2000s", n.Index, text)
		return nil
	}
	r.remark("node %d refuses: %s", n.Index, firstLine(text))
	folder := filepath.Join(n.Data, raftFolder)
	if _, err := os.Stat(folder); err == nil {
		if err := os.Rename(folder, fmt.Sprintf("%s-damaged-%d", folder, time.Now().UnixNano())); err != nil {
			return err
		}
	}
	r.mends++
	return n.StartWith("--replace", hint[1])
}

// firstLine is the line before the reason of a refusal.
func firstLine(text string) string {
	lines := strings.Split(text, "\n")
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "why:") }); i > 0 {
		return lines[i-1]
	}
	return ""
}
