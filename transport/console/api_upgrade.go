package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/metadata"
)

// Upgrade is how far the brokers are with a new release, and the cluster with its features.
type Upgrade struct {
	FeatureLevel int `json:"feature_level" doc:"level of features that the cluster has agreed on"`
	// Possible is bounded by the broker that knows least.
	Possible int             `json:"possible_level" doc:"highest level that every registered broker knows"`
	Newest   string          `json:"newest_version" doc:"newest version that a broker runs"`
	Brokers  []UpgradeBroker `json:"brokers" doc:"each broker"`
	// Next is the broker to restart with the new version: the controller last, so that it moves once.
	Next  int32    `json:"next" doc:"broker to restart with the newest version next; -1 when all run it"`
	Safe  bool     `json:"safe" doc:"whether that broker may be stopped now"`
	Why   []string `json:"why" doc:"why it should not be stopped now, 20 reasons at most"`
	Final bool     `json:"final" doc:"whether the feature level is the highest that the brokers know"`
}

// UpgradeBroker is one broker in an upgrade.
type UpgradeBroker struct {
	ID         int32  `json:"id" doc:"broker id"`
	Version    string `json:"version" doc:"software version"`
	MinLevel   int    `json:"min_feature_level" doc:"lowest feature level that it knows"`
	MaxLevel   int    `json:"max_feature_level" doc:"highest feature level that it knows"`
	Status     string `json:"status" doc:"running; maintenance; stopping; fenced (no contact, or not ready yet); decommissioning"`
	Controller bool   `json:"controller" doc:"whether it is the controller"`
	Newest     bool   `json:"newest" doc:"whether it runs the newest version"`
}

// UpgradeOrder asks for a feature level.
type UpgradeOrder struct {
	Level int `json:"feature_level" doc:"the level to finalize; it cannot be taken back"`
}

func getUpgrade(c *call) (any, error) {
	im := c.image()
	u := Upgrade{FeatureLevel: int(im.FeatureLevel()), Possible: math.MaxInt32, Brokers: []UpgradeBroker{}, Next: -1, Why: []string{}}
	newest := newestBroker(im.Brokers())
	var behind []*metadata.Broker
	for _, b := range im.Brokers() {
		u.Possible = min(u.Possible, int(b.MaxFeatureLevel))
		same := b.Version == newest.Version && b.MaxFeatureLevel == newest.MaxFeatureLevel
		if !same {
			behind = append(behind, b)
		}
		u.Brokers = append(u.Brokers, UpgradeBroker{
			ID: int32(b.ID), Version: b.Version, MinLevel: int(b.MinFeatureLevel), MaxLevel: int(b.MaxFeatureLevel), Status: statusText(b), Controller: im.ControllerID() == b.ID, Newest: same,
		})
	}
	if newest == nil { // nobody is registered yet
		u.Possible, u.Final = u.FeatureLevel, true
		return u, nil
	}
	u.Newest, u.Final = newest.Version, u.Possible == u.FeatureLevel
	if len(behind) == 0 {
		return u, nil
	}
	next := slices.MinFunc(behind, func(a, b *metadata.Broker) int {
		return cmp.Or(cmp.Compare(number(a.ID == im.ControllerID()), number(b.ID == im.ControllerID())), cmp.Compare(a.ID, b.ID))
	})
	q, err := c.Quorum.Quorum(c.ctx)
	if err != nil {
		return nil, err
	}
	u.Next = int32(next.ID)
	u.Why = append(u.Why, stopReasons(im, next.ID, c.minISR, &q)...)
	u.Safe = len(u.Why) == 0
	u.Why = u.Why[:min(len(u.Why), maxReasons)]
	return u, nil
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// newestBroker is one that runs the newest release: the one that knows most, among those the one with the highest version.
func newestBroker(brokers []*metadata.Broker) (newest *metadata.Broker) {
	for _, b := range brokers {
		if newest == nil || cmp.Or(cmp.Compare(b.MaxFeatureLevel, newest.MaxFeatureLevel), compareVersions(b.Version, newest.Version)) > 0 {
			newest = b
		}
	}
	return newest
}

// compareVersions compares versions by their numbers, 0.10.0 after 0.9.1, and by their text where they have none.
func compareVersions(a, b string) int {
	fields := func(v string) []string {
		return strings.FieldsFunc(strings.TrimPrefix(v, "v"), func(r rune) bool { return r == '.' || r == '-' || r == '+' })
	}
	fa, fb := fields(a), fields(b)
	for i := range min(len(fa), len(fb)) {
		na, errA := strconv.Atoi(fa[i])
		nb, errB := strconv.Atoi(fb[i])
		order := cmp.Compare(fa[i], fb[i])
		if errA == nil && errB == nil {
			order = cmp.Compare(na, nb)
		}
		if order != 0 {
			return order
		}
	}
	return cmp.Compare(len(fa), len(fb))
}

func postUpgrade(c *call) (any, error) {
	var order UpgradeOrder
	if err := c.read(&order); err != nil {
		return nil, err
	}
	if order.Level <= 0 || order.Level > 1<<30 {
		return nil, invalid(fmt.Sprintf("%d is not a feature level", order.Level), "levels are counted from 1", "GET /v1/upgrade says which is possible")
	}
	if err := c.Cluster.UpdateFeatureLevel(c.ctx, uint32(order.Level)); err != nil {
		return nil, err
	}
	return getUpgrade(c)
}
