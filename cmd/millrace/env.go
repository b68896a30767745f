package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// env is what a command sees of the world: its streams and the global flags. Tests make their own.
type env struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer

	// Of the global flags.
	brokers []string // seeds, host:port
	named   bool     // the seeds were named by the user, not defaulted
	options map[string]string
	format  string
	quiet   bool
	verbose bool
	yes     bool
	timeout time.Duration
}

type envKey struct{}

// envOf returns the env that the root's Before put into the context.
func envOf(c *cli.Context) *env { return c.Context.Value(envKey{}).(*env) }

// globalFlags are those that every command has, before or after its name.
func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "brokers", Aliases: []string{"b"}, EnvVars: []string{"MILLRACE_BROKERS"}, Usage: "`HOST:PORT`,… of any brokers of the cluster (default localhost:9092)"},
		&cli.StringSliceFlag{Name: "X", Usage: "client property `KEY=VALUE`, as in Kafka's client.properties (repeatable)"},
		&cli.StringFlag{Name: "command-config", Usage: "`FILE` of client properties"},
		&cli.StringFlag{Name: "format", Aliases: []string{"output"}, Value: "table", Usage: "how to print: table, wide, json, yaml, or help for the JSON's fields"},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "no hints and no progress"},
		&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log what the client does, on stderr"},
		&cli.BoolFlag{Name: "no-color", Usage: "no colour (also NO_COLOR=1, TERM=dumb)"},
		&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "how long to wait for the cluster"},
		&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask before destroying something"},
	}
}

// readGlobals fills the env from the global flags.
func (e *env) readGlobals(c *cli.Context) error {
	e.format = c.String("format")
	if err := checkFormat(e.format); err != nil {
		return err
	}
	e.quiet, e.verbose, e.yes = c.Bool("quiet"), c.Bool("verbose"), c.Bool("yes")
	e.timeout = c.Duration("timeout")
	if e.timeout <= 0 {
		f := usageError("--timeout must be longer than nothing", "--timeout 10s")
		f.why = "it is " + e.timeout.String()
		return f
	}
	options, err := clientOptions(c.String("command-config"), c.StringSlice("X"))
	if err != nil {
		return err
	}
	e.options = options
	e.brokers = nil
	for _, list := range c.StringSlice("brokers") {
		for b := range strings.SplitSeq(list, ",") {
			if b = strings.TrimSpace(b); b != "" {
				e.brokers = append(e.brokers, withPort(b, "9092"))
			}
		}
	}
	if len(e.brokers) == 0 && options["bootstrap.servers"] != "" {
		for b := range strings.SplitSeq(options["bootstrap.servers"], ",") {
			e.brokers = append(e.brokers, withPort(strings.TrimSpace(b), "9092"))
		}
	}
	e.named = len(e.brokers) > 0
	if !e.named {
		e.brokers = []string{"localhost:9092"}
	}
	return nil
}

// withPort adds a port to a host that has none. IPv6 addresses need brackets.
func withPort(host, port string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		return host
	}
	return host + ":" + port
}

// ctx returns the command's context with the time limit of --timeout.
func (e *env) ctx(c *cli.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context, e.timeout)
}

// hint prints a line of talk for people, on stderr, unless --quiet.
func (e *env) hint(format string, args ...any) {
	if !e.quiet {
		fmt.Fprintf(e.stderr, format+"\n", args...)
	}
}

// confirm is asked before anything is destroyed or moved, after its plan was printed on stderr. Without a terminal
// only --yes goes on.
func (e *env) confirm(question string) error {
	if e.yes {
		return nil
	}
	if !terminal(e.stdin) || !terminal(e.stderr) {
		f := usageError("not done: "+question, "add --yes, or --dry-run, which only shows the plan")
		f.why = "there is no terminal to ask on"
		return f
	}
	fmt.Fprintf(e.stderr, "%s [y/N] ", question)
	line, err := bufio.NewReader(e.stdin).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(e.stderr)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	fmt.Fprintln(e.stderr, "nothing was changed")
	return silent(exitFailed)
}
