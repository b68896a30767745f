package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// program is a process that may be killed and started again. Start and the ways to end it are for one goroutine.
type program struct {
	name string
	argv []string
	dir  string            // of its output, NAME.log
	line func(line string) // called for each line of stdout, in order, by one goroutine at a time; nil: into the file, too

	mu     sync.Mutex
	cmd    *exec.Cmd
	done   chan struct{}
	starts int
}

// start runs the process. It does not outlive us.
func (p *program) start() error {
	out, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer out.Close()
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	var lines io.ReadCloser
	if p.line != nil {
		cmd.Stdout = nil
		if lines, err = cmd.StdoutPipe(); err != nil {
			return fmt.Errorf("start %s: %w", p.name, err)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.done = cmd, done
	p.starts++
	go func() {
		defer close(done)
		if lines != nil {
			scan := bufio.NewScanner(lines)
			scan.Buffer(nil, 1<<20)
			for scan.Scan() {
				p.line(scan.Text())
			}
		}
		_ = cmd.Wait()
	}()
	return nil
}

func (p *program) log() string { return filepath.Join(p.dir, p.name+".log") }

// ended is closed when the present process has ended, and its last line was read; nil before the first.
func (p *program) ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// kill ends the process with SIGKILL, if there is one.
func (p *program) kill() error { return p.end(syscall.SIGKILL, 30*time.Second) }

// stop asks the process to end with SIGTERM, and waits.
func (p *program) stop(patience time.Duration) error { return p.end(syscall.SIGTERM, patience) }

func (p *program) end(with syscall.Signal, patience time.Duration) error {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(with); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", with, p.name, err)
	}
	select {
	case <-done:
		return nil
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-done
		return fmt.Errorf("%s did not end within %s of %s", p.name, patience, with)
	}
}
