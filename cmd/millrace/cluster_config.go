package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/metadata"
)

func clusterConfigCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "look at the configuration of brokers, explain it, check a file, change it while brokers run",
		Subcommands: []*cli.Command{
			clusterConfigExplainCommand(), clusterConfigGetCommand(), clusterConfigListCommand(), clusterConfigLintCommand(), clusterConfigSetCommand(), clusterConfigResetCommand(),
		},
	}
}

// brokerConfig is one key of one broker.
type brokerConfig struct {
	Broker    int32   `json:"broker" doc:"broker id"`
	Key       string  `json:"key" doc:"name"`
	Value     *string `json:"value" doc:"null when it is secret, or not set and without default"`
	Source    string  `json:"source" doc:"DEFAULT_CONFIG, STATIC_BROKER_CONFIG (file, environment, --set), DYNAMIC_DEFAULT_BROKER_CONFIG or DYNAMIC_BROKER_CONFIG"`
	Type      string  `json:"type" doc:"type of the value"`
	Dynamic   bool    `json:"dynamic" doc:"whether it can be changed while the broker runs"`
	Sensitive bool    `json:"sensitive" doc:"whether the value is a secret"`
	Effect    string  `json:"effect" doc:"honoured; accepted, no effect; unknown here"`
}

// row is the config as a table shows it.
func (b *brokerConfig) row() []any {
	value := any(nil)
	switch {
	case b.Value != nil:
		value = *b.Value
	case b.Sensitive:
		value = "********"
	}
	return []any{b.Broker, b.Key, value, b.Source, b.Type, b.Dynamic, b.Effect}
}

var brokerConfigColumns = []string{"BROKER#", "KEY", "VALUE", "SOURCE", "+TYPE", "+DYNAMIC", "+EFFECT"}

func brokerFlag(usage string) cli.Flag {
	return &cli.IntFlag{Name: "broker", Value: -1, Usage: usage}
}

// brokerConfigs asks one broker, or all when id is negative, for their configs: keys, or all when keys is nil.
func (c *connection) brokerConfigs(ctx context.Context, id int, keys []string) ([]brokerConfig, error) {
	m, err := c.adm.BrokerMetadata(ctx)
	if err != nil {
		return nil, c.fail("ask for the brokers", err)
	}
	var ids []int32
	for _, b := range m.Brokers {
		if id < 0 || int(b.NodeID) == id {
			ids = append(ids, b.NodeID)
		}
	}
	if len(ids) == 0 {
		f := &failure{code: exitFailed, what: fmt.Sprintf("there is no broker %d", id), why: "the cluster names no such broker, or it is fenced", fix: "millrace cluster info   shows the brokers"}
		return nil, f
	}
	slices.Sort(ids)
	answers, err := c.adm.DescribeBrokerConfigs(ctx, ids...)
	if err != nil {
		return nil, c.fail("ask for the configuration", err)
	}
	var out []brokerConfig
	for _, broker := range ids {
		for _, r := range answers {
			if r.Name != strconv.Itoa(int(broker)) {
				continue
			}
			if r.Err != nil {
				return nil, itemFailure(fmt.Sprintf("ask broker %d for its configuration", broker), r.Err, &r.ErrMessage)
			}
			for _, k := range r.Configs {
				if keys != nil && !slices.Contains(keys, k.Key) {
					continue
				}
				b := brokerConfig{Broker: broker, Key: k.Key, Value: k.Value, Source: k.Source.String(), Sensitive: k.Sensitive, Effect: "unknown here"}
				if known, ok := metadata.LookupConfig(metadata.ConfigBroker, k.Key); ok {
					b.Type, b.Dynamic, b.Effect = known.Type.String(), known.Dynamic, known.Class.String()
				}
				out = append(out, b)
			}
		}
	}
	return out, nil
}

// knownKeys refuses names that are in no table.
func knownKeys(keys []string) error {
	for _, k := range keys {
		if _, ok := metadata.LookupConfig(metadata.ConfigBroker, k); !ok {
			return unknownKey(k)
		}
	}
	return nil
}

// unknownKey is the failure for a name that is no broker config.
func unknownKey(key string) *failure {
	_, err := metadata.CheckConfig(metadata.ConfigBroker, key, "")
	f := explain("find config "+key, err)
	f.code = exitUsage
	if _, ok := metadata.LookupConfig(metadata.ConfigTopic, key); ok {
		f.fix += "   (millrace topic describe TOPIC -c shows those of a topic)"
	}
	return f
}

func clusterConfigGetCommand() *cli.Command {
	return &cli.Command{
		Name:      "get",
		Usage:     "print configs of brokers",
		ArgsUsage: "KEY…",
		Flags:     []cli.Flag{brokerFlag("only of this broker `ID`")},
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if e.wantsFields([]brokerConfig{}) {
				return nil
			}
			keys := c.Args().Slice()
			if len(keys) == 0 {
				f := usageError("no key was named", "millrace cluster config get log.retention.hours")
				f.why = "the command needs the name of a config; list shows all"
				return f
			}
			if err := knownKeys(keys); err != nil {
				return err
			}
			return e.printBrokerConfigs(c, keys, func(*brokerConfig) bool { return true })
		},
	}
}

