package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/metadata"
)

// completeCommand is the hidden command that the shells' completion scripts call: millrace __complete WORD…, the last
// word being the one under the cursor, perhaps empty. It prints one candidate a line, or filesMark alone when the shell
// should complete names of files. It never fails and says nothing else.
const completeCommand = "__complete"

// filesMark asks the shell for names of files.
const filesMark = ":files"

// completionBudget is how long a cluster may take to answer while somebody holds the Tab key; then there are no candidates.
const completionBudget = 300 * time.Millisecond

// complete prints the candidates for the last of words.
func complete(ctx context.Context, e *env, words []string) {
	if len(words) == 0 {
		words = []string{""}
	}
	current := words[len(words)-1]
	quiet := &env{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
	x := &completion{ctx: ctx, e: quiet, app: newApp(quiet)}
	for _, candidate := range x.candidates(words[:len(words)-1], current) {
		if candidate == filesMark || strings.HasPrefix(candidate, current) {
			fmt.Fprintln(e.stdout, candidate)
		}
	}
}

// completion is one question of a shell.
type completion struct {
	ctx     context.Context
	e       *env
	app     *cli.App
	path    []string     // the command's path
	command *cli.Command // nil: the program itself
	globals []string     // global flags before the cursor
	count   int          // arguments before the cursor
}

// candidates walks the command tree along the words before the cursor, as permute does, and says what may stand there.
func (x *completion) candidates(before []string, current string) []string {
	commands := x.app.Commands
	for i := 0; i < len(before); i++ {
		word := before[i]
		if len(word) > 1 && word[0] == '-' {
			_, theirs, used := expandFlag(x.flags(), x.app.Flags, before[i:])
			if used == 0 { // its value is under the cursor
				flag, _ := findFlag(x.flags(), x.app.Flags, strings.TrimLeft(word, "-"))
				return x.flagValues(flag)
			}
			x.globals = append(x.globals, theirs...)
			i += used - 1
			continue
		}
		next := findCommand(commands, word)
		switch {
		case next != nil:
			x.path, x.command, commands = append(x.path, next.Name), next, next.Subcommands
		case len(commands) > 0:
			return nil // no such command
		default:
			x.count++
		}
	}
	if strings.HasPrefix(current, "-") {
		if name, _, ok := strings.Cut(current, "="); ok {
			flag, _ := findFlag(x.flags(), x.app.Flags, strings.TrimLeft(name, "-"))
			var out []string
			for _, v := range x.flagValues(flag) {
				if v == filesMark {
					return []string{v}
				}
				out = append(out, name+"="+v)
			}
			return out
		}
		return x.flagNames()
	}
	if len(commands) > 0 {
		var names []string
		for _, c := range commands {
			if !c.Hidden {
				names = append(names, c.Name)
			}
		}
		return names
	}
	return x.arguments()
}

// flags are those of the command that was reached.
func (x *completion) flags() []cli.Flag {
	if x.command == nil {
		return x.app.Flags
	}
	return x.command.Flags
}

func (x *completion) flagNames() []string {
	var names []string
	flags := x.flags()
	if x.command != nil {
		flags = append(slices.Clone(flags), x.app.Flags...)
	}
	for _, f := range flags {
		for _, n := range f.Names() {
			if dashed := "--" + n; len(n) > 1 && !slices.Contains(names, dashed) {
				names = append(names, dashed)
			}
		}
	}
	return append(names, "--help")
}

// flagValues are the values of a flag, by its meaning.
func (x *completion) flagValues(flag cli.Flag) []string {
	if flag == nil {
		return nil
	}
	in := strings.Join(x.path, " ")
	switch flag.Names()[0] {
	case "format":
		return outputFormats
	case "profile":
		return x.profiles()
	case "log-level":
		return []string{"debug", "info", "warn", "error"}
	case "config", "command-config", "data", "from-file", "payload-file", "producer-props":
		return []string{filesMark}
	case "topic":
		return x.topics()
	case "broker", "from", "to", "safe-to-stop":
		return x.brokers()
	case "state":
		if in == "cluster partitions list" {
			return []string{"offline", "under-replicated", "unwell"}
		}
	case "aggregate-into":
		return []string{"broker", "dir", "topic"}
	case "log-format":
		return []string{"auto", "text", "json"}
	case "compression":
		return []string{"none", "gzip", "snappy", "lz4", "zstd"}
	case "acks":
		return []string{"all", "1", "0"}
	case "topic-config":
		return pairs(configNames(metadata.ConfigTopic))
	case "set", "delete", "append", "subtract":
		switch in {
		case "start", "dev":
			return pairs(configNames(metadata.ConfigBroker))
		case "topic alter-config":
			if flag.Names()[0] == "delete" {
				return configNames(metadata.ConfigTopic)
			}
			return pairs(configNames(metadata.ConfigTopic))
		case "profile create", "profile edit":
			return x.clientKeys()
		}
	case "unset":
		return x.clientKeys()
	case "X":
		return x.clientKeys()
	}
	return nil
}

// arguments are what may stand where an argument does.
func (x *completion) arguments() []string {
	if x.command == nil {
		return nil
	}
	in := strings.Join(x.path, " ")
	switch in {
	case "topic create":
		return nil
	case "profile use", "profile print", "profile edit", "profile delete", "profile rename":
		if x.count > 0 {
			return nil
		}
		return x.profiles()
	case "cluster config explain":
		return append(configNames(metadata.ConfigBroker), configNames(metadata.ConfigTopic)...)
	case "cluster config get":
		return x.brokerKeys(false)
	case "cluster config reset":
		return x.brokerKeys(true)
	case "cluster config set":
		return pairs(x.brokerKeys(true))
	case "cluster config lint", "log dump", "log verify":
		return []string{filesMark}
	case "generate completion":
		return []string{"bash", "zsh", "fish", "powershell"}
	}
	switch {
	case strings.HasPrefix(in, "group "):
		return x.groups()
	case strings.HasPrefix(in, "topic "), strings.HasPrefix(in, "cluster partitions "), strings.HasPrefix(in, "cluster logdirs "):
		return x.topics()
	case x.count > 0: // the rest take one broker at most
		return nil
	case strings.HasPrefix(in, "dev "):
		return devBrokerIDs()
	case strings.HasPrefix(in, "cluster brokers "), strings.HasPrefix(in, "cluster maintenance "), strings.HasPrefix(in, "cluster quorum "):
		return x.brokers()
	}
	return nil
}

// brokers are the ids of the cluster's brokers, fenced ones included.
func (x *completion) brokers() []string {
	if x.command != nil && x.command.ArgsUsage == "" && !slices.ContainsFunc(x.command.Flags, func(f cli.Flag) bool {
		return slices.Contains([]string{"broker", "from", "safe-to-stop"}, f.Names()[0])
	}) {
		return nil // takes no broker
	}
	answer := make(chan []string, 1)
	x.ask(func(ctx context.Context, c *connection) error {
		all, _, err := c.registeredBrokers(ctx)
		if err != nil {
			return err
		}
		var ids []string
		for _, b := range all {
			ids = append(ids, strconv.Itoa(int(b.ID)))
		}
		answer <- ids
		return nil
	})
	select {
	case ids := <-answer:
		return ids
	default:
		return nil
	}
}

// devBrokerIDs are the ids of the brokers of all dev clusters, from what they have written down.
func devBrokerIDs() []string {
	states, err := openDevStates()
	if err != nil {
		return nil
	}
	all, err := states.all()
	if err != nil {
		return nil
	}
	var ids []string
	for _, s := range all {
		for _, b := range s.Brokers {
			if id := strconv.Itoa(b.ID); !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func (x *completion) clientKeys() []string {
	var keys []string
	for k := range clientProperties {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return pairs(keys)
}

func (x *completion) profiles() []string {
	s, err := openProfiles()
	if err != nil {
		return nil
	}
	names, err := s.names()
	if err != nil {
		return nil
	}
	return names
}

// configNames are the keys of the table that do something or are at least accepted.
func configNames(scope metadata.ConfigScope) []string {
	var names []string
	for _, k := range metadata.ConfigKeys(scope) {
		if !k.Hidden && k.Class != metadata.ConfigRefused {
			names = append(names, k.Name)
		}
	}
	return names
}

// pairs makes KEY= of keys: a value is to follow.
func pairs(keys []string) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = k + "="
	}
	return out
}

// ask calls fn with a connection to the cluster that the command line so far names. Whatever fails, or takes longer than
// completionBudget in all, is silence.
func (x *completion) ask(fn func(ctx context.Context, c *connection) error) {
	ctx, cancel := context.WithTimeout(x.ctx, completionBudget)
	defer cancel()
	app := newApp(x.e)
	app.Commands, app.Action = nil, func(*cli.Context) error { return nil } // only for the global flags
	if err := app.RunContext(context.WithValue(ctx, envKey{}, x.e), append([]string{app.Name}, x.globals...)); err != nil {
		return
	}
	x.e.timeout, x.e.verbose = completionBudget, false
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := x.e.connect(ctx, kgo.RequestRetries(0), kgo.RetryTimeout(completionBudget))
		if err != nil {
			return
		}
		defer conn.Close()
		_ = fn(ctx, conn)
	}()
	select {
	case <-done:
	case <-ctx.Done(): // a name server may hold the other goroutine longer; the process ends
	}
}

func (x *completion) topics() []string {
	answer := make(chan []string, 1)
	x.ask(func(ctx context.Context, c *connection) error {
		m, err := c.adm.Metadata(ctx)
		if err != nil {
			return err
		}
		var names []string
		for _, t := range m.Topics.Sorted() {
			if !t.IsInternal {
				names = append(names, t.Topic)
			}
		}
		answer <- names
		return nil
	})
	select {
	case names := <-answer:
		return names
	default:
		return nil
	}
}

func (x *completion) groups() []string {
	answer := make(chan []string, 1)
	x.ask(func(ctx context.Context, c *connection) error {
		listed, err := c.adm.ListGroups(ctx)
		answer <- listed.Groups() // those of the brokers that did answer
		return err
	})
	select {
	case names := <-answer:
		return names
	default:
		return nil
	}
}

// brokerKeys are the config keys that the cluster's brokers know; those of the table when the cluster does not answer:
// keys are no data, and a guess that is right for this program is better than none.
func (x *completion) brokerKeys(dynamic bool) []string {
	answer := make(chan []string, 1)
	x.ask(func(ctx context.Context, c *connection) error {
		all, err := c.brokerConfigs(ctx, -1, nil)
		if err != nil {
			return err
		}
		var names []string
		for _, k := range all {
			if !slices.Contains(names, k.Key) && (k.Dynamic || !dynamic) {
				names = append(names, k.Key)
			}
		}
		answer <- names
		return nil
	})
	select {
	case names := <-answer:
		return names
	default:
	}
	names := configNames(metadata.ConfigBroker)
	if !dynamic {
		return names
	}
	return slices.DeleteFunc(names, func(n string) bool {
		k, _ := metadata.LookupConfig(metadata.ConfigBroker, n)
		return !k.Dynamic
	})
}
