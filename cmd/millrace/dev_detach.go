package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// detach starts the same command line in the background, waits until its cluster is ready, and says how to stop it.
func (e *env) detach(c *cli.Context) error {
	states, err := openDevStates()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(states.dir, 0o700); err != nil {
		return profileFailure("make the directory of dev clusters", err)
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to run in the background: %w", err)
	}
	out, err := os.CreateTemp(states.dir, "detached-*.log")
	if err != nil {
		return profileFailure("make the log of the dev process", err)
	}
	defer out.Close()
	cmd := &exec.Cmd{Path: executable, Args: append(append([]string{"millrace"}, e.args...), "--background"), Stdout: out, Stderr: out, Env: os.Environ(), SysProcAttr: ownSession()}
	closeInherited()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the dev process: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	st, err := e.awaitDetached(c.Context, states, cmd.Process.Pid, done)
	if err != nil {
		text := strings.Join(tailLines(out.Name(), 0, 200), "\n")
		if errors.Is(err, errDetachedEnded) {
			os.Remove(out.Name())
			fmt.Fprintln(e.stderr, text) // its own words, the three lines among them
			return silent(cmd.ProcessState.ExitCode())
		}
		_ = terminate(cmd.Process)
		<-done
		return err
	}
	if c.Bool("print-brokers") {
		fmt.Fprintln(e.stdout, st.clients())
	}
	e.devReady(*st)
	port := ""
	if st.Port != devPort {
		port = fmt.Sprintf(" --port %d", st.Port)
	}
	e.hint("  It runs in the background (process %d, log %s):  millrace dev stop%s", st.Supervisor.PID, filepath.Base(out.Name()), port)
	return nil
}

var errDetachedEnded = errors.New("the dev process ended")

// awaitDetached waits for the state that the process of that pid writes once its brokers are ready.
func (e *env) awaitDetached(ctx context.Context, states *devStates, pid int, done <-chan error) (*devState, error) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return nil, errDetachedEnded
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
		all, err := states.all()
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			if s.Supervisor.PID == pid && s.Phase == "ready" {
				return s, nil
			}
		}
	}
}
