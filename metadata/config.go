package metadata

import (
	"sort"
	"strings"
)

// ConfigScope says to which kind of resource a configuration key belongs. The same name may exist in both
// scopes (min.insync.replicas), as two keys.
type ConfigScope int8

const (
	// ConfigBroker keys are set in the properties file, the environment, with --set, or on a broker resource.
	ConfigBroker ConfigScope = iota
	// ConfigTopic keys are set on one topic and override the broker's synonym there.
	ConfigTopic
)

// String returns "broker" or "topic".
func (s ConfigScope) String() string {
	if s == ConfigTopic {
		return "topic"
	}
	return "broker"
}

// ConfigType is the type of a value; the numbers are those of the DescribeConfigs protocol (KIP-569).
type ConfigType int8

// Value types, numbered as on the wire.
const (
	ConfigBoolean  ConfigType = 1
	ConfigString   ConfigType = 2
	ConfigInt      ConfigType = 3
	ConfigShort    ConfigType = 4
	ConfigLong     ConfigType = 5
	ConfigDouble   ConfigType = 6
	ConfigList     ConfigType = 7
	ConfigClassVal ConfigType = 8
	ConfigPassword ConfigType = 9
)

var configTypeNames = map[ConfigType]string{
	ConfigBoolean: "boolean", ConfigString: "string", ConfigInt: "int", ConfigShort: "short", ConfigLong: "long",
	ConfigDouble: "double", ConfigList: "list", ConfigClassVal: "class", ConfigPassword: "password",
}

// String returns Kafka's lower case name of the type.
func (t ConfigType) String() string { return configTypeNames[t] }

// ConfigClass says what this broker does with a key. A key that is in no table is unknown: an error that
// names the nearest key.
type ConfigClass int8

const (
	// ConfigHonoured keys do what they say.
	ConfigHonoured ConfigClass = iota
	// ConfigInert keys are accepted, stored and described, but change nothing here; Reason says why.
	ConfigInert
	// ConfigRefused keys are an error, because to ignore them would be unsafe; Reason says what to do instead.
	ConfigRefused
)

// String returns the word that `cluster config explain` prints.
func (c ConfigClass) String() string {
	switch c {
	case ConfigInert:
		return "accepted, no effect"
	case ConfigRefused:
		return "refused"
	}
	return "honoured"
}

// ConfigUnit is what a number counts; it decides which suffixes Check and Canonical take beside plain numbers.
type ConfigUnit int8

// Units of numeric values.
const (
	UnitNone         ConfigUnit = iota
	UnitBytes                   // 512MiB, 1GiB, 10kB
	UnitMilliseconds            // 7d, 12h, 30s, 250ms
	UnitSeconds
	UnitMinutes
	UnitHours
)

// ConfigKey is one row of the configuration table. Rows are made once at start of the program and never change.
type ConfigKey struct {
	Name  string
	Scope ConfigScope
	Type  ConfigType
	Unit  ConfigUnit
	// Default is the canonical default value. It is "" together with NoDefault for a key that has none, and
	// for the keys whose default depends on the cluster (DefaultNote then says how).
	Default     string
	NoDefault   bool
	DefaultNote string
	Class       ConfigClass
	// Reason says why a key has no effect or is refused; "" for honoured keys.
	Reason string
	// Doc is one sentence.
	Doc string
	// Synonyms are, for a topic key, the broker keys that give its default, the finest unit first
	// (log.retention.ms, .minutes, .hours). The first one that is set wins. For a broker key of such a family:
	// the whole family, itself included.
	Synonyms []string
	// Dynamic keys may be altered while the broker runs. Topic keys always are.
	Dynamic bool
	// Sensitive values are never shown: not in DescribeConfigs, not in logs (S7).
	Sensitive bool
	// Hidden keys are honoured when set but not listed (internal.segment.bytes).
	Hidden bool

	validValues string             // what Check says of the allowed range
	check       func(string) error // of the canonical value; nil = all values of the type
}

var (
	brokerKeys = indexConfigs(ConfigBroker, brokerConfigTable())
	topicKeys  = indexConfigs(ConfigTopic, topicConfigTable())
)

// configIndex is one scope's table, by name and in order of name.
type configIndex struct {
	byName map[string]*ConfigKey
	sorted []*ConfigKey
}

func indexConfigs(scope ConfigScope, keys []*ConfigKey) *configIndex {
	x := &configIndex{byName: make(map[string]*ConfigKey, len(keys)), sorted: keys}
	for _, k := range keys {
		k.Scope = scope
		if scope == ConfigTopic {
			k.Dynamic = true
		}
		if x.byName[k.Name] != nil {
			panic("metadata: config key " + k.Name + " is twice in the " + scope.String() + " table")
		}
		x.byName[k.Name] = k
	}
	sort.Slice(x.sorted, func(i, j int) bool { return x.sorted[i].Name < x.sorted[j].Name })
	return x
}

