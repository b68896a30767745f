package record

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files in testdata are batches as clients that don't run in this test
// wrote them: the Java library 4.4.0 (through its own record builder; zstd-22
// announces the large window of that level) and librdkafka 2.0.2 (through kcat
// -z). Both libraries have read back what this package writes, in all codecs
// and levels, when the files were made.
func TestRecordedClients(t *testing.T) {
	java := corpus()
	java[2].headers = append(java[2].headers, RecordHeader{Key: []byte("d")})
	var librdkafka []plain
	for i := range 20 {
		librdkafka = append(librdkafka, plain{
			key:   fmt.Appendf(nil, "key %d", i),
			value: []byte(strings.Repeat(fmt.Sprintf("value %d ", i), 40)),
		})
	}
	files, err := filepath.Glob("testdata/*.batch")
	require.NoError(t, err)
	require.Len(t, files, 10)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".batch")
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			parts := strings.Split(name, "-")
			codec, err := ParseCodec(parts[2])
			require.NoError(t, err)
			rules := accepting()
			rules.CheckRecords = true
			before := clone(raw)
			b, err := Validate(raw, rules)
			require.NoError(t, err)
			require.Equal(t, before, b, "nothing to correct in what these clients send")
			require.Equal(t, codec, b.Codec())
			got := collect(t, b)
			if parts[0] == "java" {
				require.Equal(t, java, got)
				require.EqualValues(t, 4242, b.ProducerID())
				require.EqualValues(t, 7, b.BaseSequence())
				require.EqualValues(t, 50, b.LastSequence())
				return
			}
			require.Len(t, got, len(librdkafka))
			for i, want := range librdkafka {
				require.Equal(t, want.key, got[i].key)
				require.Equal(t, want.value, got[i].value)
				require.EqualValues(t, i, got[i].offset)
			}
		})
	}
}
