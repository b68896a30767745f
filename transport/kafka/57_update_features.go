package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// UpdateFeatures (key 57), versions 0 to 2 (KIP-584, KIP-778).
//
//	v0    an update may allow a downgrade; a result for each feature
//	v1    upgrade types: 1 upgrade, 2 safe downgrade, 3 unsafe; validate only
//	v2    no results: all or nothing, and the error is on top
//
// All updates of a request are one change of the feature level, or none. Every broker must
// support the level (D17). There is no downgrade: what was written at a level cannot be read
// at a lower one. A feature is raised by its own name, or all of them together by the
// level's, millrace.version, which is also what millrace cluster upgrade finalize does.

// Upgrade types of v1 and up.
const (
	featureUpgrade         int8 = 1
	featureUnsafeDowngrade int8 = 3
)

func (h *Handlers) updateFeatures(c *call, req *kmsg.UpdateFeaturesRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	image := h.cfg.Store.Image()
	level := image.FeatureLevel()
	var err error
	for i := range req.FeatureUpdates {
		var needed uint32
		if needed, err = wantedLevel(image, &req.FeatureUpdates[i], req.Version); err != nil {
			break
		}
		level = max(level, needed)
	}
	if err == nil && level > image.FeatureLevel() {
		if req.Version >= 1 && req.ValidateOnly {
			err = image.CheckFeatureLevel(level)
		} else {
			ctx, cancel := c.adminContext(req.TimeoutMillis)
			defer cancel()
			if err = h.cfg.Store.UpdateFeatureLevel(ctx, level); err == nil {
				err = h.await(ctx)
			}
		}
	}
	if err != nil {
		code := codeOf(err)
		if errors.Is(err, metadata.ErrInvalidFeatureLevel) {
			code = codeInvalidUpdateVersion // as Kafka's controller calls what its brokers do not support
		}
		resp.ErrorCode, resp.ErrorMessage = c.error(code), errorMessage(err)
		return resp
	}
	if req.Version < 2 {
		for i := range req.FeatureUpdates {
			r := kmsg.NewUpdateFeaturesResponseResult()
			r.Feature = req.FeatureUpdates[i].Feature
			resp.Results = append(resp.Results, r)
		}
	}
	return resp
}

// wantedLevel is the feature level that an update needs.
func wantedLevel(image *metadata.Image, u *kmsg.UpdateFeaturesRequestFeatureUpdate, version int16) (uint32, error) {
	refused := func(why, fix string) (uint32, error) {
		return 0, &metadata.Error{Kind: metadata.ErrInvalidFeatureLevel, What: fmt.Sprintf("feature %q can't be changed to version %d", u.Feature, u.MaxVersionLevel), Why: why, Fix: fix}
	}
	f := lookupFeature(u.Feature)
	if f == nil {
		return refused("there is no such feature", "ApiVersions lists them")
	}
	if u.MaxVersionLevel < f.min || u.MaxVersionLevel > f.max {
		return refused(fmt.Sprintf("this broker supports the versions %d to %d", f.min, f.max), "name one of these, or upgrade the brokers first")
	}
	if version >= 1 && (u.UpgradeType < featureUpgrade || u.UpgradeType > featureUnsafeDowngrade) {
		return refused(fmt.Sprintf("upgrade type %d is none", u.UpgradeType), "1 is an upgrade")
	}
	if present := f.finalized(image.FeatureLevel()); u.MaxVersionLevel < present {
		return refused(fmt.Sprintf("it is %d, and what was written at that version can't be read at a lower one", present), "keep it")
	}
	level, ok := f.levelFor(u.MaxVersionLevel)
	if !ok {
		return refused(fmt.Sprintf("the version goes from 0 to %d in one step", f.max), fmt.Sprintf("name %d", f.max))
	}
	return level, nil
}
