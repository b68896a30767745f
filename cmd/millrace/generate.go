package main

import (
	_ "embed" // the texts that are printed
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/metadata"
)

var (
	//go:embed completion.bash
	completionBash string
	//go:embed completion.zsh
	completionZsh string
	//go:embed completion.fish
	completionFish string
	//go:embed completion.ps1
	completionPowerShell string
	//go:embed millrace.service
	systemdUnit string
)

func generateCommand() *cli.Command {
	return &cli.Command{
		Name:        "generate",
		Usage:       "print files that fit this version: shell completion, server.properties, a systemd unit",
		Subcommands: []*cli.Command{generateCompletionCommand(), generatePropertiesCommand(), generateSystemdCommand()},
	}
}

func generateCompletionCommand() *cli.Command {
	return &cli.Command{
		Name:        "completion",
		Usage:       "print the completion script of a shell",
		ArgsUsage:   "bash|zsh|fish|powershell",
		Description: "The first line of the script says how to load it. Topics, profiles and config keys complete too; a cluster that does\nnot answer within 300 ms completes nothing.",
		Action: func(c *cli.Context) error {
			e := envOf(c)
			script := map[string]string{"bash": completionBash, "zsh": completionZsh, "fish": completionFish, "powershell": completionPowerShell, "pwsh": completionPowerShell}[c.Args().First()]
			if c.Args().Len() != 1 || script == "" {
				f := usageError("which shell?", "millrace generate completion bash")
				f.why = "the command needs one of bash, zsh, fish, powershell"
				return f
			}
			return e.print(script)
		},
	}
}

// print writes a text to stdout as it is.
func (e *env) print(text string) error {
	if _, err := io.WriteString(e.stdout, text); err != nil {
		return writeError(err)
	}
	return nil
}

// propertiesSections are the headings of the printed server.properties, each with the beginnings of its keys' names;
// the first that fits takes a key. What fits none is under the last heading.
var propertiesSections = []struct {
	heading  string
	prefixes []string
}{
	{"This broker, and where clients find it", []string{"node.id", "broker.", "process.", "listener", "advertised.", "inter.broker", "controller.", "log.dir", "metadata.log.dir", "millrace.join", "millrace.bootstrap", "millrace.http"}},
	{"TLS (PEM files, read again when they change)", []string{"ssl."}},
	{"Topics, and what they inherit", []string{"num.partitions", "default.", "min.insync", "auto.create", "delete.topic", "log.", "compression.", "message.", "millrace.flush", "millrace.wal"}},
	{"Limits and housekeeping", []string{""}},
}

func generatePropertiesCommand() *cli.Command {
	return &cli.Command{
		Name:        "server.properties",
		Usage:       "print a configuration file with every key that has an effect, each with its default",
		Description: "Every key is commented out, so the file as it is changes nothing. Check yours with: millrace cluster config lint FILE",
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if err := noArguments(c); err != nil {
				return err
			}
			return e.print(serverProperties())
		},
	}
}

// serverProperties writes the honoured keys of the table as comments, under headings.
func serverProperties() string {
	parts := make([]strings.Builder, len(propertiesSections))
	for _, k := range metadata.ConfigKeys(metadata.ConfigBroker) {
		if k.Hidden || k.Class != metadata.ConfigHonoured {
			continue
		}
		for i, s := range propertiesSections {
			if hasAnyPrefix(k.Name, s.prefixes) {
				writeProperty(&parts[i], k)
				break
			}
		}
	}
	var b strings.Builder
	b.WriteString("# Configuration of a millrace broker: Kafka's keys, and ours which begin with millrace.\n" +
		"# Start it with:  millrace start --config server.properties\n" +
		"# Every key below has an effect and stands at its default; take the # off to change it. Durations and sizes may be\n" +
		"# written as 7d or 512MiB. More about a key:  millrace cluster config explain KEY\n")
	for i, s := range propertiesSections {
		fmt.Fprintf(&b, "\n\n# ---- %s ----\n%s", s.heading, parts[i].String())
	}
	return b.String()
}

func hasAnyPrefix(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func writeProperty(b *strings.Builder, k *metadata.ConfigKey) {
	fmt.Fprintln(b)
	for _, l := range wrap(k.Doc, 116) {
		fmt.Fprintln(b, "# "+l)
	}
	var notes []string
	if v := k.ValidValues(); v != "" {
		notes = append(notes, v)
	}
	if k.DefaultNote != "" {
		notes = append(notes, "default: "+k.DefaultNote)
	}
	if k.Dynamic {
		notes = append(notes, "can be changed while the broker runs")
	}
	if len(notes) > 0 {
		for _, l := range wrap("("+strings.Join(notes, "; ")+")", 116) {
			fmt.Fprintln(b, "# "+l)
		}
	}
	value := k.Default
	if k.NoDefault || k.DefaultNote != "" {
		value = ""
	}
	fmt.Fprintf(b, "#%s=%s\n", k.Name, value)
}

func generateSystemdCommand() *cli.Command {
	return &cli.Command{
		Name:        "systemd",
		Usage:       "print a systemd unit",
		Description: "millrace generate systemd > /etc/systemd/system/millrace.service; the unit's first lines say what else it needs.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "binary", Value: "/usr/local/bin/millrace", Usage: "`PATH` of the program"},
			&cli.StringFlag{Name: "config", Value: "/etc/millrace/server.properties", Usage: "`FILE` that the broker reads"},
			&cli.StringFlag{Name: "user", Value: "millrace", Usage: "`USER` and group it runs as"},
		},
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if err := noArguments(c); err != nil {
				return err
			}
			for _, name := range []string{"binary", "config", "user"} {
				if v := c.String(name); v == "" || strings.ContainsAny(v, " \t\n\"'%$\\") {
					f := usageError(fmt.Sprintf("--%s %q cannot stand in a unit", name, v), "choose a name without blanks, quotes, % and $")
					f.why = "systemd would read it as something else"
					return f
				}
			}
			return e.print(strings.NewReplacer("@BINARY@", c.String("binary"), "@CONFIG@", c.String("config"), "@USER@", c.String("user")).Replace(systemdUnit))
		},
	}
}
