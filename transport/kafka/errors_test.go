package kafka

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// Names and numbers are Kafka's, apart from its renaming of code 6.
func TestCodeNames(t *testing.T) {
	for code, name := range codeNames {
		if code == codeNone {
			continue
		}
		want := kerr.TypedErrorForCode(code)
		require.NotNil(t, want, name)
		if code == codeNotLeaderOrFollower {
			require.Equal(t, "NOT_LEADER_FOR_PARTITION", want.Message)
			continue
		}
		require.Equal(t, want.Message, name, "code %d", code)
	}
	for _, line := range errorTable {
		require.Contains(t, codeNames, line.code, "%v", line.err)
	}
}

// sentinels lists the exported error variables of a package as "package.Name".
func sentinels(t *testing.T, dir, name string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, dir)
	var found []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range f.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				for _, ident := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(ident.Name, "Err") && ident.IsExported() {
						found = append(found, name+"."+ident.Name)
					}
				}
			}
		}
	}
	return found
}

// Every exported sentinel below has a line in the table: an error without one
// would reach clients as UNKNOWN_SERVER_ERROR.
func TestEverySentinelIsMapped(t *testing.T) {
	source, err := os.ReadFile("errors.go")
	require.NoError(t, err)
	_, lines, ok := strings.Cut(string(source), "var errorTable")
	require.True(t, ok)
	var all []string
	for _, p := range [][2]string{{"log", "log"}, {"log/record", "record"}, {"metadata", "metadata"}, {"replication", "replication"}, {"group", "group"}, {"group/txn", "txn"}} {
		all = append(all, sentinels(t, p[0], p[1])...)
	}
	require.Greater(t, len(all), 40, "the parser found too little to be right")
	for _, name := range all {
		require.Contains(t, lines, "{"+name+", ", "%s has no line in errorTable", name)
	}
}

// Each line is reached by its own sentinel, wrapped as the packages wrap it.
func TestErrorTableOrder(t *testing.T) {
	for _, line := range errorTable {
		require.Equal(t, line.code, codeOf(fmt.Errorf("append to t-0: %w", line.err)), "%v is shadowed by an earlier line", line.err)
	}
	require.Equal(t, codeNone, codeOf(nil))
	require.Equal(t, codeUnknownServerError, codeOf(errors.New("what nobody foresaw")))
}

// I17: the codes that say "nothing was appended" stand only beside errors that
// promise it; what was appended and cut off is never 6.
func TestDefiniteCodes(t *testing.T) {
	definite := map[int16]bool{
		codeCorruptMessage: true, codeUnknownTopicOrPartition: true, codeMessageTooLarge: true, codeNotEnoughReplicas: true,
		codeTopicAuthorizationFailed: true, codeOutOfOrderSequence: true, codeInvalidProducerEpoch: true, codeInvalidTxnState: true,
		codeInvalidRecord: true, codeNotLeaderOrFollower: true,
	}
	for _, err := range []error{
		replication.ErrTimeout, replication.ErrLeadershipLost, replication.ErrDeleted, replication.ErrClosed,
		replication.ErrNotEnoughReplicasAfterAppend, replication.ErrStorage, log.ErrPoisoned, log.ErrClosed, metadata.ErrTimeout,
	} {
		require.False(t, definite[codeOf(err)], "%v is indefinite, %s is not", err, codeName(codeOf(err)))
	}
	for _, err := range []error{
		replication.ErrNotLeader, replication.ErrUnknownTopicOrPartition, replication.ErrNotEnoughReplicas, log.ErrOutOfOrderSequence,
		log.ErrInvalidProducerEpoch, record.ErrTooLarge, record.ErrCorrupt, record.ErrInvalidRecord,
	} {
		require.True(t, definite[codeOf(err)], "%v", err)
	}
}

// Trap 8: a Fetch partition carries only codes that Java's consumer knows there.
func TestFetchCodes(t *testing.T) {
	java := map[int16]bool{0: true, 1: true, 3: true, 6: true, 9: true, 29: true, 56: true, 74: true, 75: true, 78: true, 100: true, 103: true, -1: true}
	for _, line := range errorTable {
		require.True(t, java[fetchCode(line.err)], "%v becomes %d", line.err, fetchCode(line.err))
	}
	require.Equal(t, codeNotLeaderOrFollower, fetchCode(replication.ErrTimeout))
	require.Equal(t, codeOffsetOutOfRange, fetchCode(log.ErrOffsetOutOfRange))
}

// Messages go into strings whose length is 16 bits in old versions.
func TestMessagesAreBounded(t *testing.T) {
	require.Nil(t, errorMessage(nil))
	long := errorMessage(errors.New(strings.Repeat("ü", 40_000)))
	require.LessOrEqual(t, len(*long), maxMessage+3)
	require.Equal(t, "short", *message("short"))
}
