package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func devSubcommands() []*cli.Command {
	port := devPortFlag("which dev cluster, by its first client `PORT`; needed when several run")
	return []*cli.Command{
		{Name: "status", Usage: "show the brokers of the dev cluster", Flags: []cli.Flag{port}, Action: runDevStatus},
		{Name: "stop", Usage: "stop the dev cluster", Flags: []cli.Flag{port}, Action: runDevStop},
		{Name: "kill", Usage: "end a broker's process as kill -9 does", ArgsUsage: "ID", Flags: []cli.Flag{port}, Action: devBrokerAction("kill", true)},
		{Name: "restart", Usage: "start a broker again, with its data; one that runs is stopped first", ArgsUsage: "ID", Flags: []cli.Flag{port}, Action: devBrokerAction("restart", true)},
		{Name: "add", Usage: "add a broker to the cluster", Flags: []cli.Flag{port}, Action: devBrokerAction("add", false)},
		{Name: "logs", Usage: "print a broker's log", ArgsUsage: "ID", Flags: []cli.Flag{
			port,
			&cli.IntFlag{Name: "lines", Aliases: []string{"n"}, Value: 200, Usage: "how many of the last lines; 0 is all"},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with new lines"},
		}, Action: runDevLogs},
		{Name: "purge", Usage: "stop the dev cluster and remove its data", Flags: []cli.Flag{port, &cli.StringFlag{Name: "data", Usage: "the `DIR` of a dev cluster"}, &cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "only show what would be removed"}}, Action: runDevPurge},
	}
}

// devTarget finds the dev cluster that a command means: the one of --port, else the only one that runs, else, when
// stopped ones count, the only one there is.
func devTarget(c *cli.Context, stoppedToo bool) (*devStates, *devState, error) {
	states, err := openDevStates()
	if err != nil {
		return nil, nil, err
	}
	all, err := states.all()
	if err != nil {
		return nil, nil, err
	}
	var running, stopped []*devState
	for _, s := range all {
		switch {
		case c.IsSet("port") && s.Port != c.Int("port"):
		case s.running():
			running = append(running, s)
		default:
			stopped = append(stopped, s)
		}
	}
	found := running
	if len(found) == 0 && stoppedToo {
		found = stopped
	}
	if len(found) == 1 {
		return states, found[0], nil
	}
	where := ""
	if c.IsSet("port") {
		where = fmt.Sprintf(" on port %d", c.Int("port"))
	}
	if len(found) == 0 {
		f := &failure{code: exitFailed, what: "no dev cluster runs" + where, why: "none was started, or it has ended", fix: "millrace dev"}
		if len(stopped) > 0 {
			s := stopped[0]
			f.why = fmt.Sprintf("the one on port %d is stopped", s.Port)
			if f.fix = "millrace dev --data " + s.Dir; s.Temporary {
				f.why, f.fix = fmt.Sprintf("the dev process of the one on port %d has ended, and its brokers with it", s.Port), "millrace dev"
			}
		}
		return nil, nil, f
	}
	var ports []string
	for _, s := range found {
		ports = append(ports, strconv.Itoa(s.Port))
	}
	f := usageError("which dev cluster?", c.Command.HelpName+" --port "+ports[0])
	f.why = "there are those on the ports " + strings.Join(ports, ", ")
	return nil, nil, f
}

