package integration

import "github.com/twmb/franz-go/pkg/kmsg"

// featureQuestions ask for changes of features that there is nothing to change, or that are refused.
func featureQuestions() []question {
	update := func(name string, min int16, updates ...kmsg.UpdateFeaturesRequestFeatureUpdate) question {
		return question{name: name, key: 57, min: min, build: ask(func(_ *askedBroker, req *kmsg.UpdateFeaturesRequest) {
			req.TimeoutMillis, req.FeatureUpdates = 5000, updates
		})}
	}
	to := func(feature string, version int16, kind int8) kmsg.UpdateFeaturesRequestFeatureUpdate {
		u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		u.Feature, u.MaxVersionLevel, u.UpgradeType = feature, version, kind
		return u
	}
	const group = "group.version"
	return []question{
		update("update no feature", 0),
		update("update a feature that is none", 0, to("no.such", 1, 1)),
		update("update a feature without a name", 0, to("", 1, 1)),
		update("update a feature to what it is", 0, to(group, 1, 1)),
		update("update a feature twice", 0, to(group, 1, 1), to(group, 1, 1)),
		update("update a feature too high", 0, to(group, 9, 1)),
		update("update a feature to a negative version", 0, to(group, -1, 1)),
		update("update a feature to less", 0, to(group, 0, 1)),
		update("update a feature in a way that is none", 1, to(group, 1, 7)),
		update("update a feature in no way", 1, to(group, 1, 0)),
		update("update a feature and one that is none", 0, to(group, 1, 1), to("no.such", 1, 1)),
	}
}
