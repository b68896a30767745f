package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// disk is an ext4 file system in a file, mounted as the data directory of a node.
type disk struct {
	image, mount string
	mounted      bool
}

// The requests of ext4 and of the virtual file system.
const (
	ext4Shutdown   = 0x8004587d // _IOR('X', 125, __u32)
	shutdownNoSync = 2          // the journal in memory is lost too, as at a power cut
	fsFreeze       = 0xc0045877
	fsThaw         = 0xc0045878
)

func (d *disk) create(mib int64) error {
	if os.Getuid() != 0 {
		return fmt.Errorf("%w: mounting a file system takes root", ErrNotHere)
	}
	f, err := os.Create(d.image)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(mib<<20), f.Close()); err != nil {
		return err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-m", "0", d.image).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: mkfs.ext4: %w: %s", ErrNotHere, err, out)
	}
	return d.attach()
}

func (d *disk) attach() error {
	if out, err := exec.Command("mount", "-o", "loop", d.image, d.mount).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: mount %s: %w: %s", ErrNotHere, d.image, err, out)
	}
	d.mounted = true
	return nil
}

// detach unmounts; right after the end of a process the mount may be busy for a moment.
func (d *disk) detach() error {
	if !d.mounted {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := poll(ctx, nil, func() error { return unix.Unmount(d.mount, 0) }); err != nil {
		return fmt.Errorf("unmount %s: %w", d.mount, err)
	}
	d.mounted = false
	return nil
}

func (d *disk) remove() error { return errors.Join(d.detach(), os.RemoveAll(d.image)) }

// control sends a request to the file system. The file is opened now, so that the request works on a disk that takes no
// writes.
func (d *disk) control(request uint, argument int) error {
	f, err := os.Open(d.mount)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetPointerInt(int(f.Fd()), request, argument)
}

// HasDisk says whether the node has a file system of its own.
func (n *Node) HasDisk() bool { return n.disk != nil }

// PowerCut takes the power from one node: what was not synced is gone, in files and directories. The node stays off
// until Start.
func (n *Node) PowerCut() error {
	if n.disk == nil {
		return fmt.Errorf("%w: the data directory is no file system of its own", ErrNotHere)
	}
	if err := n.disk.control(ext4Shutdown, shutdownNoSync); err != nil {
		return fmt.Errorf("cut the power of node %d: %w", n.Index, err)
	}
	// Nothing gets on the disk any more; what the process thinks of that does not matter.
	if err := errors.Join(n.Kill(), n.disk.detach(), n.disk.attach()); err != nil {
		return fmt.Errorf("cut the power of node %d: %w", n.Index, err)
	}
	return nil
}

// FreezeDisk has every write of the node hang until end is called.
func (n *Node) FreezeDisk() (end func() error, err error) {
	if n.disk == nil {
		return nil, fmt.Errorf("%w: the data directory is no file system of its own", ErrNotHere)
	}
	if err := n.disk.control(fsFreeze, 0); err != nil {
		return nil, fmt.Errorf("freeze the disk of node %d: %w", n.Index, err)
	}
	return n.until(func() error { return n.disk.control(fsThaw, 0) }), nil
}

// SlowDisk lets the node write so many bytes in a second, syncs included.
func (n *Node) SlowDisk(bytesPerSecond int) (end func() error, err error) {
	if n.disk == nil {
		return nil, fmt.Errorf("%w: the data directory is no file system of its own", ErrNotHere)
	}
	var stat unix.Stat_t
	if err := unix.Stat(n.disk.mount, &stat); err != nil {
		return nil, err
	}
	device := fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	const file = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"
	limit := func(n int) error { return os.WriteFile(file, fmt.Appendf(nil, "%s %d", device, n), 0) }
	if err := limit(bytesPerSecond); err != nil {
		return nil, fmt.Errorf("%w: slow down the disk of node %d: %w", ErrNotHere, n.Index, err)
	}
	return n.until(func() error { return limit(0) }), nil
}

// FillDisk leaves no room on the disk of the node.
func (n *Node) FillDisk() (end func() error, err error) {
	if n.disk == nil {
		return nil, fmt.Errorf("%w: the data directory is no file system of its own", ErrNotHere)
	}
	name := filepath.Join(n.disk.mount, "somebody-elses-file")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	end = n.until(func() error { return os.RemoveAll(name) })
	defer f.Close()
	zeros := make([]byte, 1<<20)
	for {
		if _, err := f.Write(zeros); err != nil {
			if len(zeros) > 4096 && errors.Is(err, unix.ENOSPC) {
				zeros = zeros[:4096]
				continue
			}
			return end, nil
		}
	}
}

// FailSyncs makes every fsync and fdatasync of the node fail with EIO until end is called.
func (n *Node) FailSyncs() (end func() error, err error) {
	return n.inject("error=EIO")
}

// SlowSyncs makes every fsync and fdatasync of the node take so much longer until end is called.
func (n *Node) SlowSyncs(by time.Duration) (end func() error, err error) {
	return n.inject(fmt.Sprintf("delay_enter=%d", by.Microseconds()))
}

func (n *Node) inject(what string) (end func() error, err error) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return nil, fmt.Errorf("%w: strace is not installed", ErrNotHere)
	}
	pid := n.Pid()
	if pid == 0 {
		return nil, fmt.Errorf("inject into node %d: it does not run", n.Index)
	}
	cmd := exec.Command(strace, "-f", "-q", "-o", os.DevNull, "-p", strconv.Itoa(pid), "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:"+what)
	cmd.SysProcAttr = dieWithUs()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: strace: %w", ErrNotHere, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	end = n.until(func() error {
		_ = cmd.Process.Kill()
		<-ended
		return nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := poll(ctx, ended, func() error { return traced(pid) }); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: strace does not attach: %w", ErrNotHere, err), end())
	}
	return end, nil
}

