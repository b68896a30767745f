package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// feature is one that clients are told of (KIP-584). What stands behind all of them is
// one number, the cluster's feature level (D17): a feature is finalized, at its highest
// version, from one level on. So it is never there on one broker earlier than on another.
type feature struct {
	name string
	// min and max bound the versions this binary supports.
	min, max int16
	// level is the feature level from which on the feature is finalized at max. 0: the
	// feature is the level itself.
	level uint32
}

// featureLevel is the name under which the feature level itself is finalized.
const featureLevel = "millrace.version"

// features are all there are, in the order of the answers.
var features = []feature{
	{name: "group.version", max: 1, level: metadata.GroupsFeatureLevel},             // KIP-848
	{name: "transaction.version", max: 2, level: metadata.TransactionsFeatureLevel}, // KIP-890
	{name: featureLevel, min: int16(metadata.MinFeatureLevel), max: int16(metadata.MaxFeatureLevel)},
}

// lookupFeature returns nil for a feature that there is not.
func lookupFeature(name string) *feature {
	for i := range features {
		if features[i].name == name {
			return &features[i]
		}
	}
	return nil
}

// finalized is the feature's version in a cluster of a level; 0 is none.
func (f *feature) finalized(level uint32) int16 {
	switch {
	case f.level == 0:
		return int16(level)
	case level >= f.level:
		return f.max
	}
	return 0
}

// levelFor is the feature level that a cluster needs for version, which must be one that
// is finalized at some level: ok is false for those between.
func (f *feature) levelFor(version int16) (level uint32, ok bool) {
	switch {
	case f.level == 0:
		return uint32(version), true
	case version == 0:
		return metadata.MinFeatureLevel, true
	}
	return f.level, version == f.max
}

// features puts the features into an answer. Those whose lowest version is 0 must not be
// listed as supported before v4, for clients that take 0 as an error (KAFKA-17011).
func (h *Handlers) features(resp *kmsg.ApiVersionsResponse) {
	im := h.cfg.Store.Image()
	resp.FinalizedFeaturesEpoch = int64(im.Version())
	level := im.FeatureLevel()
	for i := range features {
		f := &features[i]
		if resp.Version >= 4 || f.min > 0 {
			s := kmsg.NewApiVersionsResponseSupportedFeature()
			s.Name, s.MinVersion, s.MaxVersion = f.name, f.min, f.max
			resp.SupportedFeatures = append(resp.SupportedFeatures, s)
		}
		if version := f.finalized(level); version > 0 {
			s := kmsg.NewApiVersionsResponseFinalizedFeature()
			s.Name, s.MinVersionLevel, s.MaxVersionLevel = f.name, version, version
			resp.FinalizedFeatures = append(resp.FinalizedFeatures, s)
		}
	}
}
