package metadata

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// A snapshot is a stream of records, so that neither writer nor reader holds more than one encoded record:
//
//	8 bytes   magic "MILLRSS" and the format version 1
//	records   until the end of the stream, each
//	          4 bytes  length n of the payload, little-endian
//	          4 bytes  CRC-32C of the payload, little-endian
//	          n bytes  payload: a pb.SnapshotRecord
//
// The first record is a header, the last a footer with the number of records before it. The bytes are a function of the
// state and the index alone, and so serve as the state's hash too (I14).
const (
	snapshotMagic = "MILLRSS\x01"
	// snapshotRecordLimit bounds a record; the largest are chains.
	snapshotRecordLimit = 2 * maxChainBytes
	// partitionsPerRecord cuts large topics into records of some 10 KiB.
	partitionsPerRecord = 512
	// snapshotWriteParts and snapshotReadParts are those of the Pacers, see NewPacer. Nobody waits for a snapshot that is
	// written. A broker that is sent one can't go on without, and others can go on without that broker.
	snapshotWriteParts  = 4
	snapshotReadParts   = 2
	tombstonesPerRecord = 1024
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stateHash is equal on two brokers that have applied the same entries, whether by replay or by snapshot.
func stateHash(st *state, index uint64) [sha256.Size]byte {
	h := sha256.New()
	if err := writeSnapshot(h, st, index); err != nil {
		panic(fmt.Sprintf("metadata: hash of the state at %d: %v", index, err)) // a hash takes any bytes
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// snapshotWriter frames records.
type snapshotWriter struct {
	w       *bufio.Writer
	buf     []byte
	records uint64
	pacer   *Pacer
}

func (sw *snapshotWriter) write(rec *pb.SnapshotRecord) error {
	buf, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(append(sw.buf[:0], make([]byte, 8)...), rec)
	if err != nil {
		return fmt.Errorf("encode snapshot record %d: %w", sw.records, err)
	}
	sw.buf = buf
	payload := buf[8:]
	if len(payload) > snapshotRecordLimit {
		return fmt.Errorf("encode snapshot record %d: %d bytes", sw.records, len(payload))
	}
	binary.LittleEndian.PutUint32(buf[0:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(buf[4:], crc32.Checksum(payload, castagnoli))
	if _, err := sw.w.Write(buf); err != nil {
		return fmt.Errorf("write snapshot record %d: %w", sw.records, err)
	}
	sw.records++
	sw.pacer.Breathe()
	return nil
}

// writeSnapshot writes the state after the entry at index.
func writeSnapshot(w io.Writer, st *state, index uint64) error {
	return writePacedSnapshot(w, st, index, nil)
}

// writePacedSnapshot is writeSnapshot with a rest after every few records; nothing of what it writes depends on them.
func writePacedSnapshot(w io.Writer, st *state, index uint64, pacer *Pacer) error {
	sw := &snapshotWriter{w: bufio.NewWriterSize(w, 64<<10), pacer: pacer}
	if _, err := sw.w.WriteString(snapshotMagic); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	err := sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Header{Header: &pb.SnapshotHeader{
		Index:           index,
		ClusterId:       st.clusterID,
		FeatureLevel:    st.featureLevel,
		LastBrokerEpoch: st.lastBrokerEpoch,
		NextProducerId:  st.nextProducerID,
		NextBrokerId:    int32(st.nextBrokerID),

		CoordinatorEpoch:    st.coordinatorEpoch,
		GroupRevision:       st.groupRevision,
		TransactionRevision: st.transactionRevision,
	}}})
	for i := 0; err == nil && i < len(st.brokers); i++ {
		err = sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Broker{Broker: encodeBroker(st.brokers[i])}})
	}
	for i := 0; err == nil && i < len(st.configs); i++ {
		c := st.configs[i]
		err = sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Configs{Configs: &pb.SnapshotConfigs{
			BrokerId: int32(c.ID), Version: c.Version, Values: encodeConfigs(c.Values),
		}}})
	}
	for i := 0; err == nil && i < len(st.identities); i++ {
		id := st.identities[i]
		err = sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Identity{Identity: &pb.SnapshotIdentity{
			Directory: id.Directory[:], BrokerId: int32(id.Broker), Removed: id.Removed,
		}}})
	}
	if err != nil {
		return err
	}
	for _, t := range st.topics.all() {
		if err := sw.writeTopic(t); err != nil {
			return err
		}
	}
	if err := sw.writeTombstones(st.tombstones); err != nil {
		return err
	}
	for _, c := range st.chains {
		err := sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Chain{Chain: &pb.SnapshotChain{
			ChainId: c.ID[:], Parts: c.Parts, Bodies: c.Bodies,
		}}})
		if err != nil {
			return err
		}
	}
	if b := st.balance; b != nil {
		err := sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Balance{Balance: &pb.SnapshotBalance{
			Version: b.Version, Plan: encodeBalancePlan(b.Plan), Seen: encodeBalanceSeen(&b.Seen),
		}}})
		if err != nil {
			return err
		}
	}
	if err := sw.writeGroups(st); err != nil {
		return err
	}
	if err := sw.writeTransactions(st); err != nil {
		return err
	}
	footer := &pb.SnapshotFooter{Records: sw.records}
	if err := sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Footer{Footer: footer}}); err != nil {
		return err
	}
	if err := sw.w.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

