package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

func featureUpdate(name string, version int16, kind int8) kmsg.UpdateFeaturesRequestFeatureUpdate {
	u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	u.Feature, u.MaxVersionLevel, u.UpgradeType, u.AllowDowngrade = name, version, kind, kind > featureUpgrade
	return u
}

func updateFeaturesRequest(version int16, updates ...kmsg.UpdateFeaturesRequestFeatureUpdate) *kmsg.UpdateFeaturesRequest {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.Version, req.TimeoutMillis, req.FeatureUpdates = version, 10_000, updates
	return req
}

// finalizedFeatures are those that ApiVersions tells a client of a version.
func (c *testConn) finalizedFeatures(version int16) (finalized map[string]int16, supported map[string][2]int16) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = version, "test", "1"
	resp := ask[*kmsg.ApiVersionsResponse](c, req)
	finalized, supported = map[string]int16{}, map[string][2]int16{}
	for _, f := range resp.FinalizedFeatures {
		finalized[f.Name] = f.MaxVersionLevel
	}
	for _, f := range resp.SupportedFeatures {
		supported[f.Name] = [2]int16{f.MinVersion, f.MaxVersion}
	}
	return finalized, supported
}

// D17: a cluster that an older release has formed has none of the newer features until
// somebody asks for them, by their own names or
// by the level's.
func TestUpdateFeatures(t *testing.T) {
	b := ownBroker(t, brokerEdit{level: metadata.MinFeatureLevel})
	c := b.dial(t)
	finalized, supported := c.finalizedFeatures(4)
	require.Equal(t, map[string]int16{featureLevel: 1}, finalized)
	require.Equal(t, [2]int16{0, 1}, supported["group.version"])
	_, supported = c.finalizedFeatures(3)
	require.NotContains(t, supported, "group.version", "KAFKA-17011")
	require.Contains(t, supported, featureLevel)

	for version := int16(0); version <= 2; version++ {
		for name, updates := range map[string][]kmsg.UpdateFeaturesRequestFeatureUpdate{
			"unknown":                {featureUpdate("no.such", 1, 1)},
			"without a name":         {featureUpdate("", 1, 1)},
			"too high":               {featureUpdate("group.version", 9, 1)},
			"negative":               {featureUpdate("group.version", -1, 1)},
			"level of no release":    {featureUpdate(featureLevel, int16(metadata.MaxFeatureLevel)+1, 1)},
			"level 0":                {featureUpdate(featureLevel, 0, 3)},
			"a good one and a bad":   {featureUpdate("group.version", 1, 1), featureUpdate("no.such", 1, 1)},
			"a bad one, then a good": {featureUpdate("no.such", 1, 1), featureUpdate("group.version", 1, 1)},
		} {
			resp := ask[*kmsg.UpdateFeaturesResponse](c, updateFeaturesRequest(version, updates...))
			require.Equal(t, codeInvalidUpdateVersion, resp.ErrorCode, "%s v%d", name, version)
			require.NotEmpty(t, resp.ErrorMessage)
			require.Empty(t, resp.Results)
		}
		if version >= 1 {
			for _, kind := range []int8{-1, 0, 4} {
				require.Equal(t, codeInvalidUpdateVersion, ask[*kmsg.UpdateFeaturesResponse](c, updateFeaturesRequest(version, featureUpdate("group.version", 1, kind))).ErrorCode)
			}
			check := updateFeaturesRequest(version, featureUpdate("group.version", 1, 1))
			check.ValidateOnly = true
			require.Zero(t, ask[*kmsg.UpdateFeaturesResponse](c, check).ErrorCode)
		}
		require.Zero(t, ask[*kmsg.UpdateFeaturesResponse](c, updateFeaturesRequest(version)).ErrorCode, "nothing asked")
		require.Equal(t, metadata.MinFeatureLevel, b.store.Image().FeatureLevel(), "nothing was changed")
	}

	resp := ask[*kmsg.UpdateFeaturesResponse](c, updateFeaturesRequest(1, featureUpdate("group.version", 1, 1)))
	require.Zero(t, resp.ErrorCode)
	require.Len(t, resp.Results, 1)
	finalized, _ = c.finalizedFeatures(3)
	require.Equal(t, map[string]int16{featureLevel: int16(metadata.GroupsFeatureLevel), "group.version": 1}, finalized)
	require.Zero(t, ask[*kmsg.UpdateFeaturesResponse](c, updateFeaturesRequest(1, featureUpdate("group.version", 1, 1))).ErrorCode, "again")
	for kind := int8(1); kind <= 3; kind++ { // there is no way back
		require.Equal(t, codeInvalidUpdateVersion, ask[*kmsg.UpdateFeaturesResponse](c, updateFeaturesRequest(1, featureUpdate("group.version", 0, kind))).ErrorCode)
	}

	require.Zero(t, ask[*kmsg.UpdateFeaturesResponse](c, updateFeaturesRequest(2, featureUpdate(featureLevel, int16(metadata.MaxFeatureLevel), 1))).ErrorCode)
	require.Equal(t, metadata.MaxFeatureLevel, b.store.Image().FeatureLevel())
}

// D17: a broker that does not know a level keeps the cluster from it, and is named.
func TestUpdateFeaturesWithAnOlderBroker(t *testing.T) {
	older := metadata.Registration{ID: 2, Incarnation: [16]byte{2}, Directories: []metadata.DirectoryID{{2}}, Version: "0.1", MinFeatureLevel: 1, MaxFeatureLevel: 1}
	b := ownBroker(t, brokerEdit{level: metadata.MinFeatureLevel, fenced: []metadata.Registration{older}})
	c := b.dial(t)
	for _, validate := range []bool{true, false} {
		req := updateFeaturesRequest(1, featureUpdate("group.version", 1, 1))
		req.ValidateOnly = validate
		resp := ask[*kmsg.UpdateFeaturesResponse](c, req)
		require.Equal(t, codeInvalidUpdateVersion, resp.ErrorCode)
		require.Contains(t, *resp.ErrorMessage, "broker 2 (version 0.1)")
	}
}
