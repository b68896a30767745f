package metadata

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// errNewerVersion marks data that is whole, and that only a newer version can read.
var errNewerVersion = errors.New("written by a newer version")

// unmarshal decodes b into m and refuses fields this binary does not know, at any depth: an older binary that ignored a
// newer field of a command would go on with another state than its neighbours (M2).
func unmarshal(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return err
	}
	return refuseUnknown(m.ProtoReflect())
}

func refuseUnknown(m protoreflect.Message) error {
	if len(m.GetUnknown()) > 0 {
		return fmt.Errorf("unknown field of %s: %w", m.Descriptor().FullName(), errNewerVersion)
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil || !m.Has(f) {
			continue
		}
		if !f.IsList() {
			if err := refuseUnknown(m.Get(f).Message()); err != nil {
				return err
			}
			continue
		}
		list := m.Get(f).List()
		for j := range list.Len() {
			if err := refuseUnknown(list.Get(j).Message()); err != nil {
				return err
			}
		}
	}
	return nil
}

// envelope is a command of an entry, not decoded yet.
type envelope struct {
	kind pb.CommandType
	term uint64 // of the controller that decided on it
	body []byte // a part of the entry
}

// decodeEntry reads the commands of an entry as unmarshal of a pb.Entry would, without a copy.
func decodeEntry(data []byte) (commands []envelope, err error) {
	for f := (fields{b: data, end: len(data)}); ; {
		more, err := f.next()
		switch {
		case err != nil:
			return nil, err
		case !more:
			return commands, nil
		case !f.is(1, protowire.BytesType):
			return nil, f.unknown("Entry")
		}
		in, err := f.inner()
		if err != nil {
			return nil, err
		}
		var c envelope
		if err := c.decode(&in); err != nil {
			return nil, err
		}
		commands = append(commands, c)
	}
}

func (c *envelope) decode(f *fields) error {
	for {
		more, err := f.next()
		if err != nil || !more {
			return err
		}
		switch {
		case f.is(1, protowire.VarintType):
			var v uint64
			v, err = f.number()
			c.kind = pb.CommandType(int32(v))
		case f.is(2, protowire.VarintType):
			c.term, err = f.number()
		case f.is(3, protowire.BytesType):
			var in fields
			in, err = f.inner()
			c.body = in.b[in.at:in.end:in.end]
		default:
			err = f.unknown("Command")
		}
		if err != nil {
			return err
		}
	}
}

// bytes16 reads an id of 16 bytes.
func bytes16(b []byte, what string) (id [16]byte, err error) {
	if len(b) != len(id) {
		return id, fmt.Errorf("%s of %d bytes instead of %d", what, len(b), len(id))
	}
	copy(id[:], b)
	return id, nil
}

func encodeIDs(ids []DirectoryID) [][]byte {
	var out [][]byte
	for i := range ids {
		out = append(out, ids[i][:])
	}
	return out
}

func decodeIDs(in [][]byte) ([]DirectoryID, error) {
	var out []DirectoryID
	for _, b := range in {
		id, err := bytes16(b, "directory id")
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// encodeConfigs writes a map in the order of its keys, so that equal maps have equal bytes.
func encodeConfigs(m map[string]string) []*pb.KeyValue {
	if len(m) == 0 {
		return nil
	}
	out := make([]*pb.KeyValue, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, &pb.KeyValue{Key: k, Value: m[k]})
	}
	return out
}

// decodeConfigs reads what encodeConfigs wrote; no pairs give a nil map.
func decodeConfigs(kvs []*pb.KeyValue) (map[string]string, error) {
	if len(kvs) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(kvs))
	for _, kv := range kvs {
		if _, ok := m[kv.Key]; ok {
			return nil, fmt.Errorf("config %q twice", kv.Key)
		}
		m[kv.Key] = kv.Value
	}
	return m, nil
}

func encodeBroker(b *Broker) *pb.Broker {
	m := &pb.Broker{
		Id:              int32(b.ID),
		Epoch:           b.Epoch,
		Incarnation:     b.Incarnation[:],
		Rack:            b.Rack,
		Fenced:          b.Fenced,
		Version:         b.Version,
		MinFeatureLevel: b.MinFeatureLevel,
		MaxFeatureLevel: b.MaxFeatureLevel,
		PeerAddress:     b.PeerAddress,
		Draining:        b.Draining,
		Removing:        b.Removing,
		Leaving:         b.Leaving,
		FencedIndex:     b.fencedIndex,
		Directories:     encodeIDs(b.Directories),
		Offline:         encodeIDs(b.Offline),
	}
	for _, l := range b.Listeners {
		m.Listeners = append(m.Listeners, &pb.Listener{Name: l.Name, Host: l.Host, Port: l.Port, Protocol: l.Protocol})
	}
	return m
}

func decodeBroker(m *pb.Broker) (*Broker, error) {
	if m == nil {
		return nil, errors.New("no broker")
	}
	if m.Id < 0 {
		return nil, fmt.Errorf("broker id %d", m.Id)
	}
	incarnation, err := bytes16(m.Incarnation, "incarnation")
	if err != nil {
		return nil, err
	}
	b := &Broker{
		ID:              BrokerID(m.Id),
		Epoch:           m.Epoch,
		Incarnation:     incarnation,
		Rack:            m.Rack,
		Fenced:          m.Fenced,
		Version:         m.Version,
		MinFeatureLevel: m.MinFeatureLevel,
		MaxFeatureLevel: m.MaxFeatureLevel,
		PeerAddress:     m.PeerAddress,
		Draining:        m.Draining,
		Removing:        m.Removing,
		Leaving:         m.Leaving,
		fencedIndex:     m.FencedIndex,
	}
	if b.Directories, err = decodeIDs(m.Directories); err != nil {
		return nil, err
	}
	if b.Offline, err = decodeIDs(m.Offline); err != nil {
		return nil, err
	}
	for _, l := range m.Listeners {
		b.Listeners = append(b.Listeners, Listener{Name: l.Name, Host: l.Host, Port: l.Port, Protocol: l.Protocol})
	}
	return b, nil
}
