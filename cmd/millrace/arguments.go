package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// The traps of urfave/cli v2, each with its test in arguments_test.go:
//
//  1. A flag after an argument is taken as an argument: `topic create orders -p 12` creates three topics.
//  2. A global flag after the subcommand is unknown there.
//  3. `-h` after an argument asks for help on a topic of that name.
//  4. A negative value (`-o -10`) looks like a flag.
//  5. Bundled short flags (`-eq`, `-n10`) are unknown.
//  6. String-slice flags split their values at commas.
//  7. An unknown command ends with exit code 3, an unknown flag with 1, and both print to stdout.
//  8. An argument called like the built-in help command, or like a flag, is not taken as an argument.
//
// permute mends 1 to 5 and the command half of 7 before the library sees the arguments; newApp mends the rest.

// permute walks the command tree along args (without the program's name) and returns them in the one order that
// the library reads as meant: global flags, the command's path, its flags, "--", its arguments. Unknown flags stay
// among the flags, so that the library's error names them.
func permute(app *cli.App, args []string) ([]string, error) {
	var globals, path, flags, arguments []string
	commands, current := app.Commands, (*cli.Command)(nil)
	help := false
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			arguments = append(arguments, args[i+1:]...)
			i = len(args)
			continue
		case len(arg) > 1 && arg[0] == '-':
			own := app.Flags
			if current != nil {
				own = current.Flags
			}
			mine, theirs, used := expandFlag(own, app.Flags, args[i:])
			if used == 0 {
				f := usageError("flag "+arg+" has no value", strings.Join(append([]string{"millrace"}, path...), " ")+" --help   lists the flags and their values")
				f.why = "it is the last word of the command line, and needs one"
				return nil, f
			}
			i += used - 1
			if w := mine; len(w) > 0 && (w[len(w)-1] == "-h" || w[len(w)-1] == "--help") {
				help = true
			}
			globals = append(globals, theirs...)
			if current == nil {
				globals = append(globals, mine...)
			} else {
				flags = append(flags, mine...)
			}
			continue
		}
		if current != nil && len(commands) == 0 {
			arguments = append(arguments, arg)
			continue
		}
		next := findCommand(commands, arg)
		if next == nil && arg == "help" && len(path) == 0 {
			help = true // `millrace help topic create`
			continue
		}
		if next == nil {
			return nil, unknownCommand(append(path, arg), commands)
		}
		path = append(path, next.Name)
		current, commands = next, next.Subcommands
	}
	if help {
		return append(path, "--help"), nil
	}
	out := append(append(globals, path...), flags...)
	if len(arguments) > 0 {
		out = append(append(out, "--"), arguments...)
	}
	return out, nil
}

// expandFlag reads one flag at the start of args, with its value: the words to hand on for the command, those for the
// program, and how many of args it took: 0 when the flag's value is missing. A bundle of short flags becomes one word each.
func expandFlag(own, global []cli.Flag, args []string) (mine, theirs []string, used int) {
	put := func(isGlobal bool, word string) {
		if isGlobal {
			theirs = append(theirs, word)
		} else {
			mine = append(mine, word)
		}
	}
	name, _, hasValue := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
	flag, isGlobal := findFlag(own, global, name)
	switch {
	case flag != nil && (hasValue || isBool(flag)):
		put(isGlobal, args[0])
		return mine, theirs, 1
	case flag != nil && len(args) == 1:
		return nil, nil, 0
	case flag != nil:
		// The value stays with its flag, even when it starts with a dash: trap 4.
		put(isGlobal, "--"+name+"="+args[1])
		return mine, theirs, 2
	case name == "h" || name == "help" || strings.HasPrefix(args[0], "--"):
		return args[:1], nil, 1
	}
	// A bundle: every letter is a short flag; the first that takes a value takes the rest, or the next argument.
	for letters := args[0][1:]; letters != ""; {
		letter := letters[:1]
		letters = letters[1:]
		flag, isGlobal := findFlag(own, global, letter)
		switch {
		case flag == nil && letter == "h":
			return []string{"--help"}, nil, 1
		case flag == nil:
			return args[:1], nil, 1 // the library's error names the whole word
		case isBool(flag):
			put(isGlobal, "-"+letter)
		case letters != "":
			put(isGlobal, "-"+letter+"="+strings.TrimPrefix(letters, "="))
			return mine, theirs, 1
		case len(args) > 1:
			put(isGlobal, "-"+letter+"="+args[1])
			return mine, theirs, 2
		default:
			return nil, nil, 0
		}
	}
	return mine, theirs, 1
}

