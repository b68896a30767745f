package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/cmd/broker"
	"github.com/millrace/millrace/metadata"
)

// settingFlags are the flags that start and dev share.
func settingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config", Usage: "properties `FILE` with Kafka's keys; a server.properties of a KRaft broker works"},
		&cli.StringSliceFlag{Name: "set", Usage: "set `KEY=VALUE`; wins over file and environment (repeatable)"},
		&cli.BoolFlag{Name: "allow-unknown", Usage: "warn about unknown keys instead of refusing them"},
		&cli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
		&cli.StringFlag{Name: "log-format", Value: "auto", Usage: "text, json, or auto: text on a terminal"},
	}
}

func startCommand() *cli.Command {
	return &cli.Command{
		Name:  "start",
		Usage: "run a broker",
		Description: "Runs a broker until SIGINT or SIGTERM; SIGHUP has it read its certificates again. Without other brokers to join it forms a cluster of its own.\n" +
			"Listeners are bound to this machine only, unless --advertise or the key listeners says otherwise.",
		Flags: append(settingFlags(),
			&cli.StringFlag{Name: "data", Usage: "`DIR` for records and metadata (default ./millrace-data)"},
			&cli.IntFlag{Name: "node-id", Value: -1, Usage: "this broker's `ID` (default: the one its data has, else 1)"},
			&cli.StringFlag{Name: "rack", Usage: "the rack or zone it stands in"},
			&cli.StringFlag{Name: "advertise", Usage: "`HOST` that clients are told to connect to; listens on every address"},
			&cli.StringFlag{Name: "roles", Usage: "broker,controller"},
			&cli.StringSliceFlag{Name: "join", Usage: "brokers of the cluster to join, as `HOST[:PORT],…`"},
			&cli.IntFlag{Name: "bootstrap-expect", Usage: "how many empty brokers form a new cluster together"},
			&cli.IntFlag{Name: "replace", Value: -1, Usage: "take over the `ID` of a dead broker"},
			&cli.BoolFlag{Name: "until-stdin-closes", Hidden: true, Usage: "end with the process that started it, as the brokers of dev do"},
		),
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if err := noArguments(c); err != nil {
				return err
			}
			settings, err := e.readSettings(c, nil)
			if err != nil {
				return err
			}
			puts := []struct{ name, value, flag string }{
				{"log.dirs", c.String("data"), "--data"}, {"broker.rack", c.String("rack"), "--rack"}, {"process.roles", c.String("roles"), "--roles"},
				{"millrace.join", strings.Join(c.StringSlice("join"), ","), "--join"},
			}
			if id := c.Int("node-id"); id >= 0 {
				puts = append(puts, struct{ name, value, flag string }{"node.id", fmt.Sprint(id), "--node-id"})
			}
			if n := c.Int("bootstrap-expect"); n > 0 {
				puts = append(puts, struct{ name, value, flag string }{"millrace.bootstrap.expect", fmt.Sprint(n), "--bootstrap-expect"})
			}
			for _, p := range puts {
				if p.value == "" {
					continue
				}
				if err := settings.Put(p.name, p.value, p.flag); err != nil {
					return err
				}
			}
			options := broker.Options{Advertise: c.String("advertise")}
			if id := c.Int("replace"); id >= 0 {
				options.Replace, options.Replaces = metadata.BrokerID(id), true
			}
			cfg, err := broker.FromSettings(settings, options)
			if err != nil {
				return err
			}
			cfg.Version = binaryVersion()
			cfg.Progress = func(line string) { e.hint("%s", line) }
			if cfg.Logger, err = e.logger(c.String("log-level"), c.String("log-format")); err != nil {
				return err
			}
			for _, note := range cfg.Notes {
				e.hint("%s", note)
			}
			ctx := c.Context
			if c.Bool("until-stdin-closes") {
				var cancel context.CancelFunc
				ctx, cancel = untilClosed(ctx, e.stdin)
				defer cancel()
			}
			signals, stop := hangups(&cfg)
			defer stop()
			return e.runBroker(ctx, cfg, func(b *broker.Broker) {
				go func() {
					for range signals {
						if err := b.ReloadTLS(); err != nil {
							cfg.Logger.Error("certificates can't be loaded: the old ones stay", "error", err)
						}
					}
				}()
			})
		},
	}
}

