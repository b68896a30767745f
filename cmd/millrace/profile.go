package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func profileCommand() *cli.Command {
	return &cli.Command{
		Name:  "profile",
		Usage: "keep the addresses and client properties of clusters under names",
		Subcommands: []*cli.Command{
			profileCreateCommand(), profileUseCommand(), profileListCommand(), profileCurrentCommand(), profilePrintCommand(), profileEditCommand(),
			profileDeleteCommand(), profileRenameCommand(),
		},
	}
}

type listedProfile struct {
	Name    string `json:"name" doc:"what it is called"`
	Current bool   `json:"current" doc:"whether commands use it when none is named"`
	Brokers string `json:"brokers" doc:"its bootstrap.servers; empty when it has none"`
	Path    string `json:"path" doc:"the file"`
}

type printedProfile struct {
	Name       string            `json:"name" doc:"what it is called"`
	Current    bool              `json:"current" doc:"whether commands use it when none is named"`
	Path       string            `json:"path" doc:"the file"`
	Properties map[string]string `json:"properties" doc:"client properties by key; secrets are shown as ********"`
}

// profileArguments opens the store and returns exactly n names, all of them allowed.
func profileArguments(c *cli.Context, n int) (*profileStore, []string, error) {
	s, err := openProfiles()
	if err != nil {
		return nil, nil, err
	}
	names := c.Args().Slice()
	if len(names) != n {
		f := usageError(fmt.Sprintf("%s takes %d names, not %d", c.Command.HelpName, n, len(names)), c.Command.HelpName+" "+c.Command.ArgsUsage)
		if n == 1 {
			f.what = fmt.Sprintf("%s takes one name, not %d", c.Command.HelpName, len(names))
		}
		f.why = "profiles are named one at a time"
		return nil, nil, f
	}
	for _, name := range names {
		if err := checkProfileName(name); err != nil {
			return nil, nil, err
		}
	}
	return s, names, nil
}

func setFlag(usage string) cli.Flag {
	return &cli.StringSliceFlag{Name: "set", Aliases: []string{"s"}, Usage: usage}
}

func profileCreateCommand() *cli.Command {
	return &cli.Command{
		Name:        "create",
		Usage:       "make a profile and use it",
		ArgsUsage:   "NAME",
		Description: "Example: millrace profile create prod -s bootstrap.servers=m1:9092,m2:9092 -s client.id=me",
		Flags:       []cli.Flag{setFlag("client property `KEY=VALUE` (repeatable)")},
		Action: func(c *cli.Context) error {
			e := envOf(c)
			s, names, err := profileArguments(c, 1)
			if err != nil {
				return err
			}
			name := names[0]
			if s.exists(name) {
				f := usageError("there is a profile "+name, "millrace profile edit "+name+" -s KEY=VALUE")
				f.why = "a profile is made once; " + s.path(name) + " has it"
				return f
			}
			values, err := propertyFlags("-s", c.StringSlice("set"))
			if err != nil {
				return err
			}
			if _, ok := values["bootstrap.servers"]; !ok && len(e.flagBrokers) > 0 {
				values["bootstrap.servers"] = strings.Join(e.flagBrokers, ",")
			}
			if err := checkClientProperties(values); err != nil {
				return err
			}
			if err := s.write(name, values); err != nil {
				return err
			}
			if err := s.use(name); err != nil {
				return err
			}
			e.hint("profile %s made and in use (%s)", name, s.path(name))
			if values["bootstrap.servers"] == "" {
				e.hint("it names no brokers; millrace profile edit %s -s bootstrap.servers=HOST:9092", name)
			}
			return nil
		},
	}
}

func profileUseCommand() *cli.Command {
	return &cli.Command{
		Name:      "use",
		Usage:     "make a profile the current one",
		ArgsUsage: "NAME",
		Action: func(c *cli.Context) error {
			s, names, err := profileArguments(c, 1)
			if err != nil {
				return err
			}
			if !s.exists(names[0]) {
				return s.unknown(names[0])
			}
			if err := s.use(names[0]); err != nil {
				return err
			}
			e := envOf(c)
			e.hint("profile %s in use", names[0])
			if other := os.Getenv(profileNameEnv); other != "" && other != names[0] {
				e.hint("but %s=%s is set, and wins", profileNameEnv, other)
			}
			return nil
		},
	}
}

