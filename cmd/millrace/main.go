package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second Ctrl-C ends the process at once
	}()
	code := run(ctx, &env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs one command line and returns the exit code. Whatever goes wrong is printed as three lines on stderr.
func run(ctx context.Context, e *env, args []string) int {
	if len(args) > 0 && args[0] == completeCommand {
		complete(ctx, e, args[1:])
		return exitOK
	}
	e.args = args
	app := newApp(e)
	ordered, err := permute(app, args)
	if err == nil {
		err = app.RunContext(context.WithValue(ctx, envKey{}, e), append([]string{app.Name}, ordered...))
	}
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errBrokenPipe) || errors.Is(err, syscall.EPIPE) {
		return exitOK // `… | head`: the reader has what it wanted
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	var quiet silent
	if errors.As(err, &quiet) {
		return int(quiet)
	}
	f := explain(commandWords(args), err)
	printFailure(e.stderr, f)
	return f.code
}

// errBrokenPipe ends a command whose reader went away.
var errBrokenPipe = errors.New("nobody reads the output any more")

// commandWords is what an error of no better words says was tried: the command line up to its first flag.
func commandWords(args []string) string {
	var words []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			break
		}
		words = append(words, a)
	}
	if len(words) == 0 {
		return "run the command"
	}
	return "run millrace " + strings.Join(words, " ")
}

// newApp builds the command tree and mends the library's traps 6 to 8 (arguments.go).
func newApp(e *env) *cli.App {
	app := &cli.App{
		Name:                      "millrace",
		HelpName:                  "millrace",
		Usage:                     "a streaming broker that speaks the Kafka protocol, and its tools",
		Flags:                     globalFlags(),
		Commands:                  []*cli.Command{startCommand(), devCommand(), topicCommand(), groupCommand(), clusterCommand(), txnCommand(), logCommand(), benchCommand(), doctorCommand(), profileCommand(), generateCommand(), versionCommand()},
		Writer:                    e.stdout,
		ErrWriter:                 e.stderr,
		Reader:                    e.stdin,
		HideVersion:               true,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true,
		Suggest:                   true,
		Before:                    func(c *cli.Context) error { return e.readGlobals(c) },
		OnUsageError:              func(c *cli.Context, err error, _ bool) error { return flagError(c, err) },
		ExitErrHandler:            func(*cli.Context, error) {}, // the library would end the process
		CustomAppHelpTemplate:     appHelp,
	}
	tame(app.Commands, app)
	return app
}

// tame sets on every command what the library does not inherit.
func tame(commands []*cli.Command, app *cli.App) {
	for _, c := range commands {
		c.HideHelpCommand = true // trap 8: a topic may be called help
		c.OnUsageError = app.OnUsageError
		if len(c.Subcommands) > 0 && c.Action == nil {
			c.Action = func(ctx *cli.Context) error { return cli.ShowSubcommandHelp(ctx) }
		}
		tame(c.Subcommands, app)
	}
}

const appHelp = `{{.Usage}}

usage: millrace COMMAND [ARGUMENTS] [FLAGS]        flags may stand before or after the arguments

commands:
{{range .VisibleCommands}}  {{join .Names ", "}}{{"\t"}}{{.Usage}}
{{end}}
flags of every command:
{{range .VisibleFlags}}  {{.}}
{{end}}
start here:
  millrace dev                          three brokers on this machine, data in a temporary directory
  millrace topic create orders -p 6
  millrace COMMAND --help
`

// writeError reports a failed write to stdout; a closed pipe is no failure.
func writeError(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return errBrokenPipe
	}
	return fmt.Errorf("write to stdout: %w", err)
}
