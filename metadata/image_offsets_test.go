package metadata

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Two Images differ in offsets alone only if no other part of their states is another one. A new field of the state has to be
// compared too, or named here.
func TestDiffersInOffsets(t *testing.T) {
	own := map[string]bool{"offsets": true, "commitSequences": true, "offsetCount": true}
	derived := map[string]bool{"topicIDs": true, "collisions": true, "partitions": true, "coordinators": true, "producers": true, "active": true}
	tried := map[string]bool{}
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawState(t), drawState(t)
		im := &Image{version: 1, controller: 1, st: a}
		same := *a
		require.True(t, im.DiffersInOffsets(&Image{version: 2, controller: 1, st: &same}))
		require.False(t, im.DiffersInOffsets(&Image{version: 1, controller: 2, st: a}), "another controller")
		typ := reflect.TypeFor[state]()
		for i := range typ.NumField() {
			name := typ.Field(i).Name
			changed := *a
			to := reflect.ValueOf(&changed).Elem().Field(i)
			from := reflect.ValueOf(b).Elem().Field(i)
			to = reflect.NewAt(to.Type(), unsafe.Pointer(to.UnsafeAddr())).Elem()
			from = reflect.NewAt(from.Type(), unsafe.Pointer(from.UnsafeAddr())).Elem()
			if derived[name] || reflect.DeepEqual(to.Interface(), from.Interface()) {
				continue
			}
			if to.Kind() == reflect.Struct && to.FieldByName("root").Pointer() == from.FieldByName("root").Pointer() {
				continue // two empty trees, whose functions are never equal
			}
			to.Set(from)
			require.Equal(t, own[name], im.DiffersInOffsets(&Image{version: 2, controller: 1, st: &changed}), name)
			tried[name] = true
		}
	})
	for f := range reflect.TypeFor[state]().Fields() {
		require.True(t, tried[f.Name] || derived[f.Name], "%s was never different", f.Name)
	}
}
