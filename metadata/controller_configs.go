package metadata

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// AlterConfigs changes configs, each resource by itself, and returns an error or nil for each, in their order. With
// replaceAll the ops, which must all be ConfigSet, are the whole new set of the resource (Kafka's AlterConfigs);
// otherwise they change single keys (IncrementalAlterConfigs, KIP-339).
//
// Errors: ErrUnknownTopic, ErrUnknownBroker, ErrInvalidConfig (key or value), ErrInvalidRequest (null value, a key twice,
// an op that does not fit), ErrDuplicateResource, and those of every operation (see CreateTopics).
func (s *Store) AlterConfigs(ctx context.Context, changes []ConfigChange, replaceAll, validateOnly bool) []error {
	results, err := call(ctx, s, &opAlterConfigs, alterConfigsArgs{changes, replaceAll, validateOnly})
	return failedItems(results, len(changes), err)
}

// failedItems returns results, or if there are none n of err.
func failedItems(results []error, n int, err error) []error {
	if len(results) == n {
		return results
	}
	results = make([]error, n)
	for i := range results {
		results[i] = cmp.Or(err, ErrTimeout)
	}
	return results
}

func (s *Store) alterConfigs(ctx context.Context, changes []ConfigChange, replaceAll, validateOnly bool) []error {
	results := make([]error, len(changes))
	count := make(map[Resource]int)
	for _, ch := range changes {
		count[ch.Resource]++
	}
	var plans []plan
	for i, ch := range changes {
		plans = append(plans, plan{
			decide: func(im *Image) (command, error) {
				if count[ch.Resource] > 1 {
					return nil, duplicate(ch.Resource.describe())
				}
				c, err := s.decideConfigs(im, ch, replaceAll)
				if err != nil || validateOnly || c == nil {
					return nil, err
				}
				return c, nil
			},
			done: func(committed any, err error) {
				switch {
				case committed != nil:
					s.logger.Info("configs changed", "resource", ch.Resource.describe())
				case errors.Is(err, ErrUnknownTopicID):
					err = unknownTopic(ch.Resource.Name) // deleted after decide
				}
				results[i] = err
			},
		})
	}
	s.carryOut(ctx, plans)
	return results
}

func (r Resource) describe() string {
	switch {
	case r.Type == TopicResource:
		return "topic " + quoteShort(r.Name)
	case r.Name == "":
		return "the default of all brokers"
	}
	return "broker " + quoteShort(r.Name)
}

// decideConfigs works out the new configs of a resource from those in im, checks them, and makes the command; nil when
// nothing changes.
func (s *Store) decideConfigs(im *Image, ch ConfigChange, replaceAll bool) (command, error) {
	c := &alterConfigs{broker: NoBroker}
	scope := ConfigBroker
	var present map[string]string
	switch ch.Resource.Type {
	case TopicResource:
		scope = ConfigTopic
		t := im.Topic(ch.Resource.Name)
		if t == nil {
			return nil, unknownTopic(ch.Resource.Name)
		}
		c.topic, c.expectedVersion, present = t.ID, t.configVersion, t.Configs
	case BrokerResource:
		id, err := brokerResource(im, ch.Resource.Name)
		if err != nil {
			return nil, err
		}
		c.broker = id
		if old := im.st.brokerConfigs(id); old != nil {
			c.expectedVersion, present = old.Version, old.Values
		}
	default:
		return nil, &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("resource %s of type %d has no configs", quoteShort(ch.Resource.Name), ch.Resource.Type),
			Why:  "topics and brokers have",
			Fix:  "name a topic or a broker",
		}
	}
	inherited := s.inherited(im, scope, c.broker)
	next, err := applyOps(scope, present, inherited, ch, replaceAll)
	if err != nil {
		return nil, err
	}
	if scope == ConfigTopic {
		if _, err := ResolveTopicSettings(s.effectiveConfig(im), next); err != nil {
			return nil, err
		}
	}
	c.set = make(map[string]string)
	for k, v := range next {
		if old, ok := present[k]; !ok || old != v {
			c.set[k] = v
		}
	}
	for k := range present {
		if _, ok := next[k]; !ok {
			c.delete = append(c.delete, k)
		}
	}
	slices.Sort(c.delete)
	if len(c.set) == 0 && len(c.delete) == 0 {
		return nil, nil
	}
	return c, nil
}

