package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/cmd/broker"
)

// devPort is the first broker's port; broker k uses devPort + 1000·(k-1).
const devPort = 9092

// devBrokers is how many brokers dev starts when nobody says: enough for real replication.
const devBrokers = 3

func devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "run a cluster for development: this machine only, data removed on exit",
		Description: "Brokers are processes of their own; -n 1 runs one inside this process. Prints what to type next. Data goes to a temporary directory that is\n" +
			"removed on exit; --data keeps it. Broker k uses the ports of broker 1 plus 1000·(k-1): clients 9092, brokers 9093, gossip 9094, HTTP 9644.\n" +
			"The profile \"dev\" is selected while the cluster runs, so that other commands find it; not with --print-brokers.\n" +
			"Test suites use: millrace dev -n 1 --any-port --quiet --print-brokers   whose first line on stdout is the bootstrap address.",
		Flags: append(settingFlags(),
			&cli.IntFlag{Name: "n", Value: devBrokers, Usage: "how many brokers"},
			devPortFlag("client port of the first broker"),
			&cli.StringFlag{Name: "data", Usage: "keep the data in `DIR`, and go on with what is there"},
			&cli.BoolFlag{Name: "any-port", Usage: "take free ports"},
			&cli.BoolFlag{Name: "detach", Usage: "run in the background; millrace dev stop ends it"},
			&cli.BoolFlag{Name: "print-brokers", Usage: "print the bootstrap addresses on stdout once they serve"},
			&cli.BoolFlag{Name: "processes", Usage: "make also a single broker a process of its own, so that it can be killed and others added"},
			&cli.BoolFlag{Name: "background", Hidden: true, Usage: "the process that --detach leaves behind"},
		),
		Action:      runDev,
		Subcommands: devSubcommands(),
	}
}

func devPortFlag(usage string) cli.Flag {
	return &cli.IntFlag{Name: "port", Value: devPort, Usage: usage}
}

// devFixed are settings that dev itself makes, different for each broker.
var devFixed = []string{
	"listeners", "advertised.listeners", "log.dirs", "log.dir", "metadata.log.dir", "node.id", "broker.id", "process.roles", "millrace.join", "millrace.bootstrap.expect",
	"millrace.gossip.listener", "millrace.http.listener", "controller.quorum.voters", "controller.quorum.bootstrap.servers", "controller.listener.names",
}

func runDev(c *cli.Context) error {
	e := envOf(c)
	if c.Args().Present() {
		return unknownCommand([]string{"dev", c.Args().First()}, devSubcommands())
	}
	n, port := c.Int("n"), c.Int("port")
	if n < 1 || n > devMost {
		f := usageError(fmt.Sprintf("dev -n %d makes no sense", n), fmt.Sprintf("millrace dev -n %d", devBrokers))
		if f.why = "a cluster has at least one broker"; n > 1 {
			f.why = fmt.Sprintf("a dev cluster has at most %d brokers, and this machine could hardly run so many", devMost)
		}
		return f
	}
	if port < 0 || port > 65535 {
		f := usageError(fmt.Sprintf("--port %d is not a port", port), fmt.Sprintf("--port %d", devPort))
		f.why = "ports are numbers from 0 to 65535"
		return f
	}
	if c.Bool("detach") && !c.Bool("background") {
		return e.detach(c)
	}
	states, err := openDevStates()
	if err == nil {
		err = states.sweep()
	}
	if err != nil {
		e.hint("  the other dev commands will not see this cluster: %s", explain("", err).why)
		states = nil
	}
	dir := c.String("data")
	var layout *devLayout
	if dir != "" {
		if dir, err = filepath.Abs(dir); err != nil {
			return fmt.Errorf("find the directory of --data: %w", err)
		}
		if layout, err = readLayout(dir); err != nil {
			return err
		}
	}
	if n == 1 && layout == nil && !c.Bool("processes") {
		return runDevAlone(c, states)
	}
	if err := checkDevSettings(c, dir); err != nil {
		return err
	}
	return runDevCluster(c, states, dir, layout)
}