func profileListCommand() *cli.Command {
	return &cli.Command{
		Name:    "list",
		Aliases: []string{"ls"},
		Usage:   "list profiles; * marks the current one",
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if e.wantsFields([]listedProfile{}) {
				return nil
			}
			if err := noArguments(c); err != nil {
				return err
			}
			s, err := openProfiles()
			if err != nil {
				return err
			}
			names, err := s.names()
			if err != nil {
				return err
			}
			current, err := s.current()
			if err != nil {
				return err
			}
			r := result{cols: columns("CURRENT", "NAME", "BROKERS", "+FILE")}
			var out []listedProfile
			for _, name := range names {
				p := listedProfile{Name: name, Current: name == current, Path: s.path(name)}
				values, err := s.read(name)
				if err != nil { // the others are shown all the same
					f := explain("read profile "+name, err)
					e.hint("warning: %s: %s", f.what, f.why)
				}
				p.Brokers = values["bootstrap.servers"]
				mark := " "
				if p.Current {
					mark = "*"
				}
				out = append(out, p)
				r.rows = append(r.rows, []any{mark, p.Name, p.Brokers, p.Path})
			}
			r.value = out
			if err := e.emit(r); err != nil {
				return err
			}
			if len(out) == 0 {
				e.hint("no profiles yet; millrace profile create NAME -s bootstrap.servers=HOST:9092 makes one")
			}
			return nil
		},
	}
}

func profileCurrentCommand() *cli.Command {
	return &cli.Command{
		Name:  "current",
		Usage: "print the name of the profile that commands use; exit code 1 when there is none",
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if err := noArguments(c); err != nil {
				return err
			}
			name, err := currentProfile(e)
			if err != nil {
				return err
			}
			fmt.Fprintln(e.stdout, name)
			return nil
		},
	}
}

// currentProfile is the name of the profile that the command line, the environment or the store's pointer chooses.
func currentProfile(e *env) (string, error) {
	name := e.profileFlag
	if name == "" {
		name = os.Getenv(profileNameEnv)
	}
	if name == "" {
		s, err := openProfiles()
		if err != nil {
			return "", err
		}
		if name, err = s.current(); err != nil {
			return "", err
		}
	}
	if name == "" {
		return "", &failure{code: exitFailed, what: "no profile is in use", why: "none was made, or the one in use was deleted", fix: "millrace profile use NAME, or millrace profile create NAME"}
	}
	return name, nil
}

func profilePrintCommand() *cli.Command {
	return &cli.Command{
		Name:      "print",
		Usage:     "print a profile's properties; without a name, of the one in use",
		ArgsUsage: "[NAME]",
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if e.wantsFields(printedProfile{}) {
				return nil
			}
			name := c.Args().First()
			if !c.Args().Present() {
				var err error
				if name, err = currentProfile(e); err != nil {
					return err
				}
			} else if _, _, err := profileArguments(c, 1); err != nil {
				return err
			}
			s, err := openProfiles()
			if err != nil {
				return err
			}
			values, err := s.read(name)
			if err != nil {
				return err
			}
			current, err := s.current()
			if err != nil {
				return err
			}
			p := printedProfile{name, name == current, s.path(name), map[string]string{}}
			r := result{cols: columns("KEY", "VALUE")}
			for _, k := range slices.Sorted(maps.Keys(values)) {
				v := values[k]
				if secretProperty(k) {
					v = "********"
				}
				p.Properties[k] = v
				r.rows = append(r.rows, []any{k, v})
			}
			r.value = p
			return e.emit(r)
		},
	}
}

