package group

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// I23: a client id may be as long as a string of the protocol; a member id made of it has to be one, too.
func TestMemberIDOfLongClientID(t *testing.T) {
	for _, name := range []string{strings.Repeat("c", 1<<15-1), strings.Repeat("é", (1<<15-1)/2)} {
		id := newMemberID(name)
		require.LessOrEqual(t, len(id), 1<<15-1)
		require.True(t, utf8.ValidString(id))
		require.NotEqual(t, id, newMemberID(name))
	}
}
