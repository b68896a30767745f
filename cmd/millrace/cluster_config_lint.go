package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/cmd/broker"
	"github.com/millrace/millrace/metadata"
)

// lintFinding is one thing that a properties file has to say about itself.
type lintFinding struct {
	Severity string `json:"severity" doc:"error: the broker would not start; warning; note: nothing to do"`
	Kind     string `json:"kind" doc:"refused, unknown, invalid, conflict, deprecated, no-effect, or security"`
	Key      string `json:"key" doc:"the config; empty when it is about several"`
	Message  string `json:"message" doc:"what is the matter, and why"`
	Fix      string `json:"fix" doc:"what to do; empty when nothing need be done"`
}

// deprecatedConfigs are keys that Kafka 4 deprecated or gave another name: why, and what to do.
var deprecatedConfigs = map[string][2]string{
	"broker.id":                    {"it is the older name of node.id", "use node.id"},
	"offsets.commit.required.acks": {"Kafka deprecated it: offsets are always committed with acks=all", "leave it out"},
	"log.cleaner.enable":           {"Kafka deprecated it: the cleaner always runs", "leave it out"},
}

func clusterConfigLintCommand() *cli.Command {
	return &cli.Command{
		Name:        "lint",
		Usage:       "check a server.properties: what would be refused, is unknown, or has no effect; exit code 1 when there are errors",
		ArgsUsage:   "FILE",
		Description: "Needs no cluster. A file without errors starts a broker.",
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "strict", Usage: "exit code 1 for warnings too"}},
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if e.wantsFields([]lintFinding{}) {
				return nil
			}
			if c.Args().Len() != 1 {
				f := usageError(fmt.Sprintf("lint takes one file, not %d", c.Args().Len()), "millrace cluster config lint server.properties")
				f.why = "a configuration is one file of Kafka's keys"
				return f
			}
			file := c.Args().First()
			findings, err := lintFile(file)
			if err != nil {
				return err
			}
			r := result{value: findings, text: func(w io.Writer, _ bool) { printFindings(w, findings, e.stdoutWidth()) }}
			if err := e.emit(r); err != nil {
				return err
			}
			counts := map[string]int{}
			for _, f := range findings {
				counts[f.Severity]++
			}
			e.hint("%s: %s, %s, %s", file, count(counts["error"], "error"), count(counts["warning"], "warning"), count(counts["note"], "note"))
			if counts["error"] > 0 || c.Bool("strict") && counts["warning"] > 0 {
				return &failure{code: exitFailed, what: file + " has " + count(counts["error"], "error") + " and " + count(counts["warning"], "warning"),
					why: "a broker would not start with it, or not do what it says", fix: "correct the lines above; millrace cluster config explain KEY says more"}
			}
			return nil
		},
	}
}

// lintFile returns the findings of a file, errors first, then in order of the key.
func lintFile(file string) ([]lintFinding, error) {
	pairs, err := broker.ReadProperties(file)
	if err != nil {
		f := explain("read "+file, err)
		f.code = exitUsage
		return nil, f
	}
	findings := []lintFinding{}
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		findings = append(findings, lintPair(key, pairs[key])...)
	}
	// What only shows when all keys are taken together is looked for once each of them is right.
	if !slices.ContainsFunc(findings, func(f lintFinding) bool { return f.Severity == "error" }) {
		findings = append(findings, lintWhole(file)...)
	}
	rank := map[string]int{"error": 0, "warning": 1, "note": 2}
	slices.SortStableFunc(findings, func(a, b lintFinding) int { return rank[a.Severity] - rank[b.Severity] })
	return findings, nil
}

func lintPair(key, value string) (out []lintFinding) {
	finding := func(severity, kind string, err error) lintFinding {
		f := lintFinding{Severity: severity, Kind: kind, Key: key, Message: err.Error()}
		var mend *metadata.Error
		if errors.As(err, &mend) {
			f.Message, f.Fix = mend.What, mend.Fix
			if mend.Why != "" {
				f.Message += ": " + mend.Why
			}
		}
		return f
	}
	k, known := metadata.LookupConfig(metadata.ConfigBroker, key)
	_, err := metadata.CheckConfig(metadata.ConfigBroker, key, value)
	switch {
	case !known:
		return []lintFinding{finding("error", "unknown", err)}
	case err != nil && (k.Class == metadata.ConfigRefused || isRefusal(err)):
		return []lintFinding{finding("error", "refused", err)}
	case err != nil:
		return []lintFinding{finding("error", "invalid", err)}
	}
	if instead, ok := deprecatedConfigs[key]; ok {
		out = append(out, lintFinding{Severity: "warning", Kind: "deprecated", Key: key, Message: key + " is deprecated: " + instead[0], Fix: instead[1]})
	}
	if k.Class == metadata.ConfigInert {
		out = append(out, lintFinding{Severity: "note", Kind: "no-effect", Key: key, Message: k.Reason})
	}
	return out
}

// isRefusal says whether a value was refused although it is well formed: honouring it would be unsafe here.
func isRefusal(err error) bool {
	var mend *metadata.Error
	return errors.As(err, &mend) && strings.HasSuffix(mend.What, " is refused")
}

// lintWhole makes a broker's configuration out of the file, as start does.
func lintWhole(file string) []lintFinding {
	settings, err := broker.ReadSettings(broker.Layers{File: file})
	var cfg broker.Config
	if err == nil {
		cfg, err = broker.FromSettings(settings, broker.Options{DataDir: "./millrace-data"})
	}
	if err != nil {
		f := explain("start a broker with "+file, err)
		return []lintFinding{{Severity: "error", Kind: "conflict", Message: f.what + ": " + f.why, Fix: f.fix}}
	}
	var out []lintFinding
	for _, note := range cfg.Notes {
		if text, ok := strings.CutPrefix(note, "warning: "); ok {
			out = append(out, lintFinding{Severity: "warning", Kind: "security", Message: text})
		}
	}
	return out
}

// printFindings writes one paragraph per finding: severity, key and message, wrapped to the terminal.
func printFindings(w io.Writer, findings []lintFinding, width int) {
	const indent = "         "
	for _, f := range findings {
		text := f.Message
		if f.Key != "" && !strings.Contains(text, f.Key) {
			text = f.Key + ": " + text
		}
		for i, l := range wrap(text, width-len(indent)) {
			head := indent
			if i == 0 {
				head = fmt.Sprintf("%-*s", len(indent), f.Severity)
			}
			fmt.Fprintln(w, head+l)
		}
		if f.Fix != "" {
			for i, l := range wrap(f.Fix, width-len(indent)-len("fix:   ")) {
				head := indent + "       "
				if i == 0 {
					head = indent + "fix:   "
				}
				fmt.Fprintln(w, head+l)
			}
		}
	}
}
