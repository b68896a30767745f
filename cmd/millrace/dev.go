package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/cmd/broker"
)

// devPort is the first broker's port; broker k uses devPort + 1000·(k-1).
const devPort = 9092

func devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "run a broker for development: this machine only, data removed on exit",
		Description: "Prints what to type next. Data goes to a temporary directory that is removed on exit; --data keeps it.\n" +
			"Test suites use: millrace dev -n 1 --any-port --quiet --print-brokers   whose first line on stdout is the bootstrap address.",
		Flags: append(settingFlags(),
			&cli.IntFlag{Name: "n", Value: 1, Usage: "how many brokers; this version runs 1"},
			&cli.IntFlag{Name: "port", Value: devPort, Usage: "client port of the first broker"},
			&cli.StringFlag{Name: "data", Usage: "keep the data in `DIR`"},
			&cli.BoolFlag{Name: "any-port", Usage: "take free ports"},
			&cli.BoolFlag{Name: "print-brokers", Usage: "print the bootstrap addresses on stdout once they serve"},
		),
		Action: runDev,
	}
}

func runDev(c *cli.Context) error {
	e := envOf(c)
	if err := noArguments(c); err != nil {
		return err
	}
	if n := c.Int("n"); n != 1 {
		f := usageError(fmt.Sprintf("dev -n %d cannot be done yet", n), "millrace dev -n 1")
		f.why = "several brokers come with the cluster release; this version runs one"
		if n < 1 {
			f.what, f.why = fmt.Sprintf("dev -n %d makes no sense", n), "a cluster has at least one broker"
		}
		return f
	}
	port := c.Int("port")
	if port < 0 || port > 65535 {
		f := usageError(fmt.Sprintf("--port %d is not a port", port), fmt.Sprintf("--port %d", devPort))
		f.why = "ports are numbers from 0 to 65535"
		return f
	}
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
	httpPort := 9644
	if c.IsSet("port") {
		httpPort = port + 552 // keeps Kafka's and our port as far apart as 9092 and 9644 are
	}
	if c.Bool("any-port") {
		port, httpPort = 0, 0
	}
	put("listeners", fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", port))
	put("millrace.http.listener", "127.0.0.1:"+strconv.Itoa(httpPort))
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
	if cfg.Logger, err = e.logger(level); err != nil {
		return err
	}
	kept := ""
	if temporary {
		kept = fmt.Sprintf("data in %s, removed on exit; keep it with --data DIR", dir)
	} else {
		kept = "data in " + cfg.DataDir
	}
	e.hint("  starting 1 broker (%s)", kept)
	for _, note := range cfg.Notes {
		if !strings.Contains(note, "group.initial.rebalance.delay.ms") && note != "these settings are accepted and have no effect:" {
			e.hint("  %s", strings.TrimSpace(note))
		}
	}
	began := time.Now()
	err = e.runBroker(c.Context, cfg, func(b *broker.Broker) {
		if c.Bool("print-brokers") {
			fmt.Fprintln(e.stdout, b.Advertised())
		}
		e.devBanner(b, time.Since(began))
	})
	if errors.Is(err, broker.ErrAddress) && !c.Bool("any-port") {
		var f *failure
		if errors.As(err, &f) {
			f.fix = "millrace dev --any-port   takes free ports; --port BASE chooses others"
		}
	}
	if err == nil && temporary {
		e.hint("  stopped; %s is removed", dir)
	}
	return err
}

// devBanner says what to type next.
func (e *env) devBanner(b *broker.Broker, took time.Duration) {
	if e.quiet {
		return
	}
	address := b.Advertised()
	flag, local := "", address
	if _, port, err := net.SplitHostPort(address); err == nil {
		local = "localhost:" + port
		if port != strconv.Itoa(devPort) {
			flag = " -b " + local
		}
	}
	e.hint("  ✔ broker %d  %s     ready in %s", b.NodeID(), address, took.Round(10*time.Millisecond))
	if http, ok := b.Addrs()["HTTP"]; ok {
		e.hint("  health and metrics  http://%s/readyz  http://%s/metrics", http, http)
	}
	e.hint("\n  Try, in another terminal:")
	e.hint("    millrace topic create orders -p 6%s", flag)
	e.hint("    echo 'k1 hello' | millrace topic produce orders -f '%%k %%v\\n'%s", flag)
	e.hint("    millrace topic consume orders -o start%s", flag)
	e.hint("    kcat -b %s -L      # any Kafka client works", local)
	e.hint("\n  Ctrl-C stops it.")
}
