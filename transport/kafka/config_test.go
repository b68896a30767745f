package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func describe(version int16, kind kmsg.ConfigResourceType, name string, keys ...string) *kmsg.DescribeConfigsRequest {
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version, req.IncludeSynonyms, req.IncludeDocumentation = version, true, true
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kind, name, keys
	req.Resources = append(req.Resources, r, r) // named twice, answered once
	return req
}

func TestDescribeConfigs(t *testing.T) {
	b := ownBroker(t, brokerEdit{static: map[string]string{"log.retention.hours": "2", "millrace.gossip.key": "secret"}})
	c, topic := b.dial(t), b.topic(t, 1, "cleanup.policy", "compact")
	one := func(req *kmsg.DescribeConfigsRequest) (kmsg.DescribeConfigsResponseResource, map[string]kmsg.DescribeConfigsResponseResourceConfig) {
		resp := ask[*kmsg.DescribeConfigsResponse](c, req)
		require.Len(t, resp.Resources, 1)
		configs := map[string]kmsg.DescribeConfigsResponseResourceConfig{}
		for _, config := range resp.Resources[0].Configs {
			configs[config.Name] = config
		}
		return resp.Resources[0], configs
	}
	for version := int16(0); version <= 4; version++ {
		rr, configs := one(describe(version, 2, topic.Name))
		require.Zero(t, rr.ErrorCode)
		for _, name := range []string{"cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas", "max.message.bytes", "segment.bytes", "segment.ms", "compression.type", "message.timestamp.type"} {
			require.NotNil(t, configs[name].Value, name)
		}
		require.Equal(t, "compact", *configs["cleanup.policy"].Value, "trap 35: Connect looks at it")
		require.Equal(t, "7200000", *configs["retention.ms"].Value)
		if version == 0 {
			require.False(t, configs["cleanup.policy"].IsDefault)
			require.True(t, configs["segment.bytes"].IsDefault)
			continue
		}
		require.EqualValues(t, 1, configs["cleanup.policy"].Source)
		require.EqualValues(t, 4, configs["retention.ms"].Source)
		require.EqualValues(t, 5, configs["segment.bytes"].Source)
		require.NotEmpty(t, configs["cleanup.policy"].ConfigSynonyms)
		if version >= 3 {
			require.EqualValues(t, kmsg.ConfigTypeList, configs["cleanup.policy"].ConfigType)
			require.NotEmpty(t, *configs["cleanup.policy"].Documentation)
		}
	}
	req := describe(4, 2, topic.Name, "cleanup.policy", "unknown.key")
	req.IncludeSynonyms, req.IncludeDocumentation = false, false
	_, configs := one(req)
	require.Len(t, configs, 1)
	require.Empty(t, configs["cleanup.policy"].ConfigSynonyms)
	require.Nil(t, configs["cleanup.policy"].Documentation)

	_, configs = one(describe(4, 4, "1"))
	require.Equal(t, "2", *configs["log.retention.hours"].Value)
	require.True(t, configs["node.id"].ReadOnly)
	require.True(t, configs["millrace.gossip.key"].IsSensitive)
	require.Nil(t, configs["millrace.gossip.key"].Value)
	_, configs = one(describe(4, 4, ""))
	require.Empty(t, configs)

	for _, bad := range []struct {
		kind kmsg.ConfigResourceType
		name string
		code int16
	}{{2, "not-there", 3}, {2, "", 17}, {2, "a b", 17}, {4, "x", 42}, {4, "9", 42}, {0, "", 42}, {16, "x", 42}} {
		rr, configs := one(describe(4, bad.kind, bad.name))
		require.Equal(t, bad.code, rr.ErrorCode, "%v %q", bad.kind, bad.name)
		require.NotNil(t, rr.ErrorMessage)
		require.Empty(t, configs)
	}
}