// brokerResource reads the name of a broker resource.
func brokerResource(im *Image, name string) (BrokerID, error) {
	if name == "" {
		return NoBroker, nil
	}
	n, err := strconv.ParseInt(name, 10, 32)
	if err != nil || n < 0 {
		return 0, &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("%s is not a broker", quoteShort(name)),
			Why:  "a broker is named by its id, a number",
			Fix:  "give the id, or an empty name for the default of all brokers",
		}
	}
	if im.Broker(BrokerID(n)) == nil {
		return 0, &Error{
			Kind: ErrInvalidRequest, // Kafka's code for it here
			What: fmt.Sprintf("there is no broker %d", n),
			Why:  "none registered under that id",
			Fix:  "list the brokers to see which there are",
		}
	}
	return BrokerID(n), nil
}

// inherited returns what a key of a resource is when the resource itself does not say: the list that ConfigAppend and
// ConfigSubtract start from.
func (s *Store) inherited(im *Image, scope ConfigScope, broker BrokerID) func(k *ConfigKey) string {
	layers := BrokerLayers{Static: s.cfg.StaticConfig}
	if scope == ConfigTopic || broker != NoBroker {
		layers.DynamicDefault = im.BrokerConfig(NoBroker)
	}
	if scope == ConfigTopic {
		layers.Dynamic = im.BrokerConfig(s.cfg.NodeID)
	}
	effective := layers.Effective()
	return func(k *ConfigKey) string {
		names := k.Synonyms
		if scope == ConfigBroker {
			names = []string{k.Name}
		}
		for _, name := range names {
			if v, ok := effective[name]; ok {
				return v
			}
		}
		return k.Default
	}
}

// applyOps returns the configs of a resource after the ops, all in canonical form.
func applyOps(scope ConfigScope, present map[string]string, inherited func(*ConfigKey) string, ch ConfigChange, replaceAll bool) (map[string]string, error) {
	next := make(map[string]string)
	if !replaceAll {
		maps.Copy(next, present)
	}
	seen := make(map[string]bool, len(ch.Ops))
	for _, op := range ch.Ops {
		if seen[op.Key] {
			return nil, duplicateKey(ch.Resource, op.Key)
		}
		seen[op.Key] = true
		if replaceAll && op.Op != ConfigSet || op.Op > ConfigSubtract {
			return nil, &Error{
				Kind: ErrInvalidRequest,
				What: fmt.Sprintf("config %s of %s has an operation that this request doesn't have", quoteShort(op.Key), ch.Resource.describe()),
				Why:  "only setting is possible when all configs are replaced",
				Fix:  "alter the configs incrementally",
			}
		}
		if op.Op == ConfigDelete {
			delete(next, op.Key) // a key that nobody knows is not there either
			continue
		}
		if op.Value == nil {
			return nil, &Error{
				Kind: ErrInvalidRequest,
				What: fmt.Sprintf("config %s of %s has no value", quoteShort(op.Key), ch.Resource.describe()),
				Why:  "a null value is not supported",
				Fix:  "delete the key to get its default",
			}
		}
		value, err := opValue(scope, next, inherited, op, ch.Resource)
		if err != nil {
			return nil, err
		}
		next[op.Key] = value
	}
	return next, nil
}

// opValue works out the value that a set, append or subtract leads to.
func opValue(scope ConfigScope, next map[string]string, inherited func(*ConfigKey) string, op ConfigOp, r Resource) (string, error) {
	value := *op.Value
	if k, ok := LookupConfig(scope, op.Key); ok {
		if scope == ConfigBroker && !k.Dynamic && k.Class != ConfigRefused {
			return "", &Error{
				Kind: ErrInvalidRequest,
				What: fmt.Sprintf("broker config %s can't be changed while brokers run", op.Key),
				Why:  "it is read once, when a broker starts",
				Fix:  "put it into the properties file of each broker and restart them one after another",
			}
		}
		if op.Op == ConfigAppend || op.Op == ConfigSubtract {
			if k.Type != ConfigList {
				return "", &Error{
					Kind: ErrInvalidConfig,
					What: fmt.Sprintf("nothing can be appended to or subtracted from config %s of %s", op.Key, r.describe()),
					Why:  fmt.Sprintf("its type is %s, not list", k.Type),
					Fix:  "set it",
				}
			}
			list, ok := next[op.Key]
			if !ok {
				list = inherited(k)
			}
			if op.Op == ConfigAppend {
				value = AppendConfigList(list, value)
			} else {
				value = SubtractConfigList(list, value)
			}
		}
	}
	return CheckConfig(scope, op.Key, value)
}

func duplicateKey(r Resource, key string) error {
	return &Error{
		Kind: ErrInvalidRequest,
		What: fmt.Sprintf("config %s of %s is in the request more than once", quoteShort(key), r.describe()),
		Why:  "one request can change each key only once",
		Fix:  "name it once",
	}
}
