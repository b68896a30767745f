package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sandbox runs this command again, with its arguments, in namespaces of its own for processes, mounts and the network,
// and returns ended with its exit code once it has ended. Inside, and where there is no root, it returns at once with
// ended false: the caller goes on. Whatever is started, mounted and linked inside is gone when the command has ended.
func Sandbox() (code int, ended bool, err error) {
	if InSandbox() {
		return 0, false, furnish()
	}
	if os.Getuid() != 0 {
		return 0, false, nil
	}
	self, err := os.Executable()
	if err != nil {
		return 0, false, err
	}
	runtime.LockOSThread() // the child dies with the thread that made it
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), sandboxVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	// A ^C reaches the child by itself; this process waits for its end.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, false, nil // this kernel or container has no namespaces for us: go on without
	}
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM {
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if code := exit.ExitCode(); code >= 0 {
			return code, true, nil
		}
		return 1, true, nil
	}
	return 0, true, err
}

// furnish makes the namespaces habitable: mounts stay inside, /proc shows our processes, loopback is up.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return loopbackUp()
}

// loopbackUp does what `ip link set lo up` does, where there is no ip.
func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set up loopback: %w", err)
	}
	defer unix.Close(socket)
	lo, err := unix.NewIfreq("lo")
	if err == nil {
		lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		err = unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, lo)
	}
	if err != nil {
		return fmt.Errorf("set up loopback: %w", err)
	}
	return nil
}