func TestAlterConfigs(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 2; version++ {
		topic := b.topic(t, 1, "retention.ms", "5", "segment.ms", "100")
		alter := func(validateOnly bool, name string, kind kmsg.ConfigResourceType, pairs ...string) int16 {
			req := kmsg.NewPtrAlterConfigsRequest()
			req.Version, req.ValidateOnly = version, validateOnly
			r := kmsg.NewAlterConfigsRequestResource()
			r.ResourceType, r.ResourceName = kind, name
			for i := 0; i < len(pairs); i += 2 {
				config := kmsg.NewAlterConfigsRequestResourceConfig()
				config.Name, config.Value = pairs[i], &pairs[i+1]
				r.Configs = append(r.Configs, config)
			}
			req.Resources = append(req.Resources, r)
			resp := ask[*kmsg.AlterConfigsResponse](c, req)
			require.Equal(t, name, resp.Resources[0].ResourceName)
			require.Equal(t, resp.Resources[0].ErrorCode != 0, resp.Resources[0].ErrorMessage != nil)
			return resp.Resources[0].ErrorCode
		}
		require.Zero(t, alter(true, topic.Name, 2, "retention.ms", "6"))
		require.Equal(t, "5", b.store.Image().Topic(topic.Name).Configs["retention.ms"])
		require.Zero(t, alter(false, topic.Name, 2, "retention.ms", "6"))
		require.Equal(t, map[string]string{"retention.ms": "6"}, b.store.Image().Topic(topic.Name).Configs, "the whole set is replaced")
		require.EqualValues(t, 40, alter(false, topic.Name, 2, "retention.mss", "6"))
		require.EqualValues(t, 40, alter(false, topic.Name, 2, "retention.ms", "soon"))
		require.EqualValues(t, 3, alter(false, "not-there", 2, "retention.ms", "6"))
		require.EqualValues(t, 42, alter(false, "x", 8, "a", "b"))
	}
}

func TestIncrementalAlterConfigs(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 1; version++ {
		topic := b.topic(t, 1, "retention.ms", "5", "segment.ms", "100")
		alter := func(ops ...any) int16 {
			req := kmsg.NewPtrIncrementalAlterConfigsRequest()
			req.Version = version
			r := kmsg.NewIncrementalAlterConfigsRequestResource()
			r.ResourceType, r.ResourceName = 2, topic.Name
			for i := 0; i < len(ops); i += 3 {
				config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
				config.Name, config.Op = ops[i].(string), kmsg.IncrementalAlterConfigOp(ops[i+1].(int))
				if v, ok := ops[i+2].(string); ok {
					config.Value = &v
				}
				r.Configs = append(r.Configs, config)
			}
			req.Resources = append(req.Resources, r)
			return ask[*kmsg.IncrementalAlterConfigsResponse](c, req).Resources[0].ErrorCode
		}
		require.Zero(t, alter("retention.ms", 0, "6", "segment.ms", 1, nil, "cleanup.policy", 2, "compact"))
		require.Equal(t, map[string]string{"retention.ms": "6", "cleanup.policy": "delete,compact"}, b.store.Image().Topic(topic.Name).Configs)
		require.Zero(t, alter("cleanup.policy", 3, "delete"))
		require.Equal(t, "compact", b.store.Image().Topic(topic.Name).Configs["cleanup.policy"])
		require.EqualValues(t, 42, alter("retention.ms", 0, "6", "retention.ms", 0, "7"))
		require.EqualValues(t, 42, alter("retention.ms", 9, "6"))
		require.EqualValues(t, 40, alter("retention.ms", 2, "6"), "not a list")
		require.EqualValues(t, 40, alter("retention.mss", 0, "6"))
		require.Equal(t, "6", b.store.Image().Topic(topic.Name).Configs["retention.ms"])
	}
	// Keys of brokers: those that may change while they run, for one or for all.
	alterBroker := func(name, key, value string) int16 {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = 4, name
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name, config.Value = key, &value
		r.Configs = append(r.Configs, config)
		req.Resources = append(req.Resources, r)
		return ask[*kmsg.IncrementalAlterConfigsResponse](c, req).Resources[0].ErrorCode
	}
	require.Zero(t, alterBroker("1", "log.roll.ms", "86400000"))
	require.Zero(t, alterBroker("", "log.roll.ms", "86400001"))
	require.NotZero(t, alterBroker("1", "node.id", "7"))
	require.NotZero(t, alterBroker("x", "log.roll.ms", "7"))
	require.EqualValues(t, 40, alterBroker("1", "log.roll.ms", "never"))
	described := ask[*kmsg.DescribeConfigsResponse](c, describe(4, 4, "1", "log.roll.ms")).Resources[0].Configs[0]
	require.Equal(t, "86400000", *described.Value)
	require.EqualValues(t, 2, described.Source)
	require.Len(t, described.ConfigSynonyms, 2)

	// A resource named twice is refused in each place.
	topic := b.topic(t, 1)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = 2, topic.Name
	req.Resources = append(req.Resources, r, r)
	for _, rr := range ask[*kmsg.IncrementalAlterConfigsResponse](c, req).Resources {
		require.EqualValues(t, 42, rr.ErrorCode)
	}
}
