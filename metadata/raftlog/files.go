package raftlog

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// files is the folder of the segments. A name that was created or removed is durable after syncNames only; of what was
// written to a file, any of its sectors may be lost until sync returns.
type files interface {
	// create makes an empty file, in place of one that has the name.
	create(name string) (file, error)
	open(name string) (file, error)
	remove(name string) error
	// names lists them in any order, none if there is no folder.
	names() ([]string, error)
	syncNames() error
}

// file is one segment. writeAt writes everything or returns an error.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	size() (int64, error)
	sync() error
}

// folder is files on disk.
type folder string

type diskFile struct{ *os.File }

func (d folder) create(name string) (file, error) {
	f, err := os.OpenFile(filepath.Join(string(d), name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	return diskFile{f}, err
}

func (d folder) open(name string) (file, error) {
	f, err := os.OpenFile(filepath.Join(string(d), name), os.O_RDWR, 0)
	return diskFile{f}, err
}

func (d folder) remove(name string) error { return os.Remove(filepath.Join(string(d), name)) }

func (d folder) names() (out []string, err error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			out = append(out, e.Name())
		}
	}
	return out, err
}

func (d folder) syncNames() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (f diskFile) size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
