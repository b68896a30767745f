package console

import (
	"encoding/hex"

	"github.com/millrace/millrace/metadata"
)

// MetadataState is how far a broker has applied the metadata, and to what effect. Two brokers with the same index have
// the same hash; anything else is a defect of millrace (I14).
type MetadataState struct {
	Broker int32  `json:"broker" doc:"whose state"`
	Index  int64  `json:"index" doc:"last applied entry that changes the state"`
	Hash   string `json:"hash" doc:"SHA-256 of the state, in hex: equal on all brokers with the same index"`
}

func getMetadata(c *call) (any, error) { return metadataState(c.BrokerID, c.image()), nil }

func metadataState(self metadata.BrokerID, im *metadata.Image) MetadataState {
	hash := im.Hash()
	return MetadataState{Broker: int32(self), Index: int64(im.Version()), Hash: hex.EncodeToString(hash[:])}
}
