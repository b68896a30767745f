package metadata

import (
	"maps"
	"strconv"
)

// ConfigSource says where a value comes from; the numbers are those of the DescribeConfigs protocol (KIP-226).
type ConfigSource int8

// Config sources, numbered as on the wire.
const (
	SourceTopic                ConfigSource = 1
	SourceDynamicBroker        ConfigSource = 2
	SourceDynamicBrokerDefault ConfigSource = 3
	SourceStaticBroker         ConfigSource = 4
	SourceDefault              ConfigSource = 5
)

// String returns Kafka's name of the source.
func (s ConfigSource) String() string {
	switch s {
	case SourceTopic:
		return "DYNAMIC_TOPIC_CONFIG"
	case SourceDynamicBroker:
		return "DYNAMIC_BROKER_CONFIG"
	case SourceDynamicBrokerDefault:
		return "DYNAMIC_DEFAULT_BROKER_CONFIG"
	case SourceStaticBroker:
		return "STATIC_BROKER_CONFIG"
	case SourceDefault:
		return "DEFAULT_CONFIG"
	}
	return "UNKNOWN"
}

// BrokerLayers are the three places a broker's own configs come from, each with the keys that were set there.
// A later one wins: Static (file, environment, --set) < DynamicDefault (the whole cluster's) < Dynamic (this
// broker's).
type BrokerLayers struct {
	Static, DynamicDefault, Dynamic map[string]string
}

// Effective merges the layers.
func (l BrokerLayers) Effective() map[string]string {
	m := make(map[string]string, len(l.Static)+len(l.DynamicDefault)+len(l.Dynamic))
	maps.Copy(m, l.Static)
	maps.Copy(m, l.DynamicDefault)
	maps.Copy(m, l.Dynamic)
	return m
}

// DescribedConfig is one line of a DescribeConfigs answer.
type DescribedConfig struct {
	Name      string
	Key       *ConfigKey
	Value     *string // nil: sensitive, or not set and without default
	Source    ConfigSource
	ReadOnly  bool
	Sensitive bool
	// Synonyms are every place that gives a value, the winning one first (DescribeConfigs v1+).
	Synonyms []DescribedSynonym
}

// DescribedSynonym is one place that gives a value.
type DescribedSynonym struct {
	Name   string
	Value  *string
	Source ConfigSource
}

// DescribeTopicConfigs describes a topic's configs, in order of name: names, or all when names is nil. Unknown
// names are left out, as Kafka does. replicationFactor is the topic's, for defaults which depend on it.
func DescribeTopicConfigs(l BrokerLayers, topic map[string]string, names []string, replicationFactor int) []DescribedConfig {
	var out []DescribedConfig
	for _, k := range selectKeys(ConfigTopic, names, topic) {
		var places []DescribedSynonym
		if v, ok := topic[k.Name]; ok {
			places = append(places, describedPlace(k, k.Name, v, SourceTopic))
		}
		for _, synonym := range k.Synonyms {
			if b, ok := brokerKeys.byName[synonym]; ok {
				places = append(places, describedLayers(b, l)...)
			}
		}
		def, ok := k.Default, !k.NoDefault
		if k.Name == "min.insync.replicas" {
			s := TopicSettings{}
			def = strconv.Itoa(s.MinISR(replicationFactor))
		}
		if ok {
			name := k.Name
			if len(k.Synonyms) > 0 {
				name = k.Synonyms[0]
			}
			places = append(places, describedPlace(k, name, def, SourceDefault))
		}
		d := described(k, k.Name, places)
		if ok && len(k.Synonyms) != 1 {
			// Kafka lists the default of the broker key behind a topic key, if there is one. That of a family of
			// units has none: it belongs to a coarser unit (log.retention.hours).
			d.Synonyms = places[:len(places)-1]
		}
		out = append(out, d)
	}
	return out
}

// DescribeBrokerConfigs describes a broker's configs, in order of name: names, or all when names is nil.
// brokers is how many there are, for defaults which depend on it; nodeID is this one's.
func DescribeBrokerConfigs(l BrokerLayers, names []string, nodeID BrokerID, brokers int) []DescribedConfig {
	var out []DescribedConfig
	for _, k := range selectKeys(ConfigBroker, names, nil) {
		out = append(out, describeBrokerKey(l, k, k.Name, nodeID, brokers))
	}
	if names == nil {
		return out
	}
	for _, name := range names { // listener.name.… keys are not in the table under their full name
		if k, ok := LookupConfig(ConfigBroker, name); ok && k.Name != name {
			out = append(out, describeBrokerKey(l, k, name, nodeID, brokers))
		}
	}
	return out
}