// checkDevSettings reads the settings as every broker will, so that what is wrong is told once and at once.
func checkDevSettings(c *cli.Context, dir string) error {
	e := envOf(c)
	for _, pair := range c.StringSlice("set") {
		key, _, _ := strings.Cut(pair, "=")
		for _, fixed := range devFixed {
			if strings.TrimSpace(key) == fixed {
				f := usageError("--set "+pair+" cannot be had with several brokers", "leave it out; --port, --data and -n are the ways to say it")
				f.why = "dev sets " + fixed + " itself, for each broker another value"
				return f
			}
		}
	}
	if _, err := e.readSettings(c, nil); err != nil {
		return err
	}
	if dir == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "meta.properties")); err == nil {
		f := usageError(fmt.Sprintf("%s has the data of one broker", dir), "millrace dev -n 1 --data "+dir+"   goes on with it; several brokers need another directory")
		f.why = "it was made by dev -n 1 or by start, and a cluster of several brokers keeps each in a directory of its own"
		return f
	}
	return nil
}

// runDevCluster runs brokers as child processes.
func runDevCluster(c *cli.Context, states *devStates, dir string, layout *devLayout) error {
	e := envOf(c)
	s := &supervisor{e: e, states: states, dir: dir, anyPort: c.Bool("any-port"), ready: make(chan struct{}), profile: &devProfile{wanted: states != nil && !c.Bool("print-brokers")}}
	s.mu.children = map[int]*devChild{}
	n := c.Int("n")
	switch {
	case layout != nil:
		if had := len(layout.Brokers); c.IsSet("n") && had != n {
			f := usageError(fmt.Sprintf("the dev cluster in %s has %d brokers, not %d", dir, had, n), "leave -n out; millrace dev add   adds one once it runs")
			f.why = "the data says how many there are"
			return f
		}
		if p := layout.Brokers[0].Clients; c.IsSet("port") && c.Int("port") != p {
			f := usageError(fmt.Sprintf("the dev cluster in %s has port %d, not %d", dir, p, c.Int("port")), "leave --port out")
			f.why = "its brokers know one another by their ports, which stay as long as the data"
			return f
		}
		s.layout = *layout
	default:
		for id := 1; id <= n; id++ {
			p := devPorts{ID: id}
			if !s.anyPort {
				var err error
				if p, err = portsByRule(id, c.Int("port")); err != nil {
					return err
				}
			}
			s.layout.Brokers = append(s.layout.Brokers, p)
		}
	}
	for _, pair := range [][2]string{{"config", c.String("config")}} {
		if pair[1] != "" {
			path, err := filepath.Abs(pair[1])
			if err != nil {
				return fmt.Errorf("find --config: %w", err)
			}
			s.settings = append(s.settings, "--config", path)
		}
	}
	if c.Bool("allow-unknown") {
		s.settings = append(s.settings, "--allow-unknown")
	}
	s.settings = append(s.settings, "--log-level", c.String("log-level"))
	hasDelay := false
	for _, pair := range c.StringSlice("set") {
		s.settings = append(s.settings, "--set", pair)
		hasDelay = hasDelay || strings.HasPrefix(pair, "group.initial.rebalance.delay.ms=")
	}
	if !hasDelay {
		s.settings = append(s.settings, "--set", "group.initial.rebalance.delay.ms=0")
	}
	kept := ""
	if dir == "" {
		var err error
		if s.dir, err = os.MkdirTemp("", "millrace-dev-"); err != nil {
			return fmt.Errorf("make a temporary data directory: %w", err)
		}
		s.temporary = true
		defer os.Remove(s.dir) // empty by then
		kept = fmt.Sprintf("data in %s, removed on exit; keep it with --data DIR", s.dir)
	} else {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the data directory: %w", err)
		}
		kept = "data in " + dir
	}
	e.hint("  starting %s (%s)", brokersCount(len(s.layout.Brokers)), kept)
	if c.Bool("print-brokers") {
		go func() {
			select {
			case <-s.ready:
				st := s.snapshot()
				fmt.Fprintln(e.stdout, st.clients())
			case <-c.Context.Done():
			}
		}()
	}
	err := s.run(c.Context)
	if err == nil && s.temporary {
		e.hint("  stopped; %s is removed", s.dir)
	} else if err == nil {
		e.hint("  stopped; millrace dev --data %s   goes on with it, millrace dev purge   removes it", s.dir)
	}
	return err
}

