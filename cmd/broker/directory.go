package broker

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/magiconair/properties"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// Names in the data directory that are the broker's own; the rest is the log's.
const (
	metaName = "meta.properties"
	pidName  = "broker.pid"
	raftName = "raft"
)

// ErrDataDirectory is matched by every refusal to use a data directory: it is another cluster's, another node's, in
// use, or damaged.
var ErrDataDirectory = errors.New("data directory cannot be used")

// metaProperties is the identity that a data directory keeps: which cluster it belongs to, which node wrote it. The
// file is written once the cluster id is known, and never changes after.
type metaProperties struct {
	clusterID   string
	nodeID      metadata.BrokerID
	directoryID string // base64url of the log directory's id, "" when the file has none
}

// readMeta returns nil when there is no file.
func readMeta(dir string) (*metaProperties, error) {
	path := filepath.Join(dir, metaName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, dataError("cannot read "+path, err.Error(), "give this user the right to read "+dir)
	}
	loader := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := loader.LoadBytes(b)
	if err != nil {
		return nil, dataError(path+" is damaged", err.Error(), "restore the directory from a backup, or start with another --data")
	}
	m := &metaProperties{clusterID: p.GetString("cluster.id", ""), directoryID: p.GetString("directory.id", "")}
	id, err := strconv.ParseInt(p.GetString("node.id", p.GetString("broker.id", "")), 10, 32)
	if err != nil || id < 0 || m.clusterID == "" {
		return nil, dataError(path+" is damaged", "it has no cluster.id or no node.id", "restore the directory from a backup, or start with another --data")
	}
	m.nodeID = metadata.BrokerID(id)
	return m, nil
}

// writeMeta writes the file.
func writeMeta(dir string, m metaProperties) error {
	text := fmt.Sprintf("# written once by millrace; do not edit\nversion=1\ncluster.id=%s\nnode.id=%d\ndirectory.id=%s\n", m.clusterID, m.nodeID, m.directoryID)
	return replaceFile(dir, metaName, []byte(text))
}

func directoryIDText(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// identify decides which node this is, from the configuration and what the directory says, before anything is opened.
func (b *Broker) identify() error {
	if err := os.MkdirAll(b.cfg.DataDir, 0o750); err != nil {
		return dataError("cannot make the data directory "+b.cfg.DataDir, err.Error(), "--data DIR   a directory that this user may write")
	}
	m, err := readMeta(b.cfg.DataDir)
	if err != nil {
		return err
	}
	b.meta = m
	raft := filepath.Join(b.cfg.MetadataDir, raftName)
	_, err = os.Stat(raft)
	hasRaft := err == nil
	switch {
	case m == nil && !hasRaft:
		if name := foreignEntry(b.cfg.DataDir); name != "" {
			return dataError("the data directory "+b.cfg.DataDir+" holds records without the metadata that belongs to them",
				"there is "+name+" but no "+metaName, "start with another --data, or bring "+metaName+" and "+raftName+" back from a backup")
		}
	case m != nil && !hasRaft:
		if err := b.lostMetadata(m, raft); err != nil {
			return err
		}
		b.meta, b.nodeID = nil, m.nodeID
		return nil
	}
	b.hasRaft = hasRaft
	if b.granted, err = readFormation(b.cfg.DataDir); err != nil {
		return err
	}
	if m == nil && !b.cfg.forms() && (b.granted.Granted != nil || b.granted.Joined != nil) {
		return dataError("the data directory "+b.cfg.DataDir+" belongs to a cluster that was being formed",
			"this broker has agreed to a cluster with others ("+formationName+"), and was now started alone",
			"start it with --join and --bootstrap-expect as before, or with another --data")
	}
	switch {
	case m == nil && b.cfg.forms():
		b.nodeID = b.cfg.NodeID // else given by the cluster
	case m == nil && b.cfg.NodeID < 0:
		b.nodeID = 1
	case m == nil:
		b.nodeID = b.cfg.NodeID
	case b.cfg.NodeID >= 0 && b.cfg.NodeID != m.nodeID:
		return dataError(fmt.Sprintf("node.id=%d was asked for, but %s belongs to node %d", b.cfg.NodeID, b.cfg.DataDir, m.nodeID),
			"a node keeps its id for life: the cluster's metadata names it",
			fmt.Sprintf("leave node.id out, or set node.id=%d; another node needs another --data", m.nodeID))
	default:
		b.nodeID = m.nodeID
	}
	return nil
}

// foreignEntry returns the name of a partition directory in dir, "" when there is none.
func foreignEntry(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if i := strings.LastIndexByte(e.Name(), '-'); e.IsDir() && i > 0 {
			if _, err := strconv.ParseUint(e.Name()[i+1:], 10, 31); err == nil {
				return e.Name()
			}
		}
	}
	return ""
}

// openDirError explains why the log directory cannot be opened.
func (b *Broker) openDirError(err error) error {
	switch {
	case errors.Is(err, log.ErrLocked), errors.Is(err, vfs.ErrLocked):
		holder := "another process"
		if pid := readPid(b.cfg.DataDir); pid != 0 {
			holder = fmt.Sprintf("process %d", pid)
			if pid == os.Getpid() {
				holder = "another broker of this process"
			}
		}
		return dataError("the data directory "+b.cfg.DataDir+" is in use by "+holder, "two brokers on one directory would destroy it",
			"stop that process, or start with another --data")
	case errors.Is(err, fs.ErrPermission):
		return dataError("cannot open the data directory "+b.cfg.DataDir, err.Error(), "chown it to this user, or start with another --data")
	}
	return fmt.Errorf("open the data directory %s: %w", b.cfg.DataDir, err)
}

// readPid returns the process id that the directory's holder left, 0 when it cannot be told.
func readPid(dir string) int {
	text, err := os.ReadFile(filepath.Join(dir, pidName))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}

func writePid(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, pidName), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", pidName, err)
	}
	return nil
}

func dataError(what, why, fix string) error {
	return &metadata.Error{Kind: ErrDataDirectory, What: what, Why: why, Fix: fix}
}