// findFlag looks for a flag by any of its names, the command's own before the global ones.
func findFlag(own, global []cli.Flag, name string) (flag cli.Flag, isGlobal bool) {
	for _, f := range own {
		for _, n := range f.Names() {
			if n == name {
				return f, false
			}
		}
	}
	for _, f := range global {
		for _, n := range f.Names() {
			if n == name {
				return f, true
			}
		}
	}
	return nil, false
}

func isBool(f cli.Flag) bool {
	_, ok := f.(*cli.BoolFlag)
	return ok
}

func findCommand(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

func unknownCommand(path []string, commands []*cli.Command) error {
	var names []string
	for _, c := range commands {
		names = append(names, c.Names()...)
	}
	f := usageError("unknown command: millrace "+strings.Join(path, " "), "")
	parent := strings.Join(append([]string{"millrace"}, path[:len(path)-1]...), " ")
	if near := nearest(path[len(path)-1], names); near != "" {
		f.why, f.fix = "did you mean "+near+"?", parent+" "+near
	} else {
		f.why, f.fix = "there is no such command", parent+" --help   lists the commands"
	}
	return f
}

// flagError turns the library's words about flags into the three lines.
func flagError(c *cli.Context, err error) error {
	name, found := strings.CutPrefix(err.Error(), "flag provided but not defined: ")
	path := "millrace"
	if c.Command != nil && c.Command.HelpName != "" {
		path = c.Command.HelpName
	}
	if !found {
		f := usageError("bad flag for "+path, path+" --help   lists the flags and their values")
		f.why = err.Error()
		return f
	}
	name = strings.TrimLeft(name, "-")
	var names []string
	for _, f := range append(append([]cli.Flag{}, c.Command.Flags...), c.App.Flags...) {
		for _, n := range f.Names() {
			if len(n) > 1 {
				names = append(names, n)
			}
		}
	}
	dashes := "--"
	if len(name) == 1 {
		dashes = "-"
	}
	f := usageError(fmt.Sprintf("unknown flag %s%s for %s", dashes, name, path), path+" --help   lists the flags")
	f.why = "the command has no such flag"
	if near := nearest(name, names); near != "" {
		f.why, f.fix = "did you mean --"+near+"?", "use --"+near
	}
	return f
}

// nearest returns the candidate that looks most like word, "" when none does.
func nearest(word string, candidates []string) string {
	best, least := "", 1+len(word)/3
	for _, c := range candidates {
		if len(c) > 1 && len(word) > 1 && (strings.HasPrefix(c, word) || strings.HasPrefix(word, c)) && least > 1 {
			best, least = c, 1
		}
		if d := editDistance(word, c); d < least || d == least && best == "" && d <= 2 && len(word) > 2 {
			best, least = c, d
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// topicArguments returns the command's arguments as topic names. A name that starts with a dash is refused whatever
// the permuter did: it is a mistyped flag, and no topic should be made or deleted for it.
func topicArguments(c *cli.Context, least int) ([]string, error) {
	names := c.Args().Slice()
	seen := map[string]bool{}
	for _, n := range names {
		if strings.HasPrefix(n, "-") {
			f := usageError(fmt.Sprintf("%q is not a topic name", n), c.Command.HelpName+" --help   lists the flags")
			f.why = "it starts with a dash, so it looks like a flag"
			return nil, f
		}
		if n == "" {
			f := usageError("a topic name is empty", c.Command.HelpName+" NAME")
			f.why = "perhaps a variable in the command line is not set"
			return nil, f
		}
		if seen[n] {
			f := usageError(fmt.Sprintf("topic %s is named twice", n), c.Command.HelpName+" "+n)
			f.why = "each topic can be named once"
			return nil, f
		}
		seen[n] = true
	}
	if len(names) < least {
		f := usageError("no topic was named", c.Command.HelpName+" "+c.Command.ArgsUsage)
		f.why = "the command needs the name of a topic"
		return nil, f
	}
	return names, nil
}
