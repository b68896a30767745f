package broker

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/magiconair/properties"

	"github.com/millrace/millrace/metadata"
)

// Layers are the places a broker's configuration comes from; a later one wins: File < Environ < Set.
type Layers struct {
	// File is the path of a properties file with Kafka's own keys; "" is none.
	File string
	// Environ are KEY=value pairs. KAFKA_* are Kafka's keys by the rule of the apache/kafka image, MILLRACE_* ours.
	Environ []string
	// Set are key=value pairs of the command line.
	Set []string
	// AllowUnknown makes unknown keys of File and Set warnings. Those of Environ always are: Kubernetes and shells
	// put names there that are no configuration.
	AllowUnknown bool
}

// Settings is the merged static configuration: canonical values by key, with where each came from.
type Settings struct {
	values  map[string]string
	origins map[string]string
	// Warnings are lines to show at start: unknown keys that were let pass.
	Warnings []string
}

// notConfig are KAFKA_* and MILLRACE_* variables which mean something else.
var notConfig = []string{
	"KAFKA_VERSION", "KAFKA_HOME", "KAFKA_OPTS", "KAFKA_HEAP_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS",
	"KAFKA_LOG4J_OPTS", "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_LOG4J_LOGGERS", "KAFKA_TOOLS_LOG4J_LOGLEVEL", "KAFKA_JMX_OPTS",
	"KAFKA_JMX_PORT", "KAFKA_JMX_HOSTNAME", "KAFKA_DEBUG", "MILLRACE_ADMIN", "MILLRACE_BROKERS", "MILLRACE_CONFIG", "MILLRACE_CONFIG_DIR", "MILLRACE_PROFILE",
}

// ReadSettings merges the layers. Every bad key and value is in the error, each with its three lines.
func ReadSettings(l Layers) (*Settings, error) {
	s := &Settings{values: map[string]string{}, origins: map[string]string{}}
	var errs []error
	if l.File != "" {
		pairs, err := ReadProperties(l.File)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(pairs)) {
			errs = append(errs, s.add(name, pairs[name], l.File, l.AllowUnknown))
		}
	}
	for _, pair := range slices.Sorted(slices.Values(l.Environ)) {
		variable, value, _ := strings.Cut(pair, "=")
		name, ok := environKey(variable)
		if !ok {
			continue
		}
		if _, known := metadata.LookupConfig(metadata.ConfigBroker, name); !known && !plausible(name) {
			continue
		}
		errs = append(errs, s.add(name, value, "environment variable "+variable, true))
	}
	for _, pair := range l.Set {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			errs = append(errs, &metadata.Error{
				Kind: metadata.ErrInvalidConfig,
				What: fmt.Sprintf("--set %s is not KEY=VALUE", pair),
				Why:  "a setting needs a key and a value",
				Fix:  "--set num.partitions=6",
			})
			continue
		}
		errs = append(errs, s.add(strings.TrimSpace(name), value, "--set", l.AllowUnknown))
	}
	return s, errors.Join(errs...)
}

func (s *Settings) add(name, value, origin string, allowUnknown bool) error {
	if _, known := metadata.LookupConfig(metadata.ConfigBroker, name); !known && allowUnknown {
		warning := fmt.Sprintf("unknown config %s (%s) is ignored", name, origin)
		if near := metadata.NearestConfig(metadata.ConfigBroker, name); near != "" {
			warning += "; did you mean " + near + "?"
		}
		s.Warnings = append(s.Warnings, warning)
		return nil
	}
	canonical, err := metadata.CheckConfig(metadata.ConfigBroker, name, value)
	if err != nil {
		var e *metadata.Error
		if errors.As(err, &e) {
			named := *e
			named.What += " (" + origin + ")"
			return &named
		}
		return err
	}
	if canonical == "" {
		if k, _ := metadata.LookupConfig(metadata.ConfigBroker, name); k.NoDefault {
			delete(s.values, name) // "key=": as if it were not there, whatever an earlier layer said
			delete(s.origins, name)
			return nil
		}
	}
	s.values[name], s.origins[name] = canonical, origin
	return nil
}

// ReadProperties reads a Java properties file, as --config does. Its errors are *metadata.Error. ${…} stays as it is: Kafka expands nothing either.
func ReadProperties(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, &metadata.Error{Kind: metadata.ErrInvalidConfig, What: "cannot read the configuration " + path, Why: err.Error(), Fix: "--config FILE   a Java properties file with Kafka's keys"}
	}
	loader := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := loader.LoadBytes(b)
	if err != nil {
		return nil, &metadata.Error{Kind: metadata.ErrInvalidConfig, What: path + " is not a properties file", Why: err.Error(), Fix: "one key=value a line; # begins a comment"}
	}
	return p.Map(), nil
}

// environKey turns the name of an environment variable into a key: "_" is ".", "__" is "_", "___" is "-".
func environKey(variable string) (string, bool) {
	if slices.Contains(notConfig, variable) {
		return "", false
	}
	rest, kafka := strings.CutPrefix(variable, "KAFKA_")
	prefix := ""
	if !kafka {
		var ours bool
		if rest, ours = strings.CutPrefix(variable, "MILLRACE_"); !ours {
			return "", false
		}
		prefix = "millrace."
	}
	if rest == "" {
		return "", false
	}
	var b strings.Builder
	for i := 0; i < len(rest); {
		n := 0
		for i+n < len(rest) && rest[i+n] == '_' {
			n++
		}
		if n == 0 {
			b.WriteByte(rest[i])
			i++
			continue
		}
		i += n
		for ; n > 3; n -= 3 {
			b.WriteByte('-')
		}
		b.WriteByte([...]byte{0, '.', '_', '-'}[n])
	}
	return prefix + strings.ToLower(b.String()), true
}

// plausible says whether an unknown key out of the environment looks enough like a known one to be worth a warning.
func plausible(name string) bool {
	return metadata.NearestConfig(metadata.ConfigBroker, name) != ""
}

// Get returns the value that was set, or the key's default.
func (s *Settings) Get(name string) string {
	if v, ok := s.values[name]; ok {
		return v
	}
	k, ok := metadata.LookupConfig(metadata.ConfigBroker, name)
	if !ok {
		panic("broker: config " + name + " is not in the table")
	}
	return k.Default
}

// IsSet says whether any layer set the key, and which.
func (s *Settings) IsSet(name string) (origin string, ok bool) {
	origin, ok = s.origins[name]
	return origin, ok
}

// Put sets a value from the program itself, as --data and --node-id do.
func (s *Settings) Put(name, value, origin string) error { return s.add(name, value, origin, false) }

// Static returns the keys that were set, with canonical values: the static layer of DescribeConfigs.
func (s *Settings) Static() map[string]string { return maps.Clone(s.values) }

// WithoutEffect returns a line for each key that was set and changes nothing here, with the reason.
func (s *Settings) WithoutEffect() []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		k, _ := metadata.LookupConfig(metadata.ConfigBroker, name)
		if k.Class == metadata.ConfigInert {
			lines = append(lines, name+": "+k.Reason)
		}
	}
	return lines
}