// DescribeBrokerDefaults describes what was set for the whole cluster (the broker resource with the empty
// name): only such keys, as Kafka does.
func DescribeBrokerDefaults(dynamicDefault map[string]string, names []string) []DescribedConfig {
	var out []DescribedConfig
	for _, k := range selectKeys(ConfigBroker, names, nil) {
		if v, ok := dynamicDefault[k.Name]; ok {
			out = append(out, described(k, k.Name, []DescribedSynonym{describedPlace(k, k.Name, v, SourceDynamicBrokerDefault)}))
		}
	}
	return out
}

func describeBrokerKey(l BrokerLayers, k *ConfigKey, name string, nodeID BrokerID, brokers int) DescribedConfig {
	var places []DescribedSynonym
	if k.Name == name {
		for _, synonym := range k.Synonyms {
			places = append(places, describedLayers(brokerKeys.byName[synonym], l)...)
		}
	} else {
		named := *k
		named.Name = name
		places = append(places, describedLayers(&named, l)...)
	}
	def, ok := k.Default, !k.NoDefault
	switch k.Name {
	case "node.id":
		def = strconv.Itoa(int(nodeID))
	case "default.replication.factor":
		def = strconv.Itoa(DefaultReplicationFactor(nil, brokers))
	case "min.insync.replicas":
		s := TopicSettings{}
		def = strconv.Itoa(s.MinISR(DefaultReplicationFactor(l.Effective(), brokers)))
	}
	if ok {
		places = append(places, describedPlace(k, k.Name, def, SourceDefault))
	}
	return described(k, name, places)
}

// selectKeys returns the rows to show: the named ones, or all that are not hidden, refused or absent.
func selectKeys(scope ConfigScope, names []string, set map[string]string) []*ConfigKey {
	var wanted map[string]bool
	if names != nil {
		wanted = make(map[string]bool, len(names))
		for _, n := range names {
			wanted[n] = true
		}
	}
	var out []*ConfigKey
	for _, k := range configsOf(scope).sorted {
		if wanted != nil && !wanted[k.Name] {
			continue
		}
		if _, isSet := set[k.Name]; k.Class == ConfigRefused || k.Hidden && !isSet {
			continue
		}
		out = append(out, k)
	}
	return out
}

// describedLayers returns the layers that set key b, the winning one first.
func describedLayers(b *ConfigKey, l BrokerLayers) []DescribedSynonym {
	var places []DescribedSynonym
	for _, layer := range []struct {
		values map[string]string
		source ConfigSource
	}{{l.Dynamic, SourceDynamicBroker}, {l.DynamicDefault, SourceDynamicBrokerDefault}, {l.Static, SourceStaticBroker}} {
		if v, ok := layer.values[b.Name]; ok && v != "" {
			places = append(places, describedPlace(b, b.Name, v, layer.source))
		}
	}
	return places
}

func describedPlace(k *ConfigKey, name, value string, source ConfigSource) DescribedSynonym {
	p := DescribedSynonym{Name: name, Source: source}
	if k.Sensitive || k.Type == ConfigPassword {
		return p
	}
	if c, err := k.Canonical(value); err == nil {
		value = c
	}
	p.Value = &value
	return p
}

// described makes the line from the places which give a value, the winning one first. A topic key has the
// winning value, in its own unit (log.retention.hours=168 is retention.ms=604800000). A broker key has its own
// value, even when another key of its family wins, as Kafka shows it.
func described(k *ConfigKey, name string, places []DescribedSynonym) DescribedConfig {
	d := DescribedConfig{Name: name, Key: k, Source: SourceDefault, ReadOnly: !k.Dynamic, Sensitive: k.Sensitive || k.Type == ConfigPassword, Synonyms: places}
	if len(places) == 0 {
		return d
	}
	d.Source = places[0].Source
	if k.Scope == ConfigBroker {
		for _, p := range places {
			if p.Name == name {
				d.Value = p.Value
				break
			}
		}
		return d
	}
	d.Value = places[0].Value
	if b, ok := brokerKeys.byName[places[0].Name]; ok && d.Value != nil && d.Source != SourceTopic && d.Source != SourceDefault {
		if v, err := toMilliseconds(b, *d.Value); err == nil {
			d.Value = &v
		}
	}
	return d
}
