//go:build !linux

package vfs

// Sync uses the library's own call, which on darwin asks the drive to empty its cache too (F_FULLFSYNC).
func (f *osFile) Sync() error { return classify(f.File.Sync()) }

// DropCache does nothing where the system has no such call.
func (f *osFile) DropCache() error { return nil }

func (f *osFile) WritevAt(bufs [][]byte, off int64) (int, error) {
	total := 0
	for _, b := range bufs {
		n, err := f.WriteAt(b, off+int64(total))
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (osFS) SyncAll(dir string) error { return syncTree(dir) }
