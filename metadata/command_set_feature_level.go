package metadata

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// setFeatureLevel raises the feature level (D17).
type setFeatureLevel struct {
	expected uint32 // the level it was decided on
	level    uint32
}

func (c *setFeatureLevel) kind() pb.CommandType { return pb.CommandType_COMMAND_SET_FEATURE_LEVEL }

func (c *setFeatureLevel) message() proto.Message {
	return &pb.SetFeatureLevel{Expected: c.expected, Level: c.level}
}

func decodeSetFeatureLevel(body []byte) (command, error) {
	var m pb.SetFeatureLevel
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	return &setFeatureLevel{expected: m.Expected, level: m.Level}, nil
}

// apply refuses a level that a registered broker does not know. A broker that does not know it and was not asked, for it
// is not registered, stops (M2).
func (c *setFeatureLevel) apply(d *draft, _ position) (any, error) {
	switch {
	case c.level == d.st.featureLevel:
		return nil, nil // a repetition
	case c.expected != d.st.featureLevel:
		return nil, ErrStale
	case c.level < d.st.featureLevel:
		return nil, ErrInvalidFeatureLevel
	}
	for _, b := range d.st.brokers {
		if c.level < b.MinFeatureLevel || c.level > b.MaxFeatureLevel {
			return nil, ErrInvalidFeatureLevel
		}
	}
	if c.level > MaxFeatureLevel {
		return nil, fatalError{fmt.Errorf("feature level %d, this binary knows %d: %w", c.level, MaxFeatureLevel, errNewerVersion)}
	}
	d.st.featureLevel = c.level
	return nil, nil
}