func (sw *snapshotWriter) writeTopic(t *Topic) error {
	err := sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Topic{Topic: &pb.SnapshotTopic{
		TopicId:       t.ID[:],
		Name:          t.Name,
		Configs:       encodeConfigs(t.Configs),
		ConfigVersion: t.configVersion,
		Partitions:    uint32(len(t.Partitions)),
	}}})
	for chunk := range slices.Chunk(t.Partitions, partitionsPerRecord) {
		if err != nil {
			return err
		}
		err = sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Partitions{Partitions: encodePartitions(chunk)}})
	}
	return err
}

func (sw *snapshotWriter) writeTombstones(stones tree[TopicID, tombstone]) error {
	m := &pb.SnapshotTombstones{}
	rec := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Tombstones{Tombstones: m}}
	for id, stone := range stones.all() {
		m.TopicIds = append(m.TopicIds, id[:]...)
		m.RequestIds = append(m.RequestIds, stone.Request[:]...)
		m.Indexes = append(m.Indexes, stone.Index)
		if len(m.TopicIds) == tombstonesPerRecord*len(id) {
			if err := sw.write(rec); err != nil {
				return err
			}
			m.TopicIds, m.RequestIds, m.Indexes = m.TopicIds[:0], m.RequestIds[:0], m.Indexes[:0]
		}
	}
	if len(m.TopicIds) == 0 {
		return nil
	}
	return sw.write(rec)
}

func encodePartitions(partitions []*Partition) *pb.SnapshotPartitions {
	var e placementEncoder
	replicas, isr := 0, 0
	for i := range partitions {
		replicas += len(partitions[i].Replicas)
		isr += len(partitions[i].ISR)
	}
	e.grow(len(partitions), replicas)
	n := len(partitions)
	m := &pb.SnapshotPartitions{
		Leaders:         make([]int32, 0, n),
		LeaderEpochs:    make([]int32, 0, n),
		PartitionEpochs: make([]int32, 0, n),
		IsrCounts:       make([]uint32, 0, n),
		ElrCounts:       make([]uint32, 0, n),
		Isr:             make([]int32, 0, isr),
	}
	for i := range partitions {
		p := partitions[i]
		e.add(p.Replicas, p.Directories)
		m.Leaders = append(m.Leaders, int32(p.Leader))
		m.LeaderEpochs = append(m.LeaderEpochs, p.LeaderEpoch)
		m.PartitionEpochs = append(m.PartitionEpochs, p.PartitionEpoch)
		m.IsrCounts = append(m.IsrCounts, uint32(len(p.ISR)))
		for _, id := range p.ISR {
			m.Isr = append(m.Isr, int32(id))
		}
		m.ElrCounts = append(m.ElrCounts, uint32(len(p.ELR)))
		for _, id := range p.ELR {
			m.Elr = append(m.Elr, int32(id))
		}
	}
	m.Placement = &e.m
	encodeRareColumns(m, partitions)
	return m
}

