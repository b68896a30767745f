package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

func testEnv() (*env, *bytes.Buffer, *bytes.Buffer) {
	var out, errs bytes.Buffer
	return &env{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}, &out, &errs
}

// permute reorders the command line as the library needs it: one case per trap.
func TestPermute(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		e, _, _ := testEnv()
		got, err := permute(newApp(e), strings.Fields(in))
		require.NoError(t, err)
		require.Equal(t, want, strings.Join(got, " "), in)
	}
	// Trap 1: a flag after an argument.
	f("topic create orders -p 12", "topic create --p=12 -- orders")
	f("topic create orders --partitions=12 pay --if-not-exists", "topic create --partitions=12 --if-not-exists -- orders pay")
	f("topic create -p 3 -c retention.ms=7d orders -c cleanup.policy=compact", "topic create --p=3 --c=retention.ms=7d --c=cleanup.policy=compact -- orders")
	// Trap 2: a global flag after the subcommand, or after an argument.
	f("topic list -b localhost:1 --format json", "--b=localhost:1 --format=json topic list")
	f("-b h:1 topic list", "--b=h:1 topic list")
	f("topic delete orders --yes -q", "--yes -q topic delete -- orders")
	f("cluster health -w --timeout=3s", "--timeout=3s cluster health -w")
	// The command's own flag wins over a global one of the same letter.
	f("topic create -p 1 t -y", "-y topic create --p=1 -- t")
	// Trap 3: help after an argument drops the arguments.
	f("topic create orders -h", "topic create --help")
	f("topic create orders --help -p 3", "topic create --help")
	f("--help topic", "topic --help")
	f("help", "--help")
	f("help topic create", "topic create --help")
	f("topic consume -eh orders", "topic consume --help")
	// Trap 4: negative values, and values that look like flags or commands.
	f("topic consume orders -o -10", "topic consume --o=-10 -- orders")
	f("topic consume orders -o=-10 -e", "topic consume -o=-10 -e -- orders")
	f("topic produce t -k -x", "topic produce --k=-x -- t")
	f("topic produce t -f --", "topic produce --f=-- -- t")
	// Trap 5: bundles.
	f("topic list -dr a.*", "topic list -d -r -- a.*")
	f("topic consume t -en10", "topic consume -e -n=10 -- t")
	f("topic consume t -eo -5", "topic consume -e -o=-5 -- t")
	f("topic consume t -p0 -o10:20", "topic consume -p=0 -o=10:20 -- t")
	f("topic list -qd", "-q topic list -d")
	// "--" ends flags.
	f("topic describe -- -p", "topic describe -- -p")
	f("topic describe a -- -p b", "topic describe -- a -p b")
	// Unknown flags stay among the flags, so that the error names them.
	f("topic create orders --shards 3", "topic create --shards -- orders 3")
	// Trap 8: arguments called like commands and flags.
	f("topic create help", "topic create -- help")
	f("topic describe topic list brokers", "topic describe -- topic list brokers")
	// Aliases.
	f("topic ls", "topic list")
	f("topic rm x", "topic delete -- x")
	f("", "")
	f("topic", "topic")
}

// Unknown commands are usage errors that name the nearest one, never printed to stdout (trap 7).
func TestPermuteUnknownCommand(t *testing.T) {
	f := func(in string, parts ...string) {
		t.Helper()
		e, out, errs := testEnv()
		require.Equal(t, exitUsage, run(context.Background(), e, strings.Fields(in)))
		require.Empty(t, out.String())
		requireThreeLines(t, errs.String(), parts...)
	}
	f("topik list", "unknown command: millrace topik", "did you mean topic?")
	f("topic creat orders", "unknown command: millrace topic creat", "fix:   millrace topic create")
	f("topic zzz", "there is no such command", "millrace topic --help")
	f("topic list --formt json", "unknown flag --formt for millrace topic list", "did you mean --format?")
	f("topic create orders --partitons 3", "did you mean --partitions?")
	f("topic create orders -p many", "bad flag")
	f("topic create orders -p", "flag -p has no value")
	f("topic consume t -eo", "flag -eo has no value")
	f("topic list -b", "flag -b has no value")
	f("topic create --", "no topic was named")
	f("topic create -p 3", "no topic was named")
	f("topic create -- -p", `"-p" is not a topic name`)
	f("topic create a a", "named twice")
	f("topic list --format xml", `unknown output format "xml"`)
	f("topic list --timeout 0s", "--timeout must be longer")
	f("topic list -X bootstrap", "is not KEY=VALUE")
	f("topic list -X security.protocol=SASL_SSL", "later release")
	f("topic list -X sasl.mechanism=PLAIN", "unknown client property")
	f("topic list --command-config /does/not/exist", "cannot read the client properties")
	f("start now", `unexpected argument "now"`)
}

