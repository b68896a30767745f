package metadata

// BuildImage makes an Image out of its parts, for tests of packages that read Images: no Store takes one. The parts must
// not be written to afterwards. Topics need names, ids and partitions that obey Partition's invariants.
func BuildImage(clusterID string, controller BrokerID, version uint64, brokers []*Broker, topics []*Topic) *Image {
	d := newDraft(newState())
	d.st.clusterID = clusterID
	for _, b := range brokers {
		d.putBroker(b)
	}
	for _, t := range topics {
		d.putTopic(t, true)
	}
	return &Image{version: version, controller: controller, st: d.publish()}
}