func configsOf(scope ConfigScope) *configIndex {
	if scope == ConfigTopic {
		return topicKeys
	}
	return brokerKeys
}

// listenerConfigPrefix begins a listener's own settings; the key that they override follows its name
// (listener.name.external.ssl.keystore.location).
const listenerConfigPrefix = "listener.name."

// LookupConfig finds a key. Broker keys under listener.name.<listener>. are found by what follows that prefix, and the
// settings of tiered storage's plug-ins (rsm.config., rlmm.config.), whose names are free, by the key of the prefix.
func LookupConfig(scope ConfigScope, name string) (*ConfigKey, bool) {
	k, ok := configsOf(scope).byName[name]
	if ok || scope != ConfigBroker {
		return k, ok
	}
	if rest, ok := strings.CutPrefix(name, listenerConfigPrefix); ok {
		if _, inner, ok := strings.Cut(rest, "."); ok {
			if k, ok := brokerKeys.byName[inner]; ok {
				return k, true
			}
			// listener.name.<listener>.<mechanism>.sasl.jaas.config (KIP-226)
			if _, inner, ok := strings.Cut(inner, "."); ok && strings.HasPrefix(inner, "sasl.") {
				k, ok := brokerKeys.byName[inner]
				return k, ok
			}
		}
		return nil, false
	}
	for _, p := range []string{"rsm.config.", "rlmm.config."} {
		if strings.HasPrefix(name, p) {
			return brokerKeys.byName["remote.log.storage.manager.impl.prefix"], true
		}
	}
	return nil, false
}

// ConfigKeys returns every key of a scope in order of name. The caller must not change the slice.
func ConfigKeys(scope ConfigScope) []*ConfigKey { return configsOf(scope).sorted }

// CheckConfig finds the key and checks the value: what every entry point (file, --set, CreateTopics,
// AlterConfigs) calls. It returns the canonical value to store. Errors are *Error.
func CheckConfig(scope ConfigScope, name, value string) (canonical string, err error) {
	k, ok := LookupConfig(scope, name)
	if !ok {
		return "", unknownConfig(scope, name)
	}
	return k.Canonical(value)
}

// Check says whether value may be set. Errors are *Error and match ErrInvalidConfig.
func (k *ConfigKey) Check(value string) error {
	_, err := k.Canonical(value)
	return err
}

// ValidValues describes the allowed values in words, "" when the type says it all.
func (k *ConfigKey) ValidValues() string { return k.validValues }

// NearestConfig returns the known key of that scope that looks most like name, "" when none is near.
func NearestConfig(scope ConfigScope, name string) string {
	// A name of the other scope has an exact counterpart: log.retention.ms on a topic means retention.ms.
	switch scope {
	case ConfigTopic:
		for _, k := range topicKeys.sorted {
			for _, s := range k.Synonyms {
				if s == name {
					return k.Name
				}
			}
		}
	case ConfigBroker:
		if k, ok := topicKeys.byName[name]; ok && len(k.Synonyms) > 0 {
			return k.Synonyms[0]
		}
	}
	best, bestDistance := "", 1+len(name)/3
	for _, k := range configsOf(scope).sorted {
		if k.Hidden || k.Class == ConfigRefused {
			continue
		}
		if d := editDistance(strings.ToLower(name), k.Name, bestDistance); d < bestDistance {
			best, bestDistance = k.Name, d
		}
	}
	return best
}

// editDistance counts insertions, deletions, replacements and swaps of neighbours (Damerau, restricted),
// giving up with limit when it cannot be smaller.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	var prev2 []int
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
			least = min(least, row[j])
		}
		if least >= limit {
			return limit
		}
		prev2, prev = prev, row
	}
	return prev[len(b)]
}

func unknownConfig(scope ConfigScope, name string) error {
	e := &Error{
		Kind: ErrInvalidConfig,
		What: "unknown " + scope.String() + " config " + quoteShort(name),
		Why:  "neither Kafka nor millrace has a " + scope.String() + " config of that name",
		Fix:  "leave it out",
	}
	other := ConfigTopic
	if scope == ConfigTopic {
		other = ConfigBroker
	}
	if _, ok := configsOf(other).byName[name]; ok {
		e.Why = "it is a " + other.String() + " config, and was given for a " + scope.String()
	}
	if near := NearestConfig(scope, name); near != "" {
		e.Fix = "did you mean " + near + "?"
	}
	return e
}