// secretProperty says whether a value is not for the screen.
func secretProperty(key string) bool {
	for _, word := range []string{"password", "jaas", "secret", "token", "keystore.key"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}

func profileEditCommand() *cli.Command {
	return &cli.Command{
		Name:        "edit",
		Usage:       "change a profile with -s and --unset, or in $VISUAL or $EDITOR",
		ArgsUsage:   "[NAME]",
		Description: "Without a name it is the profile in use. What is not allowed is refused, and the profile stays as it was.",
		Flags: []cli.Flag{
			setFlag("set client property `KEY=VALUE` (repeatable)"),
			&cli.StringSliceFlag{Name: "unset", Usage: "take `KEY` off the profile (repeatable)"},
		},
		Action: runProfileEdit,
	}
}

func runProfileEdit(c *cli.Context) error {
	e := envOf(c)
	name := c.Args().First()
	if !c.Args().Present() {
		var err error
		if name, err = currentProfile(e); err != nil {
			return err
		}
	} else if _, _, err := profileArguments(c, 1); err != nil {
		return err
	}
	s, err := openProfiles()
	if err != nil {
		return err
	}
	if err := checkProfileName(name); err != nil {
		return err
	}
	if !s.exists(name) {
		return s.unknown(name)
	}
	if !c.IsSet("set") && !c.IsSet("unset") {
		return e.editInEditor(s, name)
	}
	values, err := s.read(name)
	if err != nil {
		return err
	}
	changes, err := propertyFlags("-s", c.StringSlice("set"))
	if err != nil {
		return err
	}
	maps.Copy(values, changes)
	for _, k := range c.StringSlice("unset") {
		if _, ok := values[k]; !ok {
			f := usageError(fmt.Sprintf("profile %s has no %s", name, k), "millrace profile print "+name)
			f.why = "only what is set can be taken off"
			return f
		}
		delete(values, k)
	}
	if err := checkClientProperties(values); err != nil {
		return err
	}
	if err := s.write(name, values); err != nil {
		return err
	}
	e.hint("profile %s changed", name)
	return nil
}

// editInEditor opens a copy of the profile, and takes it when it is right. A copy that is not right stays, and is named.
func (e *env) editInEditor(s *profileStore, name string) error {
	before, err := os.ReadFile(s.path(name))
	if err != nil {
		return profileFailure("read profile "+name, err)
	}
	copied := filepath.Join(s.dir, profilesDir, "."+name+".edit")
	if err := writePrivate(copied, before); err != nil {
		return err
	}
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		editor = "vi"
	}
	words := strings.Fields(editor) // EDITOR="code --wait" is common
	cmd := exec.Command(words[0], append(words[1:], copied)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, e.stderr, e.stderr
	if terminal(e.stdout) {
		cmd.Stdout = e.stdout
	}
	if err := cmd.Run(); err != nil {
		_ = os.Remove(copied)
		return &failure{code: exitFailed, what: "the editor " + editor + " failed, profile " + name + " is unchanged", why: err.Error(), fix: "set EDITOR, or use millrace profile edit " + name + " -s KEY=VALUE", cause: err}
	}
	values, err := readClientProperties(copied, "correct "+copied+" and copy it to "+s.path(name))
	if err == nil {
		err = checkClientProperties(values)
	}
	if err != nil {
		f := explain("edit profile "+name, err)
		return &failure{code: exitUsage, what: f.what, why: f.why + "; profile " + name + " is unchanged, your text is in " + copied, fix: f.fix, cause: err}
	}
	after, err := os.ReadFile(copied)
	if err != nil {
		return profileFailure("read "+copied, err)
	}
	if err := writePrivate(s.path(name), after); err != nil {
		return err
	}
	if err := os.Remove(copied); err != nil {
		return profileFailure("remove "+copied, err)
	}
	if string(before) == string(after) {
		e.hint("profile %s is unchanged", name)
	} else {
		e.hint("profile %s changed", name)
	}
	return nil
}

func profileDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Aliases:   []string{"rm"},
		Usage:     "delete a profile",
		ArgsUsage: "NAME",
		Action: func(c *cli.Context) error {
			e := envOf(c)
			s, names, err := profileArguments(c, 1)
			if err != nil {
				return err
			}
			name := names[0]
			if !s.exists(name) {
				return s.unknown(name)
			}
			current, err := s.current()
			if err != nil {
				return err
			}
			if err := e.confirm("delete profile " + name + " (" + s.path(name) + ")?"); err != nil {
				return err
			}
			if err := os.Remove(s.path(name)); err != nil {
				return profileFailure("delete profile "+name, err)
			}
			if current != name {
				e.hint("profile %s deleted", name)
				return nil
			}
			if err := s.use(""); err != nil {
				return err
			}
			e.hint("profile %s deleted; none is in use now", name)
			return nil
		},
	}
}

func profileRenameCommand() *cli.Command {
	return &cli.Command{
		Name:      "rename",
		Usage:     "give a profile another name",
		ArgsUsage: "OLD NEW",
		Action: func(c *cli.Context) error {
			e := envOf(c)
			s, names, err := profileArguments(c, 2)
			if err != nil {
				return err
			}
			from, to := names[0], names[1]
			switch {
			case !s.exists(from):
				return s.unknown(from)
			case s.exists(to):
				f := usageError("there is a profile "+to, "millrace profile delete "+to+"   first, or choose another name")
				f.why = "a rename would overwrite it"
				return f
			}
			current, err := s.current()
			if err != nil {
				return err
			}
			if err := os.Rename(s.path(from), s.path(to)); err != nil {
				return profileFailure("rename profile "+from, err)
			}
			if current == from {
				if err := s.use(to); err != nil {
					return err
				}
			}
			e.hint("profile %s is now %s", from, to)
			return nil
		},
	}
}