func brokersCount(n int) string {
	if n == 1 {
		return "1 broker"
	}
	return fmt.Sprintf("%d brokers", n)
}

// runDevAlone runs one broker in this process.
func runDevAlone(c *cli.Context, states *devStates) error {
	e := envOf(c)
	settings, err := e.readSettings(c, nil)
	if err != nil {
		return err
	}
	put := func(name, value string) {
		if _, ok := settings.IsSet(name); ok || err != nil {
			return
		}
		err = settings.Put(name, value, "dev")
	}
	p := devPorts{ID: 1} // free ports
	if !c.Bool("any-port") && c.Int("port") > 0 {
		if p, err = portsByRule(1, c.Int("port")); err != nil {
			return err
		}
	}
	put("listeners", "PLAINTEXT://"+loopback(p.Clients))
	put("millrace.http.listener", loopback(p.HTTP))
	put("group.initial.rebalance.delay.ms", "0")
	if err != nil {
		return err
	}
	dir, temporary := c.String("data"), false
	if _, ok := settings.IsSet("log.dirs"); !ok && dir == "" {
		if dir, err = os.MkdirTemp("", "millrace-dev-"); err != nil {
			return fmt.Errorf("make a temporary data directory: %w", err)
		}
		temporary = true
		defer os.RemoveAll(dir)
	}
	if c.IsSet("data") {
		if err := settings.Put("log.dirs", dir, "--data"); err != nil {
			return err
		}
	}
	cfg, err := broker.FromSettings(settings, broker.Options{DataDir: dir})
	if err != nil {
		return err
	}
	cfg.Version = binaryVersion()
	level := c.String("log-level")
	if !c.IsSet("log-level") {
		level = "warn"
	}
	if cfg.Logger, err = e.logger(level, c.String("log-format")); err != nil {
		return err
	}
	kept := "data in " + cfg.DataDir
	if temporary {
		kept = fmt.Sprintf("data in %s, removed on exit; keep it with --data DIR", dir)
	}
	e.hint("  starting 1 broker (%s)", kept)
	for _, note := range cfg.Notes {
		e.hint("  %s", strings.TrimSpace(note))
	}
	return (&devAlone{e: e, states: states, cfg: cfg, temporary: temporary, anyPort: c.Bool("any-port"), printBrokers: c.Bool("print-brokers"), profile: &devProfile{wanted: states != nil && !c.Bool("print-brokers")}}).run(c.Context)
}

// devReady says that the cluster serves and what to type next.
func (e *env) devReady(st devState) {
	if e.quiet {
		return
	}
	var line strings.Builder
	for i, b := range st.Brokers {
		if i > 0 && i%3 == 0 {
			line.WriteString("\n")
		}
		fmt.Fprintf(&line, "  ✔ broker %d  %s  ", b.ID, b.Clients)
	}
	e.hint("%s   ready in %s", line.String(), st.Took)
	selected := ""
	if st.Profile != "" {
		selected = fmt.Sprintf("        profile %q selected", st.Profile)
	}
	if http := st.Brokers[0].HTTP; http != "" {
		e.hint("  console  http://%s%s", http, selected)
	}
	local := fmt.Sprintf("localhost:%d", st.Port)
	flag := ""
	if st.Profile == "" && st.Port != devPort {
		flag = " -b " + local
	}
	e.hint("\n  Try, in another terminal:")
	e.hint("    millrace topic create orders -p 6%s", flag)
	e.hint("    echo 'k1 hello' | millrace topic produce orders -f '%%k %%v\\n'%s", flag)
	e.hint("    millrace topic consume orders -o start%s", flag)
	if len(st.Brokers) > 1 {
		e.hint("    millrace dev kill 2            # a real kill -9 of a leader; watch nothing get lost")
	}
	e.hint("    kcat -b %s -L      # any Kafka client works", local)
	e.hint("\n  Ctrl-C stops it.")
}

// devAddressFailure says how to get other ports.
func devAddressFailure(err error, anyPort bool) error {
	var f *failure
	if errors.Is(err, broker.ErrAddress) && !anyPort && errors.As(err, &f) {
		f.fix = "millrace dev --any-port   takes free ports; --port BASE chooses others"
	}
	return err
}