// traced says whether strace has attached to every thread of a process, or that the process is gone.
func traced(pid int) error {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	free := len(tasks)
	for _, name := range tasks {
		if status, err := os.ReadFile(name); err == nil && !bytes.Contains(status, []byte("TracerPid:\t0\n")) {
			free--
		}
	}
	if free > 0 {
		return fmt.Errorf("%d of %d threads are free", free, len(tasks))
	}
	return nil
}

// files lists the regular files below the data directory of a stopped node whose path, relative to it, matches.
func (n *Node) files(match func(name string) bool) ([]string, error) {
	if n.Running() {
		return nil, fmt.Errorf("damage files of node %d: it runs", n.Index)
	}
	var out []string
	err := filepath.WalkDir(n.Data, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(p, n.Data+"/")
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Size() > 0 && match(name) {
			out = append(out, p)
		}
		return nil
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("damage files of node %d: none matches", n.Index)
	}
	return out, err
}

// FlipBit flips a random bit of a random file that matches, of a stopped node, and says which.
func (n *Node) FlipBit(random *rand.Rand, match func(name string) bool) (string, error) {
	names, err := n.files(match)
	if err != nil {
		return "", err
	}
	name := names[random.IntN(len(names))]
	b, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	at := random.IntN(len(b))
	bit := byte(1) << random.IntN(8)
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	_, err = f.WriteAt([]byte{b[at] ^ bit}, int64(at))
	return fmt.Sprintf("bit %#02x of byte %d of %s", bit, at, strings.TrimPrefix(name, n.Data+"/")), errors.Join(err, f.Sync(), f.Close())
}

// Truncate cuts a random file that matches, of a stopped node, to a random size, and says which.
func (n *Node) Truncate(random *rand.Rand, match func(name string) bool) (string, error) {
	names, err := n.files(match)
	if err != nil {
		return "", err
	}
	name := names[random.IntN(len(names))]
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	to := random.Int64N(info.Size())
	return fmt.Sprintf("%s from %d to %d bytes", strings.TrimPrefix(name, n.Data+"/"), info.Size(), to), os.Truncate(name, to)
}

// Delete removes a random file that matches, of a stopped node, and says which.
func (n *Node) Delete(random *rand.Rand, match func(name string) bool) (string, error) {
	names, err := n.files(match)
	if err != nil {
		return "", err
	}
	name := names[random.IntN(len(names))]
	return strings.TrimPrefix(name, n.Data+"/"), os.Remove(name)
}
