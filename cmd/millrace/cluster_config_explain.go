package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/metadata"
)

// explainedConfig is all that is known of one key.
type explainedConfig struct {
	Key       string         `json:"key" doc:"name"`
	Scope     string         `json:"scope" doc:"broker or topic"`
	Meaning   string         `json:"meaning" doc:"what it is for"`
	Effect    string         `json:"effect" doc:"honoured; accepted, no effect; refused"`
	Reason    string         `json:"reason" doc:"why it has no effect or is refused; else empty"`
	Type      string         `json:"type" doc:"type of the value"`
	Values    string         `json:"values" doc:"allowed values; empty when the type says it"`
	Default   *string        `json:"default" doc:"null when there is none"`
	DefaultBy string         `json:"default_note" doc:"what the default depends on; else empty"`
	Dynamic   bool           `json:"dynamic" doc:"whether it can be changed while brokers run"`
	Sensitive bool           `json:"sensitive" doc:"whether the value is a secret"`
	Synonyms  []string       `json:"synonyms" doc:"broker keys that give its value, the first that is set wins"`
	Now       []brokerConfig `json:"now" doc:"what it is on each broker; empty when no cluster answers, or for a topic's key"`
}

func clusterConfigExplainCommand() *cli.Command {
	return &cli.Command{
		Name:        "explain",
		Usage:       "say what a config does here, what it is now, and where that comes from",
		ArgsUsage:   "KEY…",
		Description: "Works without a cluster, and then leaves out what the key is now. A name that brokers and topics have is explained twice.",
		Action:      runClusterConfigExplain,
	}
}

func runClusterConfigExplain(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]explainedConfig{}) {
		return nil
	}
	keys := c.Args().Slice()
	if len(keys) == 0 {
		f := usageError("no key was named", "millrace cluster config explain log.retention.hours")
		f.why = "the command needs the name of a config"
		return f
	}
	var out []explainedConfig
	var ask []string
	for _, key := range keys {
		found := false
		for _, scope := range []metadata.ConfigScope{metadata.ConfigBroker, metadata.ConfigTopic} {
			k, ok := metadata.LookupConfig(scope, key)
			if !ok {
				continue
			}
			if found = true; scope == metadata.ConfigBroker {
				ask = append(ask, key)
			}
			out = append(out, explainKey(key, k))
		}
		if !found {
			return unknownKey(key)
		}
	}
	now, reached := e.brokerConfigsNow(c.Context, ask)
	for i := range out {
		out[i].Now = []brokerConfig{}
		for _, n := range now {
			if out[i].Scope == "broker" && n.Key == out[i].Key {
				out[i].Now = append(out[i].Now, n)
			}
		}
	}
	err := e.emit(result{value: out, text: func(w io.Writer, _ bool) {
		for i := range out {
			if i > 0 {
				fmt.Fprintln(w)
			}
			out[i].print(w, e.stdoutWidth())
		}
	}})
	if err == nil && !reached && len(ask) > 0 {
		e.hint("no cluster at %s, so this is what the program knows by itself", e.brokers[0])
	}
	return err
}

func explainKey(name string, k *metadata.ConfigKey) explainedConfig {
	x := explainedConfig{
		Key: name, Scope: k.Scope.String(), Meaning: k.Doc, Effect: k.Class.String(), Reason: k.Reason, Type: k.Type.String(), Values: k.ValidValues(),
		DefaultBy: k.DefaultNote, Dynamic: k.Dynamic, Sensitive: k.Sensitive, Synonyms: slices.Clone(k.Synonyms),
	}
	if !k.NoDefault && k.DefaultNote == "" && k.Class != metadata.ConfigRefused {
		x.Default = &k.Default
	}
	if x.Synonyms == nil || len(x.Synonyms) == 1 && x.Synonyms[0] == k.Name && k.Scope == metadata.ConfigBroker {
		x.Synonyms = []string{}
	}
	return x
}

// brokerConfigsNow asks the cluster what keys are, if one answers within a second.
func (e *env) brokerConfigsNow(ctx context.Context, keys []string) (now []brokerConfig, reached bool) {
	if len(keys) == 0 {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, min(time.Second, e.timeout))
	defer cancel()
	conn, err := e.connect(ctx, kgo.RequestRetries(0))
	if err != nil {
		return nil, false
	}
	defer conn.Close()
	now, err = conn.brokerConfigs(ctx, -1, keys)
	return now, err == nil
}

// print writes the explanation as lines of a name and a text, the text wrapped to the terminal.
func (x *explainedConfig) print(w io.Writer, width int) {
	line := func(name, text string) {
		if text == "" {
			return
		}
		const indent = 11
		for i, l := range wrap(text, width-indent) {
			if i > 0 {
				name = ""
			}
			fmt.Fprintf(w, "%-*s%s\n", indent, name, l)
		}
	}
	fmt.Fprintf(w, "%s (%s)\n", x.Key, x.Scope)
	line("  meaning", x.Meaning)
	effect := x.Effect
	if x.Reason != "" {
		effect += ": " + x.Reason
	}
	line("  here", effect)
	kind := x.Type
	if x.Values != "" {
		kind += ", " + x.Values
	}
	line("  type", kind)
	switch {
	case x.DefaultBy != "":
		line("  default", x.DefaultBy)
	case x.Default == nil:
		line("  default", "none")
	case *x.Default == "":
		line("  default", "empty")
	default:
		line("  default", *x.Default)
	}
	change := "needs a restart: properties file, environment or --set"
	switch {
	case x.Effect != metadata.ConfigHonoured.String():
		change = "" // nothing would change
	case x.Scope == "topic":
		change = "while brokers run: millrace topic alter-config TOPIC --set " + x.Key + "=…"
	case x.Dynamic:
		change = "while brokers run: millrace cluster config set " + x.Key + "=…"
	}
	line("  change", change)
	if len(x.Synonyms) > 0 {
		line("  from", strings.Join(x.Synonyms, ", ")+" (the first that is set wins)")
	}
	for i, n := range x.Now {
		name := ""
		if i == 0 {
			name = "  now"
		}
		line(name, fmt.Sprintf("broker %d: %v, from %s", n.Broker, cell(n.row()[2]), n.Source))
	}
}

// wrap breaks a text at spaces into lines of at most width characters; width ≤ 0 breaks nothing. A word that is longer
// than a line keeps its own.
func wrap(text string, width int) []string {
	if width <= 0 {
		return []string{strings.TrimRight(text, " ")}
	}
	var lines []string
	for _, word := range strings.Split(text, " ") {
		if n := len(lines); n > 0 && len([]rune(lines[n-1]))+1+len([]rune(word)) <= width {
			lines[n-1] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}
