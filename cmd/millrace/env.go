package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// env is what a command sees of the world: its streams and the global flags. Tests make their own.
type env struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	args   []string // the command line, without the program's name

	// Of the global flags.
	brokers []string // seeds, host:port
	named   bool     // the seeds were named by the user, not defaulted
	// flagBrokers are the seeds of the flag -b itself; profileFlag is that of -P.
	flagBrokers []string
	profileFlag string
	// profileErr is why the chosen profile cannot be used. It matters to commands that connect, not to those that mend it.
	profileErr error
	options    map[string]string
	format     string
	width      int // of the output in columns, when not 0; else the terminal's
	quiet      bool
	verbose    bool
	yes        bool
	timeout    time.Duration
}

type envKey struct{}

// envOf returns the env that the root's Before put into the context.
func envOf(c *cli.Context) *env { return c.Context.Value(envKey{}).(*env) }

// globalFlags are those that every command has, before or after its name.
func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "brokers", Aliases: []string{"b"}, Usage: "`HOST:PORT`,… of any brokers of the cluster (default localhost:9092) [$MILLRACE_BROKERS]"},
		&cli.StringFlag{Name: "profile", Aliases: []string{"P"}, Usage: "`NAME` of the profile to use instead of the current one [$MILLRACE_PROFILE]"},
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
	e.profileFlag = c.String("profile")
	var profile map[string]string
	var name string
	if name, profile, e.profileErr = chosenProfile(e.profileFlag); e.profileErr == nil {
		if err := checkClientProperties(profile); err != nil {
			f := explain("use profile "+name, err)
			e.profileErr = &failure{code: exitUsage, what: "profile " + name + ": " + f.what, why: f.why, fix: "millrace profile edit " + name + " (" + f.fix + ")", cause: err}
			profile = nil
		}
	}
	flags := c.StringSlice("X")
	options, err := clientOptions(profile, c.String("command-config"), flags)
	if err != nil {
		return err
	}
	e.options = options
	own, err := propertyFlags("-X", flags)
	if err != nil {
		return err
	}
	// Flags before environment before --command-config before profile; the last two are one map by now.
	e.brokers, e.flagBrokers = nil, seeds(c.StringSlice("brokers")...)
	for _, list := range [][]string{e.flagBrokers, seeds(own["bootstrap.servers"]), seeds(os.Getenv("MILLRACE_BROKERS")), seeds(options["bootstrap.servers"])} {
		if e.brokers = list; len(list) > 0 {
			break
		}
	}
	e.named = len(e.brokers) > 0
	if !e.named {
		e.brokers = []string{"localhost:9092"}
	}
	return nil
}

// seeds splits lists of HOST[:PORT].
func seeds(lists ...string) (out []string) {
	for _, list := range lists {
		for b := range strings.SplitSeq(list, ",") {
			if b = strings.TrimSpace(b); b != "" {
				out = append(out, withPort(b, "9092"))
			}
		}
	}
	return out
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