func clusterConfigListCommand() *cli.Command {
	return &cli.Command{
		Name:    "list",
		Aliases: []string{"ls"},
		Usage:   "list the configs of brokers that were set; -a also shows the defaults",
		Flags: []cli.Flag{
			brokerFlag("only of this broker `ID`"),
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also what is as it is by default"},
			&cli.BoolFlag{Name: "honoured", Usage: "leave out what has no effect"},
		},
		Action: func(c *cli.Context) error {
			e := envOf(c)
			if e.wantsFields([]brokerConfig{}) {
				return nil
			}
			if err := noArguments(c); err != nil {
				return err
			}
			return e.printBrokerConfigs(c, nil, func(b *brokerConfig) bool {
				return (c.Bool("all") || b.Source != "DEFAULT_CONFIG") && (!c.Bool("honoured") || b.Effect == metadata.ConfigHonoured.String())
			})
		},
	}
}

func (e *env) printBrokerConfigs(c *cli.Context, keys []string, keep func(*brokerConfig) bool) error {
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	all, err := conn.brokerConfigs(ctx, c.Int("broker"), keys)
	if err != nil {
		return err
	}
	r := result{cols: columns(brokerConfigColumns...)}
	out := []brokerConfig{}
	for i := range all {
		if keep(&all[i]) {
			out = append(out, all[i])
			r.rows = append(r.rows, all[i].row())
		}
	}
	r.value = out
	return e.emit(r)
}

func clusterConfigSetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "change configs while brokers run; of all brokers unless --broker names one",
		ArgsUsage: "KEY=VALUE…",
		Description: "Only dynamic keys can be changed so; they are the defaults that topics inherit, and open partitions follow at once.\n" +
			"The values survive restarts and win over the properties file.",
		Flags: []cli.Flag{
			brokerFlag("only on this broker `ID`"),
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "check everything, change nothing"},
		},
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				f := usageError("nothing to set", "millrace cluster config set log.retention.ms=7d")
				f.why = "the command needs KEY=VALUE"
				return f
			}
			values, err := propertyFlags("set", c.Args().Slice())
			if err != nil {
				return err
			}
			var changes []kadm.AlterConfig
			for _, pair := range c.Args().Slice() { // in the order given
				key, _, _ := strings.Cut(pair, "=")
				value := values[key]
				changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: &value})
			}
			return envOf(c).alterBrokerConfigs(c, changes)
		},
	}
}

func clusterConfigResetCommand() *cli.Command {
	return &cli.Command{
		Name:      "reset",
		Usage:     "take configs that were changed while brokers ran back to what file or default say",
		ArgsUsage: "KEY…",
		Flags: []cli.Flag{
			brokerFlag("only on this broker `ID`"),
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "check everything, change nothing"},
		},
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				f := usageError("nothing to reset", "millrace cluster config reset log.retention.ms")
				f.why = "the command needs the name of a config"
				return f
			}
			var changes []kadm.AlterConfig
			for _, key := range c.Args().Slice() {
				changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: key})
			}
			return envOf(c).alterBrokerConfigs(c, changes)
		},
	}
}

// alterBrokerConfigs checks the changes, makes them, and prints what the keys are now.
func (e *env) alterBrokerConfigs(c *cli.Context, changes []kadm.AlterConfig) error {
	if e.wantsFields([]brokerConfig{}) {
		return nil
	}
	var keys, inert []string
	for _, ch := range changes {
		k, ok := metadata.LookupConfig(metadata.ConfigBroker, ch.Name)
		switch {
		case !ok:
			return unknownKey(ch.Name)
		case slices.Contains(keys, ch.Name):
			f := usageError("config "+ch.Name+" is named twice", "name it once")
			f.why = "one command can change each key only once"
			return f
		case k.Class == metadata.ConfigInert:
			inert = append(inert, ch.Name)
		}
		keys = append(keys, ch.Name)
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	alter := conn.adm.AlterBrokerConfigs
	if c.Bool("dry-run") {
		alter = conn.adm.ValidateAlterBrokerConfigs
	}
	var brokers []int32
	where := "all brokers"
	if id := c.Int("broker"); id >= 0 {
		brokers, where = []int32{int32(id)}, fmt.Sprintf("broker %d", id)
		if _, err := conn.brokerConfigs(ctx, id, keys); err != nil {
			return err // there is no such broker
		}
	}
	answers, err := alter(ctx, changes, brokers...)
	if err != nil {
		return conn.fail("change the configuration of "+where, err)
	}
	for _, a := range answers {
		if a.Err != nil {
			f := itemFailure("change the configuration of "+where, a.Err, &a.ErrMessage)
			if a.Err == kerr.InvalidConfig || a.Err == kerr.InvalidRequest {
				f.code = exitUsage
			}
			return f
		}
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed on %s", where)
		return nil
	}
	all, err := conn.brokerConfigs(ctx, c.Int("broker"), keys)
	if err != nil {
		return err
	}
	r := result{cols: columns(brokerConfigColumns...), value: all}
	for i := range all {
		r.rows = append(r.rows, all[i].row())
	}
	if err := e.emit(r); err != nil {
		return err
	}
	for _, key := range inert {
		k, _ := metadata.LookupConfig(metadata.ConfigBroker, key)
		e.hint("%s changes nothing here: %s", key, k.Reason)
	}
	return nil
}
