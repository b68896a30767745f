package broker

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// A broker whose metadata is damaged or gone, and whose records are not, takes its own place anew with --replace: it joins
// its cluster as a broker with a new directory, fetches the metadata, and opens the records that it finds as a follower. As
// what it was it may not come back: it no longer knows how it voted and what it confirmed (M6, M14); the old directory id
// is never heard of again.
//
// What is renewed, in an order that can be cut off anywhere and begun again: the directory id (log.Config.Forget, under the
// directory's lock), formation.json moved aside, then, once the cluster has given the place, meta.properties; only after
// that is there a metadata folder.

// renewedSuffix is added to the name of what a renewal moves aside.
const renewedSuffix = ".replaced"

// lostMetadata is asked about a data directory with an identity and without metadata: may this broker be renewed?
func (b *Broker) lostMetadata(m *metaProperties, folder string) error {
	what := fmt.Sprintf("the data directory %s of cluster %s has no metadata", b.cfg.DataDir, m.clusterID)
	if _, err := os.Stat(filepath.Join(b.cfg.DataDir, "__cluster_metadata-0")); err == nil {
		return dataError(what, "it was written by Apache Kafka, whose metadata millrace does not read", "start with another --data; the records can be copied from the old cluster")
	}
	why := "the folder " + folder + " is gone"
	id, err := base64.RawURLEncoding.DecodeString(m.directoryID)
	switch {
	case !b.cfg.forms():
		return dataError(what, why, "restore it from a backup, or start with another --data; a new cluster is never formed over old records")
	case b.cfg.Replace != m.nodeID || err != nil || len(id) != len(b.forget):
		return dataError(what, why, fmt.Sprintf("start it with --replace %d added, once: it fetches the metadata from the others, and its records stay", m.nodeID))
	}
	b.renews = m
	copy(b.forget[:], id)
	return nil
}

// renew forgets, under the lock of the data directory, how the broker once got its place.
func (b *Broker) renew() error {
	if b.renews == nil {
		return nil
	}
	name := filepath.Join(b.cfg.DataDir, formationName)
	fsys := vfs.OS()
	if err := fsys.Rename(name, name+renewedSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("move %s aside: %w", name, err)
	}
	if err := fsys.SyncDir(b.cfg.DataDir); err != nil {
		return fmt.Errorf("move %s aside: %w", name, err)
	}
	b.granted = formationState{}
	b.logger.Warn("this broker's metadata is gone: it takes its own place anew, with the records that it has", "node", b.renews.nodeID,
		"cluster", b.renews.clusterID, "directory", directoryIDText(b.dir.ID()))
	return nil
}

// renewed keeps the new identity, once the cluster has given the place.
func (b *Broker) renewed() error {
	if b.renews == nil {
		return nil
	}
	if b.clusterID != b.renews.clusterID {
		return &metadata.Error{
			Kind: metadata.ErrClusterMismatch,
			What: fmt.Sprintf("data belongs to cluster %s, peers are cluster %s", b.renews.clusterID, b.clusterID),
			Why:  "--join names brokers of another cluster", Fix: "check --join (millrace.join)",
		}
	}
	return writeMeta(b.cfg.DataDir, metaProperties{clusterID: b.clusterID, nodeID: b.nodeID, directoryID: directoryIDText(b.dir.ID())})
}
