package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/log/vfs"
)

// formationName is the file in the data directory that keeps what this broker has granted. It stays after the cluster is
// formed, so that a broker that was away can still ask what became of the proposal.
const formationName = "formation.json"

// formationFile is its content; version guards against an older program that would read a grant as none.
type formationFile struct {
	Version int `json:"version"`
	formationState
}

const formationVersion = 1

// readFormation returns the zero state when there is no file. A damaged one is an error: it may hold a grant.
func readFormation(dir string) (formationState, error) {
	path := filepath.Join(dir, formationName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return formationState{}, nil
	}
	if err != nil {
		return formationState{}, dataError("cannot read "+path, err.Error(), "give this user the right to read "+dir)
	}
	var f formationFile
	err = json.Unmarshal(b, &f)
	switch {
	case err != nil:
	case f.Version != formationVersion:
		err = fmt.Errorf("its version is %d, this program knows %d", f.Version, formationVersion)
	case f.Granted != nil && f.Granted.check() != nil:
		err = f.Granted.check()
	case f.Decided && f.Granted == nil:
		err = errors.New("it is decided on nothing")
	}
	if err != nil {
		return formationState{}, dataError(path+" is damaged", err.Error(),
			"if no cluster has been formed with this broker yet, empty "+dir+"; else restore the file from a backup")
	}
	return f.formationState, nil
}

// writeFormation replaces the file; once it returns, the new one is there after a power cut.
func writeFormation(dir string, s formationState) error {
	b, err := json.MarshalIndent(formationFile{Version: formationVersion, formationState: s}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", formationName, err)
	}
	return replaceFile(dir, formationName, append(b, '\n'))
}

// replaceFile writes a file so that it is there as a whole, or as it was, after a power cut: written and synced under
// another name, then renamed.
func replaceFile(dir, name string, content []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s in %s: %w", name, dir, err)
		}
	}()
	fsys, path := vfs.OS(), filepath.Join(dir, name)
	f, err := fsys.Create(path + ".tmp")
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(path+".tmp", path); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}