// encodeRareColumns adds the columns that most topics do without: each is written only if something in it differs from its
// default.
func encodeRareColumns(m *pb.SnapshotPartitions, partitions []*Partition) {
	if slices.ContainsFunc(partitions, func(p *Partition) bool { return p.LastLeader != p.Leader }) {
		for _, p := range partitions {
			m.LastLeaders = append(m.LastLeaders, int32(p.LastLeader))
		}
	}
	if slices.ContainsFunc(partitions, func(p *Partition) bool { return p.UncleanEpoch >= 0 }) {
		for _, p := range partitions {
			m.UncleanEpochs = append(m.UncleanEpochs, uint32(p.UncleanEpoch+1))
		}
	}
	if !slices.ContainsFunc(partitions, (*Partition).Reassigning) {
		return
	}
	for _, p := range partitions {
		m.AddingCounts = append(m.AddingCounts, uint32(len(p.Adding)))
		m.RemovingCounts = append(m.RemovingCounts, uint32(len(p.Removing)))
		for _, id := range p.Adding {
			m.Adding = append(m.Adding, int32(id))
		}
		for _, id := range p.Removing {
			m.Removing = append(m.Removing, int32(id))
		}
	}
}

func decodePartitions(m *pb.SnapshotPartitions) ([]*Partition, error) {
	sets, err := decodePlacement(m.Placement)
	if err != nil {
		return nil, err
	}
	n := len(sets)
	if len(m.Leaders) != n || len(m.LeaderEpochs) != n || len(m.PartitionEpochs) != n {
		return nil, fmt.Errorf("columns of %d, %d, %d, %d partitions", n, len(m.Leaders), len(m.LeaderEpochs), len(m.PartitionEpochs))
	}
	isr, err := splitColumn(m.Isr, m.IsrCounts, n)
	if err != nil {
		return nil, fmt.Errorf("ISR: %w", err)
	}
	elr, err := splitColumn(m.Elr, m.ElrCounts, n)
	if err != nil {
		return nil, fmt.Errorf("ELR: %w", err)
	}
	if len(m.LastLeaders) == 0 {
		m.LastLeaders = m.Leaders
	}
	if len(m.UncleanEpochs) == 0 {
		m.UncleanEpochs = make([]uint32, n)
	}
	if len(m.LastLeaders) != n || len(m.UncleanEpochs) != n {
		return nil, fmt.Errorf("columns of %d, %d, %d partitions", n, len(m.LastLeaders), len(m.UncleanEpochs))
	}
	adding, removing := make([][]BrokerID, n), make([][]BrokerID, n)
	if len(m.AddingCounts) > 0 || len(m.RemovingCounts) > 0 {
		if adding, err = splitColumn(m.Adding, m.AddingCounts, n); err != nil {
			return nil, fmt.Errorf("adding: %w", err)
		}
		if removing, err = splitColumn(m.Removing, m.RemovingCounts, n); err != nil {
			return nil, fmt.Errorf("removing: %w", err)
		}
	}
	partitions := make([]*Partition, n)
	for i := range partitions {
		if slices.Equal(isr[i], sets[i].replicas) {
			isr[i] = sets[i].replicas // the common case shares
		}
		partitions[i] = &Partition{
			Leader:         BrokerID(m.Leaders[i]),
			LeaderEpoch:    m.LeaderEpochs[i],
			PartitionEpoch: m.PartitionEpochs[i],
			Replicas:       sets[i].replicas,
			ISR:            isr[i],
			ELR:            elr[i],
			Directories:    sets[i].directories,
			LastLeader:     BrokerID(m.LastLeaders[i]),
			UncleanEpoch:   int32(m.UncleanEpochs[i]) - 1,
			Adding:         adding[i],
			Removing:       removing[i],
		}
		if err := partitions[i].check(); err != nil {
			return nil, fmt.Errorf("partition %d of the record: %w", i, err)
		}
	}
	return partitions, nil
}

// check makes sure that the lists of a partition fit each other as Partition promises.
func (p *Partition) check() error {
	for i, id := range p.ISR {
		if !slices.Contains(p.Replicas, id) || slices.Contains(p.ISR[:i], id) {
			return fmt.Errorf("ISR %v of replicas %v", p.ISR, p.Replicas)
		}
	}
	for i, id := range p.ELR {
		if !slices.Contains(p.Replicas, id) || slices.Contains(p.ISR, id) || slices.Contains(p.ELR[:i], id) {
			return fmt.Errorf("ELR %v beside ISR %v of replicas %v", p.ELR, p.ISR, p.Replicas)
		}
	}
	if p.Leader != NoBroker && (!slices.Contains(p.ISR, p.Leader) || p.LastLeader != p.Leader) {
		return fmt.Errorf("leader %d, the last one %d, of the ISR %v", p.Leader, p.LastLeader, p.ISR)
	}
	if p.LeaderEpoch < 0 || p.PartitionEpoch < 0 || p.UncleanEpoch < -1 || p.UncleanEpoch > p.LeaderEpoch {
		return fmt.Errorf("leader epoch %d, partition epoch %d, unclean epoch %d", p.LeaderEpoch, p.PartitionEpoch, p.UncleanEpoch)
	}
	for i, id := range slices.Concat(p.Adding, p.Removing) {
		if !slices.Contains(p.Replicas, id) || slices.Contains(slices.Concat(p.Adding, p.Removing)[:i], id) {
			return fmt.Errorf("replicas %v with %v added and %v removed", p.Replicas, p.Adding, p.Removing)
		}
	}
	return nil
}

