package kafka

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/transport"
)

// validate makes every string of a request one that can be kept, see [transport.ValidText]. Without that the metadata would
// refuse a change that has it, and a member with such a name or client id would keep its whole group from getting on.
//
// An error says that one is longer than the protocol allows, which the flexible versions can carry: answers of others name
// groups and members with it to every client, in 16 bits.
//
// Fetch is left out: it names topics only, and one of such a name does not exist. So do those of Produce, which see to the
// transactional id themselves.
func validate(msg kmsg.Request) error {
	short := true
	switch r := msg.(type) {
	case *kmsg.FetchRequest:
	case *kmsg.OffsetCommitRequest: // the two that come all the time
		short = validText(&r.Group) && validText(&r.MemberID) && validText(r.InstanceID)
		for i := range r.Topics {
			short = validText(&r.Topics[i].Topic) && short
			for j := range r.Topics[i].Partitions {
				short = validText(r.Topics[i].Partitions[j].Metadata) && short
			}
		}
	case *kmsg.HeartbeatRequest:
		short = validText(&r.Group) && validText(&r.MemberID) && validText(r.InstanceID)
	default:
		v := reflect.ValueOf(msg).Elem()
		short = textsOf(v.Type()).validate(v)
	}
	if !short {
		return errLongText
	}
	return nil
}

// maxText is the longest string of the protocol, in bytes.
const maxText = 1<<15 - 1

var errLongText = fmt.Errorf("a string has more than %d bytes", maxText)

// validText makes *s valid, unless it is so or nil. It reports false if it is too long.
func validText(s *string) bool {
	if s == nil {
		return true
	}
	if valid := transport.ValidText(*s); valid != *s {
		*s = valid
	}
	return len(*s) <= maxText
}

// texts says where a type of a message has strings. The messages have no type that contains itself.
type texts struct {
	kind   reflect.Kind // String, or Struct, Slice, Pointer of some
	fields []textField  // of a Struct
	elem   *texts       // of a Slice or Pointer
}

type textField struct {
	index int
	texts *texts
}

var knownTexts sync.Map // reflect.Type → *texts

// textsOf returns nil for a type without strings.
func textsOf(t reflect.Type) *texts {
	if known, ok := knownTexts.Load(t); ok {
		return known.(*texts)
	}
	var x *texts
	switch t.Kind() {
	case reflect.String:
		x = &texts{kind: reflect.String}
	case reflect.Slice, reflect.Pointer:
		if elem := textsOf(t.Elem()); elem != nil {
			x = &texts{kind: t.Kind(), elem: elem}
		}
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && f.Type != reflect.TypeFor[kmsg.Tags]() {
				if of := textsOf(f.Type); of != nil {
					if x == nil {
						x = &texts{kind: reflect.Struct}
					}
					x.fields = append(x.fields, textField{i, of})
				}
			}
		}
	}
	knownTexts.Store(t, x)
	return x
}

func (x *texts) validate(v reflect.Value) (short bool) {
	short = true
	if x == nil {
		return short
	}
	switch x.kind {
	case reflect.String:
		if s := v.String(); s != "" {
			valid := transport.ValidText(s)
			if valid != s {
				v.SetString(valid)
			}
			short = len(valid) <= maxText
		}
	case reflect.Pointer:
		if !v.IsNil() {
			short = x.elem.validate(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			short = x.elem.validate(v.Index(i)) && short
		}
	case reflect.Struct:
		for _, f := range x.fields {
			short = f.texts.validate(v.Field(f.index)) && short
		}
	}
	return short
}
