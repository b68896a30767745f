package log

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// TestForgottenFile: once a file was forgotten, a late reader does not open what stands under its name now: after a
// partition was deleted and its name given to another topic, that would be another topic's records (L21). What is open
// stays readable (L17).
func TestForgottenFile(t *testing.T) {
	m := vfs.NewMem(1)
	require.NoError(t, m.Mkdir("p"))
	write := func(content string) {
		f, err := m.Create("p/0.log")
		require.NoError(t, err)
		_, err = f.WriteAt([]byte(content), 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	write("mine")
	d := newDescriptors(m, 4)
	r := &fileRef{path: "p/0.log"}
	h, err := d.acquire(r)
	require.NoError(t, err)
	d.forget(r)
	require.NoError(t, m.Rename("p", "p-delete"))
	require.NoError(t, m.Mkdir("p"))
	write("alien")
	_, err = d.acquire(r)
	require.ErrorIs(t, err, fs.ErrNotExist)
	b := make([]byte, 4)
	_, err = h.file.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, "mine", string(b))
	d.release(h)
}