// splitColumn cuts a column of ids into the lists of n partitions; an empty list is nil.
func splitColumn(column []int32, counts []uint32, n int) ([][]BrokerID, error) {
	if len(counts) != n {
		return nil, fmt.Errorf("%d counts for %d partitions", len(counts), n)
	}
	ids := make([]BrokerID, len(column))
	for i, id := range column {
		ids[i] = BrokerID(id)
	}
	out := make([][]BrokerID, n)
	at := 0
	for i, c := range counts {
		if int64(c) > int64(len(ids)-at) {
			return nil, fmt.Errorf("count %d with %d ids left", c, len(ids)-at)
		}
		if c > 0 {
			end := at + int(c)
			out[i] = ids[at:end:end]
			at = end
		}
	}
	if at != len(ids) {
		return nil, fmt.Errorf("%d ids of no partition", len(ids)-at)
	}
	return out, nil
}

// snapshotReader reads what snapshotWriter wrote. Everything it returns has passed its checksum.
type snapshotReader struct {
	r       *bufio.Reader
	buf     bytes.Buffer
	records uint64
}

// next returns the next record, or io.EOF at the end of the stream.
func (sr *snapshotReader) next() (*pb.SnapshotRecord, error) {
	var head [8]byte
	if _, err := io.ReadFull(sr.r, head[:]); err != nil {
		if err == io.EOF {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("read snapshot record %d: %w", sr.records, err)
	}
	n := binary.LittleEndian.Uint32(head[0:])
	if n > snapshotRecordLimit {
		return nil, fmt.Errorf("read snapshot record %d: length %d", sr.records, n)
	}
	sr.buf.Reset() // grows as bytes arrive, whatever the length claims
	if _, err := io.CopyN(&sr.buf, sr.r, int64(n)); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("read snapshot record %d: %w", sr.records, err)
	}
	if crc32.Checksum(sr.buf.Bytes(), castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, fmt.Errorf("read snapshot record %d: checksum differs", sr.records)
	}
	rec := &pb.SnapshotRecord{}
	if err := unmarshal(sr.buf.Bytes(), rec); err != nil {
		return nil, fmt.Errorf("decode snapshot record %d: %w", sr.records, err)
	}
	sr.records++
	return rec, nil
}

// readSnapshot builds the state of a snapshot, from nothing, and returns it with the index of the last entry in it. An
// error leaves nothing behind (M5).
func readSnapshot(r io.Reader) (*state, uint64, error) { return readPacedSnapshot(r, nil) }

