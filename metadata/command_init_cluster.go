package metadata

import (
	"errors"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// initCluster gives the cluster its id and first feature level. The first leader proposes it, once.
type initCluster struct {
	clusterID    string
	featureLevel uint32
}

func (c *initCluster) kind() pb.CommandType { return pb.CommandType_COMMAND_INIT_CLUSTER }

func (c *initCluster) message() proto.Message {
	return &pb.InitCluster{ClusterId: c.clusterID, FeatureLevel: c.featureLevel}
}

func decodeInitCluster(body []byte) (command, error) {
	var m pb.InitCluster
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	if m.ClusterId == "" {
		return nil, errors.New("init cluster: empty cluster id")
	}
	return &initCluster{clusterID: m.ClusterId, featureLevel: m.FeatureLevel}, nil
}

// apply sets the id if there is none yet. The id never changes afterwards.
func (c *initCluster) apply(d *draft, _ position) (any, error) {
	switch d.st.clusterID {
	case "":
		d.st.clusterID = c.clusterID
		d.st.featureLevel = c.featureLevel
		return nil, nil
	case c.clusterID:
		return nil, nil // a repetition
	}
	return nil, ErrStale
}