func runDevStatus(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(devState{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	_, s, err := devTarget(c, true)
	if err != nil {
		return err
	}
	return e.emitDev(s)
}

func (e *env) emitDev(s *devState) error {
	s.Token = ""
	r := result{value: s, cols: columns("BROKER#", "STATE", "PID#", "CLIENTS", "+PEER", "+GOSSIP", "HTTP", "FOR", "+DATA")}
	for i := range s.Brokers {
		b := &s.Brokers[i]
		if b.PID != 0 && !b.alive() && b.Started != "" {
			b.State = devExited // its dev process has ended, and could not write it down
		}
		pid := any(b.PID)
		if b.PID == 0 {
			pid = "-"
		}
		r.rows = append(r.rows, []any{b.ID, b.State, pid, b.Clients, b.Peer, b.Gossip, b.HTTP, time.Since(b.Since).Round(time.Second).String(), b.Data})
	}
	return e.emit(r)
}

func runDevStop(c *cli.Context) error {
	e := envOf(c)
	if err := noArguments(c); err != nil {
		return err
	}
	states, s, err := devTarget(c, false)
	if err != nil {
		return err
	}
	if err := s.stop(c.Context, states); err != nil {
		return err
	}
	e.hint("dev cluster on port %d stopped", s.Port)
	if !s.Temporary {
		e.hint("its data stays in %s; millrace dev --data %s   goes on with it", s.Dir, s.Dir)
	}
	return nil
}

// stop asks the dev process to end and waits until it has. One that does not answer is ended by its recorded identity,
// and so are its brokers.
func (s *devState) stop(ctx context.Context, states *devStates) error {
	if _, err := s.ask(ctx, "stop", 0); err != nil && errors.Is(err, context.Canceled) {
		return err
	}
	const limit = devStopGrace + 5*time.Second
	if !s.Supervisor.waitGone(limit) {
		s.Supervisor.kill()
		if !s.Supervisor.waitGone(time.Second) {
			return &failure{code: exitTimeout, what: fmt.Sprintf("the dev process %d does not end", s.Supervisor.PID), why: fmt.Sprintf("it was asked %s ago, and then killed", limit), fix: fmt.Sprintf("look at process %d: ps -fp %d", s.Supervisor.PID, s.Supervisor.PID)}
		}
	}
	return states.sweep()
}

// devBrokerID reads the ID argument.
func devBrokerID(c *cli.Context) (int, error) {
	if c.Args().Len() != 1 {
		f := usageError(fmt.Sprintf("%s takes the id of one broker, not %d", c.Command.HelpName, c.Args().Len()), c.Command.HelpName+" 2")
		f.why = "millrace dev status   shows the ids"
		return 0, f
	}
	id, err := strconv.Atoi(c.Args().First())
	if err != nil || id < 0 {
		f := usageError(fmt.Sprintf("%q is not a broker id", c.Args().First()), c.Command.HelpName+" 2")
		f.why = "an id is a number; millrace dev status   shows them"
		return 0, f
	}
	return id, nil
}

// devBrokerAction gives the dev process an order about one broker and prints the cluster as it is then.
func devBrokerAction(order string, needsID bool) cli.ActionFunc {
	return func(c *cli.Context) error {
		e := envOf(c)
		if e.wantsFields(devState{}) {
			return nil
		}
		id := 0
		var err error
		if needsID {
			id, err = devBrokerID(c)
		} else {
			err = noArguments(c)
		}
		if err != nil {
			return err
		}
		_, s, err := devTarget(c, false)
		if err != nil {
			return err
		}
		after, err := s.ask(c.Context, order, id)
		if err != nil {
			return err
		}
		return e.emitDev(after)
	}
}

func runDevLogs(c *cli.Context) error {
	e := envOf(c)
	id, err := devBrokerID(c)
	if err != nil {
		return err
	}
	_, s, err := devTarget(c, true)
	if err != nil {
		return err
	}
	b := s.broker(id)
	if b == nil {
		return noDevBroker(s, id)
	}
	if b.Log == "" {
		return &failure{code: exitFailed, what: fmt.Sprintf("broker %d has no log file", id), why: "it is inside the dev process, which prints its lines on stderr", fix: "look there, or use millrace dev -n 1 --processes"}
	}
	f, err := os.Open(b.Log)
	if err != nil {
		return &failure{code: exitFailed, what: "cannot read the log of broker " + strconv.Itoa(id), why: oneLine(err.Error()), fix: "millrace dev status --format wide   shows where its data is", cause: err}
	}
	defer f.Close()
	if n := c.Int("lines"); n > 0 {
		if err := seekLines(f, n); err != nil {
			return fmt.Errorf("read the log of broker %d: %w", id, err)
		}
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := io.Copy(e.stdout, f); err != nil {
			return writeError(err)
		}
		if !c.Bool("follow") {
			return nil
		}
		select {
		case <-ticker.C:
		case <-c.Context.Done():
			return c.Context.Err()
		}
	}
}

// seekLines goes to the beginning of the last n lines of a file.
func seekLines(f *os.File, n int) error {
	var starts []int64 // of the last n lines
	var at int64
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			starts = append(starts, at)
			if len(starts) > n {
				starts = starts[1:]
			}
		}
		at += int64(len(line))
		for errors.Is(err, bufio.ErrBufferFull) { // a long line
			line, err = r.ReadSlice('\n')
			at += int64(len(line))
		}
		if err != nil {
			break
		}
	}
	if len(starts) == 0 {
		starts = []int64{0}
	}
	_, err := f.Seek(starts[0], io.SeekStart)
	return err
}

func runDevPurge(c *cli.Context) error {
	e := envOf(c)
	if err := noArguments(c); err != nil {
		return err
	}
	dir := c.String("data")
	var states *devStates
	var s *devState
	var err error
	if dir == "" {
		if states, s, err = devTarget(c, true); err != nil {
			return err
		}
		dir = s.Dir
	} else {
		if states, err = openDevStates(); err != nil {
			return err
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return fmt.Errorf("find the directory of --data: %w", err)
		}
		all, err := states.all()
		if err != nil {
			return err
		}
		for _, one := range all {
			if one.Dir == dir {
				s = one
			}
		}
	}
	layout, err := readLayout(dir)
	if err != nil {
		return err
	}
	if layout == nil && (s == nil || !s.Temporary) {
		f := usageError(dir+" has no dev cluster of several brokers", "remove the directory by hand, if that is what you mean")
		f.why = "it has no " + devLayoutFile + ", and dev removes only what it has made"
		return f
	}
	if s != nil && s.running() {
		fmt.Fprintf(e.stderr, "stop the dev cluster on port %d\n", s.Port)
	}
	if layout != nil {
		for _, b := range layout.Brokers {
			fmt.Fprintf(e.stderr, "remove %s and its log (%s)\n", brokerDir(dir, b.ID), sizeText(dirSize(brokerDir(dir, b.ID))))
		}
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return nil
	}
	if err := e.confirm("remove the data of the dev cluster in " + dir + "?"); err != nil {
		return err
	}
	if s != nil && s.running() {
		if err := s.stop(c.Context, states); err != nil {
			return err
		}
	}
	if err := removeDevDir(dir); err != nil {
		return err
	}
	if s != nil {
		if err := states.remove(s.Port); err != nil {
			return err
		}
	}
	e.hint("%s is removed", dir)
	return nil
}

// dirSize is how many bytes the files below a directory have. What cannot be read counts nothing.
func dirSize(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})
	return size
}