func requireThreeLines(t *testing.T, stderr string, parts ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	require.Len(t, lines, 3, "%s", stderr)
	require.True(t, strings.HasPrefix(lines[0], "error: "), "%s", stderr)
	require.True(t, strings.HasPrefix(lines[1], "why:   "), "%s", stderr)
	require.True(t, strings.HasPrefix(lines[2], "fix:   "), "%s", stderr)
	for _, p := range parts {
		require.Contains(t, stderr, p)
	}
}

// Trap 6: a value with commas stays one value. Every command is reached through run, with its flags as given.
func TestSliceFlagsKeepCommas(t *testing.T) {
	e, _, _ := testEnv()
	app := newApp(e)
	var got []string
	findCommand(findCommand(app.Commands, "topic").Subcommands, "create").Action = func(c *cli.Context) error {
		got = append(got, c.StringSlice("topic-config")...)
		got = append(got, c.Args().Slice()...)
		return nil
	}
	args, err := permute(app, []string{"topic", "create", "orders", "-c", "cleanup.policy=compact,delete", "-c", "a=b"})
	require.NoError(t, err)
	require.NoError(t, app.RunContext(context.WithValue(context.Background(), envKey{}, e), append([]string{"millrace"}, args...)))
	require.Equal(t, []string{"cleanup.policy=compact,delete", "a=b", "orders"}, got)
}

// Help goes to stdout with code 0; the program alone prints its help.
func TestHelp(t *testing.T) {
	for _, in := range []string{"", "--help", "-h", "topic", "topic --help", "topic create x -h", "dev --help"} {
		e, out, errs := testEnv()
		require.Equal(t, exitOK, run(context.Background(), e, strings.Fields(in)), in)
		require.NotEmpty(t, out.String(), in)
		require.Empty(t, errs.String(), in)
	}
}

// Every command and flag says what it does, short flags never hide a global one but on purpose, and no command takes
// the built-in help command.
func TestCommandTree(t *testing.T) {
	e, _, _ := testEnv()
	app := newApp(e)
	var walk func(path string, commands []*cli.Command)
	walk = func(path string, commands []*cli.Command) {
		for _, c := range commands {
			require.NotEmpty(t, c.Usage, path+c.Name)
			require.True(t, c.HideHelpCommand, path+c.Name)
			names := map[string]bool{}
			for _, f := range c.Flags {
				doc, ok := f.(cli.DocGenerationFlag)
				require.True(t, ok)
				require.NotEmpty(t, doc.GetUsage(), "%s%s --%s", path, c.Name, f.Names()[0])
				for _, n := range f.Names() {
					require.False(t, names[n], "%s%s has the flag %s twice", path, c.Name, n)
					names[n] = true
					if _, global := findFlag(nil, app.Flags, n); global {
						t.Errorf("%s%s: flag %s hides the global one", path, c.Name, n)
					}
				}
			}
			walk(path+c.Name+" ", c.Subcommands)
		}
	}
	walk("", app.Commands)
}

func TestNearest(t *testing.T) {
	require.Equal(t, "format", nearest("formt", []string{"format", "quiet"}))
	require.Equal(t, "partitions", nearest("partition", []string{"partitions", "replicas"}))
	require.Equal(t, "", nearest("zebra", []string{"format", "quiet"}))
}
