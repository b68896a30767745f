package console

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// D17: the broker to restart next is one that runs an older version, the controller last; the possible level is that of
// the broker that knows least.
func TestUpgrade(t *testing.T) {
	im := threeBrokers(func(brokers []*metadata.Broker, _, _ *metadata.Topic) {
		for i, v := range []string{"0.9.1", "0.10.0", "0.9.1"} {
			brokers[i].Version, brokers[i].MinFeatureLevel, brokers[i].MaxFeatureLevel = v, 1, 2
		}
		brokers[1].MaxFeatureLevel = 3
	})
	s, f := testServer(t, im)
	u := ask[Upgrade](t, s, http.StatusOK, "GET /v1/upgrade")
	require.Equal(t, "0.10.0", u.Newest)
	require.Equal(t, 2, u.Possible)
	require.False(t, u.Final)
	require.EqualValues(t, 3, u.Next, "broker 1 is the controller")
	require.True(t, u.Safe)
	require.Len(t, u.Brokers, 3)
	require.True(t, u.Brokers[1].Newest)
	require.False(t, u.Brokers[2].Newest)

	f.quorum.Servers[1].Healthy = false // broker 1
	u = ask[Upgrade](t, s, http.StatusOK, "GET /v1/upgrade")
	require.False(t, u.Safe)
	require.NotEmpty(t, u.Why)

	ask[Upgrade](t, s, http.StatusOK, "POST /v1/upgrade", `{"feature_level":2}`)
	require.Equal(t, []string{"level 2"}, f.orders)
	for _, body := range []string{"", "{}", `{"feature_level":-1}`, `{"feature_level":9999999999}`, `{"level":2}`} {
		ask[ErrorAnswer](t, s, http.StatusBadRequest, "POST /v1/upgrade", body)
	}
	f.err = im.CheckFeatureLevel(3)
	require.ErrorIs(t, f.err, metadata.ErrInvalidFeatureLevel)
	refused := ask[ErrorAnswer](t, s, http.StatusConflict, "POST /v1/upgrade", `{"feature_level":3}`)
	require.Equal(t, "broker 1 (version 0.9.1) supports the levels 1 to 2", refused.Error.Why)

	s, _ = testServer(t, threeBrokers(nil)) // all the same
	u = ask[Upgrade](t, s, http.StatusOK, "GET /v1/upgrade")
	require.EqualValues(t, -1, u.Next)
}

func TestCompareVersions(t *testing.T) {
	for _, order := range [][2]string{{"0.9.1", "0.10.0"}, {"v1.2", "1.2.1"}, {"", "0.1"}, {"1.0.0-rc1", "1.0.0-rc2"}, {"devel", "devel-2"}} {
		require.Negative(t, compareVersions(order[0], order[1]), order)
		require.Positive(t, compareVersions(order[1], order[0]), order)
	}
	require.Zero(t, compareVersions("v0.4.0", "0.4.0"))
}