// readPacedSnapshot is readSnapshot with a rest after every few records.
func readPacedSnapshot(r io.Reader, pacer *Pacer) (*state, uint64, error) {
	sr := &snapshotReader{r: bufio.NewReaderSize(r, 64<<10)}
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(sr.r, magic); err != nil {
		return nil, 0, fmt.Errorf("read snapshot: %w", err)
	}
	if last := len(magic) - 1; string(magic[:last]) == snapshotMagic[:last] && magic[last] > snapshotMagic[last] {
		return nil, 0, fmt.Errorf("read snapshot: format version %d: %w", magic[last], errNewerVersion)
	}
	if string(magic) != snapshotMagic {
		return nil, 0, fmt.Errorf("read snapshot: format %q instead of %q", magic, snapshotMagic)
	}
	b := snapshotBuilder{d: newDraft(newState())}
	for !b.complete {
		rec, err := sr.next()
		if err == io.EOF {
			err = fmt.Errorf("read snapshot: ends without footer after %d records: %w", sr.records, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return nil, 0, err
		}
		if err := b.add(rec, sr.records-1); err != nil {
			return nil, 0, fmt.Errorf("snapshot record %d: %w", sr.records-1, err)
		}
		pacer.Breathe()
	}
	if _, err := sr.r.ReadByte(); err == nil {
		return nil, 0, errors.New("read snapshot: goes on after the footer")
	} else if err != io.EOF {
		return nil, 0, fmt.Errorf("read snapshot: %w", err)
	}
	return b.d.publish(), b.index, nil
}

// snapshotBuilder takes records in their order and refuses a state that no sequence of commands could have made.
type snapshotBuilder struct {
	d        *draft
	index    uint64
	begun    bool
	complete bool
	topic    *Topic // whose partitions come next
	missing  int    // how many of them
	groups   groupBuilder

	transactions transactionBuilder
}

func (b *snapshotBuilder) add(rec *pb.SnapshotRecord, before uint64) error {
	if h := rec.GetHeader(); (h != nil) == b.begun {
		return errors.New("header missing or not first")
	}
	if _, more := rec.Record.(*pb.SnapshotRecord_Partitions); !more && b.missing > 0 {
		return fmt.Errorf("topic %s lacks %d partitions", b.topic.Name, b.missing)
	}
	if _, more := rec.Record.(*pb.SnapshotRecord_Members); !more && b.groups.missing > 0 {
		return fmt.Errorf("group %s lacks %d members", quoteShort(b.groups.group.Name), b.groups.missing)
	}
	st := &b.d.st
	switch rec := rec.Record.(type) {
	case *pb.SnapshotRecord_Header:
		b.begun = true
		b.index = rec.Header.Index
		st.clusterID = rec.Header.ClusterId
		st.featureLevel = rec.Header.FeatureLevel
		st.lastBrokerEpoch = rec.Header.LastBrokerEpoch
		st.nextProducerID = rec.Header.NextProducerId
		st.nextBrokerID = max(BrokerID(rec.Header.NextBrokerId), st.nextBrokerID)
		st.coordinatorEpoch = rec.Header.CoordinatorEpoch
		st.groupRevision = rec.Header.GroupRevision
		st.transactionRevision = rec.Header.TransactionRevision
		if st.featureLevel > MaxFeatureLevel {
			return fmt.Errorf("feature level %d, this binary knows %d: %w", st.featureLevel, MaxFeatureLevel, errNewerVersion)
		}
	case *pb.SnapshotRecord_Broker:
		broker, err := decodeBroker(rec.Broker)
		if err != nil {
			return err
		}
		if n := len(st.brokers); n > 0 && st.brokers[n-1].ID >= broker.ID {
			return fmt.Errorf("broker %d out of order", broker.ID)
		}
		st.brokers = append(st.brokers, broker)
		st.nextBrokerID = max(st.nextBrokerID, broker.ID+1)
	case *pb.SnapshotRecord_Configs:
		values, err := decodeConfigs(rec.Configs.Values)
		if err != nil {
			return err
		}
		c := &brokerConfigs{ID: BrokerID(rec.Configs.BrokerId), Version: rec.Configs.Version, Values: values}
		if n := len(st.configs); c.ID < NoBroker || n > 0 && st.configs[n-1].ID >= c.ID {
			return fmt.Errorf("configs of broker %d out of order", c.ID)
		}
		st.configs = append(st.configs, c)
	case *pb.SnapshotRecord_Identity:
		dir, err := bytes16(rec.Identity.Directory, "directory id")
		if err != nil {
			return err
		}
		if n := len(st.identities); rec.Identity.BrokerId < 0 || n > 0 && compareTopicIDs(st.identities[n-1].Directory, dir) >= 0 {
			return fmt.Errorf("identity of directory %x out of order", dir)
		}
		st.identities = append(st.identities, &identity{Directory: dir, Broker: BrokerID(rec.Identity.BrokerId), Removed: rec.Identity.Removed})
		st.nextBrokerID = max(st.nextBrokerID, BrokerID(rec.Identity.BrokerId)+1)
	case *pb.SnapshotRecord_Topic:
		return b.addTopic(rec.Topic)
	case *pb.SnapshotRecord_Partitions:
		return b.addPartitions(rec.Partitions)
	case *pb.SnapshotRecord_Tombstones:
		return b.addTombstones(rec.Tombstones)
	case *pb.SnapshotRecord_Chain:
		id, err := bytes16(rec.Chain.ChainId, "chain id")
		if err != nil {
			return err
		}
		if len(rec.Chain.Bodies) >= int(rec.Chain.Parts) || len(st.chains) == maxChains {
			return fmt.Errorf("chain %x with %d of %d parts, the %d. one", id, len(rec.Chain.Bodies), rec.Chain.Parts, len(st.chains)+1)
		}
		st.chains = append(st.chains, &chain{ID: id, Parts: rec.Chain.Parts, Bodies: rec.Chain.Bodies})
	case *pb.SnapshotRecord_Balance:
		plan, err := decodeBalancePlan(rec.Balance.Plan)
		if err != nil {
			return err
		}
		if st.balance != nil {
			return errors.New("a second state of the balancer")
		}
		st.balance = &balance{Version: rec.Balance.Version, Plan: plan, Seen: decodeBalanceSeen(rec.Balance.Seen)}
	case *pb.SnapshotRecord_Group:
		return b.addGroup(rec.Group)
	case *pb.SnapshotRecord_Members:
		return b.addMembers(rec.Members)
	case *pb.SnapshotRecord_Offsets:
		return b.addOffsets(rec.Offsets)
	case *pb.SnapshotRecord_LastGenerations:
		return b.addLastGenerations(rec.LastGenerations)
	case *pb.SnapshotRecord_CommitSequences:
		return b.addCommitSequences(rec.CommitSequences)
	case *pb.SnapshotRecord_Transactions:
		return b.addTransactions(rec.Transactions)
	case *pb.SnapshotRecord_Pending:
		return b.addPending(rec.Pending)
	case *pb.SnapshotRecord_Footer:
		if rec.Footer.Records != before {
			return fmt.Errorf("footer counts %d records, there were %d", rec.Footer.Records, before)
		}
		b.complete = true
		st.coordinators = st.findCoordinators()
	default:
		return errors.New("empty record")
	}
	return nil
}

func (b *snapshotBuilder) addTopic(m *pb.SnapshotTopic) error {
	id, err := bytes16(m.TopicId, "topic id")
	if err != nil {
		return err
	}
	configs, err := decodeConfigs(m.Configs)
	if err != nil {
		return fmt.Errorf("topic %s: %w", m.Name, err)
	}
	switch {
	case m.Name == "" || m.Partitions == 0:
		return fmt.Errorf("topic %q with %d partitions", m.Name, m.Partitions)
	case b.d.st.topic(m.Name) != nil:
		return fmt.Errorf("topic %s twice", m.Name)
	case b.d.st.topicByID(TopicID(id)) != nil:
		return fmt.Errorf("topic id %s twice", TopicID(id))
	case b.d.st.collision(m.Name) != "":
		return fmt.Errorf("topics %s and %s collide", m.Name, b.d.st.collision(m.Name))
	}
	b.topic = &Topic{Name: m.Name, ID: id, Configs: configs, configVersion: m.ConfigVersion}
	b.missing = int(m.Partitions)
	b.d.putTopic(b.topic, false)
	return nil
}

func (b *snapshotBuilder) addPartitions(m *pb.SnapshotPartitions) error {
	if b.missing == 0 {
		return errors.New("partitions of no topic")
	}
	partitions, err := decodePartitions(m)
	if err != nil {
		return fmt.Errorf("partitions of topic %s: %w", b.topic.Name, err)
	}
	if len(partitions) > b.missing {
		return fmt.Errorf("topic %s has %d partitions too many", b.topic.Name, len(partitions)-b.missing)
	}
	if b.topic.Partitions == nil && len(partitions) == b.missing {
		b.topic.Partitions = partitions
	} else {
		b.topic.Partitions = append(b.topic.Partitions, partitions...)
	}
	b.missing -= len(partitions)
	b.d.st.partitions += len(partitions)
	return nil
}

func (b *snapshotBuilder) addTombstones(m *pb.SnapshotTombstones) error {
	if len(m.TopicIds) != len(m.RequestIds) || len(m.TopicIds)%len(TopicID{}) != 0 || len(m.Indexes) > 0 && len(m.Indexes) != len(m.TopicIds)/len(TopicID{}) {
		return fmt.Errorf("tombstones of %d and %d bytes with %d indexes", len(m.TopicIds), len(m.RequestIds), len(m.Indexes))
	}
	for i := 0; i < len(m.TopicIds); i += len(TopicID{}) {
		id := TopicID(m.TopicIds[i : i+16])
		stone := tombstone{Request: requestID(m.RequestIds[i : i+16]), Index: b.index}
		if len(m.Indexes) > 0 {
			stone.Index = m.Indexes[i/16]
		}
		if b.d.st.topicByID(id) != nil {
			return fmt.Errorf("topic id %s exists and is deleted", id)
		}
		b.d.st.tombstones = b.d.st.tombstones.set(b.d.edit, id, stone)
	}
	return nil
}