// hangups delivers SIGHUP, which has a broker with certificates read them again; one without is ended by it, as any program
// is. The channel is closed by stop.
func hangups(cfg *broker.Config) (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 1)
	if cfg.TLS() {
		signal.Notify(c, syscall.SIGHUP)
	}
	return c, func() {
		signal.Stop(c)
		close(c)
	}
}

// readSettings merges file, environment and --set.
func (e *env) readSettings(c *cli.Context, environ []string) (*broker.Settings, error) {
	if environ == nil {
		environ = os.Environ()
	}
	settings, err := broker.ReadSettings(broker.Layers{File: c.String("config"), Environ: environ, Set: c.StringSlice("set"), AllowUnknown: c.Bool("allow-unknown")})
	if err != nil {
		return nil, e.configErrors(err)
	}
	return settings, nil
}

// configErrors prints all but the last of several errors, and returns the last as the command's.
func (e *env) configErrors(err error) error {
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	all := many.Unwrap()
	for _, one := range all[:len(all)-1] {
		printFailure(e.stderr, explain("read the configuration", one))
		fmt.Fprintln(e.stderr)
	}
	return all[len(all)-1]
}

// untilClosed returns a context that ends when nothing more can be read from r.
func untilClosed(ctx context.Context, r io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r) // an error is an end too
		cancel()
	}()
	return ctx, cancel
}

// logger makes the broker's logger, always on stderr. Format auto is text on a terminal and JSON otherwise.
func (e *env) logger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		f := usageError(fmt.Sprintf("unknown log level %q", level), "--log-level info")
		f.why = "it is one of debug, info, warn, error"
		return nil, f
	}
	switch format {
	case "text", "json":
	case "auto":
		if format = "json"; terminal(e.stderr) {
			format = "text"
		}
	default:
		f := usageError(fmt.Sprintf("unknown log format %q", format), "--log-format auto")
		f.why = "it is one of auto, text, json"
		return nil, f
	}
	options := &slog.HandlerOptions{Level: l}
	if format == "text" {
		return slog.New(slog.NewTextHandler(e.stderr, options)), nil
	}
	return slog.New(slog.NewJSONHandler(e.stderr, options)), nil
}

// runBroker runs a broker in this process until ctx ends. onReady is called once it serves.
func (e *env) runBroker(ctx context.Context, cfg broker.Config, onReady func(*broker.Broker)) error {
	broker.TuneProcess(&cfg)
	b, err := broker.New(cfg)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if b.Ready(ctx) == nil && onReady != nil {
			onReady(b)
		}
	}()
	err = b.Run(ctx)
	<-done
	return brokerFailure(err)
}

// brokerFailure gives the reasons why a broker ended their exit code and their mend.
func brokerFailure(err error) error {
	if err == nil {
		return nil
	}
	var f *failure
	if errors.As(err, &f) {
		return err
	}
	var mend *metadata.Error
	if errors.As(err, &mend) {
		return &failure{code: exitFailed, what: mend.What, why: mend.Why, fix: mend.Fix, cause: err}
	}
	return &failure{
		code: exitFailed, what: "the broker stopped", why: oneLine(err.Error()), cause: err,
		fix: "mend the cause, then start it again: what was acknowledged is on disk, and is recovered at start",
	}
}

func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }

// noArguments refuses arguments of a command that has none.
func noArguments(c *cli.Context) error {
	if !c.Args().Present() {
		return nil
	}
	f := usageError(fmt.Sprintf("unexpected argument %q", c.Args().First()), c.Command.HelpName+" --help")
	f.why = "the command takes flags only"
	return f
}
