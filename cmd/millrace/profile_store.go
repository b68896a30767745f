package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/magiconair/properties"
)

// Profiles are files of plain Kafka client properties, profiles/NAME.properties in the user's configuration directory;
// the file current there holds the name of the one that is used when nobody names another. Files have mode 0600 and
// directories 0700, since properties may one day hold passwords.
const (
	profilesDir    = "profiles"
	currentName    = "current"
	profileSuffix  = ".properties"
	profileDirEnv  = "MILLRACE_CONFIG_DIR"
	profileNameEnv = "MILLRACE_PROFILE"
)

var profileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// profileStore is the directory that holds the profiles. It need not exist.
type profileStore struct{ dir string }

// openProfiles finds the user's configuration directory: MILLRACE_CONFIG_DIR, else millrace in XDG_CONFIG_HOME or in
// the place that the system has for it.
func openProfiles() (*profileStore, error) {
	if dir := os.Getenv(profileDirEnv); dir != "" {
		return &profileStore{dir}, nil
	}
	base := os.Getenv("XDG_CONFIG_HOME")
	if base == "" || !filepath.IsAbs(base) {
		var err error
		if base, err = os.UserConfigDir(); err != nil {
			f := usageError("cannot find the directory of profiles", "set "+profileDirEnv+" to a directory of yours")
			f.why, f.cause = err.Error(), err
			return nil, f
		}
	}
	return &profileStore{filepath.Join(base, "millrace")}, nil
}

// checkProfileName refuses what cannot be a file's name everywhere, or could leave the directory.
func checkProfileName(name string) error {
	if profileName.MatchString(name) {
		return nil
	}
	f := usageError(fmt.Sprintf("%q cannot be a profile's name", name), "millrace profile create prod")
	f.why = "a name has 1 to 64 of the characters a-z A-Z 0-9 . _ - and begins with a letter or digit"
	return f
}

func (s *profileStore) path(name string) string {
	return filepath.Join(s.dir, profilesDir, name+profileSuffix)
}

// names returns the profiles in order of name.
func (s *profileStore) names() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, profilesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, profileFailure("list the profiles", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), profileSuffix); ok && !e.IsDir() && profileName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// current returns the name of the profile that is in use, "" when there is none. It may name one that is gone.
func (s *profileStore) current() (string, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, currentName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", profileFailure("read which profile is current", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// use makes a profile the current one; "" makes none current.
func (s *profileStore) use(name string) error {
	path := filepath.Join(s.dir, currentName)
	if name == "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return profileFailure("forget which profile is current", err)
		}
		return nil
	}
	return writePrivate(path, []byte(name+"\n"))
}

// exists says whether there is a profile of that name.
func (s *profileStore) exists(name string) bool {
	_, err := os.Stat(s.path(name))
	return err == nil
}

// read returns a profile's properties, unchecked.
func (s *profileStore) read(name string) (map[string]string, error) {
	if err := checkProfileName(name); err != nil {
		return nil, err
	}
	if !s.exists(name) {
		return nil, s.unknown(name)
	}
	return readClientProperties(s.path(name), "millrace profile edit "+name)
}

func (s *profileStore) unknown(name string) error {
	f := usageError("there is no profile "+name, "millrace profile list   shows the profiles")
	names, err := s.names()
	switch near := nearest(name, names); {
	case err != nil:
		return err
	case near != "":
		f.why, f.fix = "did you mean "+near+"?", "millrace profile use "+near
	case len(names) == 0:
		f.why, f.fix = "there are no profiles yet", "millrace profile create "+name+" -s bootstrap.servers=HOST:9092"
	default:
		f.why = "the profiles are " + strings.Join(names, ", ")
	}
	return f
}

// write stores the properties of a profile as a whole, or not at all.
func (s *profileStore) write(name string, values map[string]string) error {
	p := properties.NewProperties()
	p.DisableExpansion, p.WriteSeparator = true, "="
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if _, _, err := p.Set(k, values[k]); err != nil {
			return profileFailure("write profile "+name, err)
		}
	}
	var b bytes.Buffer
	if _, err := p.Write(&b, properties.UTF8); err != nil {
		return profileFailure("write profile "+name, err)
	}
	return writePrivate(s.path(name), b.Bytes())
}

// writePrivate writes a file that only its owner reads. A reader sees the old content or the new, nothing between.
func writePrivate(path string, content []byte) (err error) {
	defer func() {
		if err != nil {
			err = profileFailure("write "+path, err)
		}
	}()
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".tmp-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func profileFailure(doing string, err error) error {
	var f *failure
	if errors.As(err, &f) {
		return err
	}
	return &failure{code: exitFailed, what: "cannot " + doing, why: oneLine(err.Error()), fix: "give this user the right to write there, or set " + profileDirEnv + " to a directory of yours", cause: err}
}

// chosenProfile returns the properties of the profile that the commands use: the one that was named, else that of
// MILLRACE_PROFILE, else the current one; nil when there is none.
func chosenProfile(named string) (name string, values map[string]string, err error) {
	name = named
	if name == "" {
		name = os.Getenv(profileNameEnv)
	}
	s, err := openProfiles()
	if err != nil {
		if name == "" {
			return "", nil, nil // a process without a home has no profiles, and needs none
		}
		return "", nil, err
	}
	if name == "" {
		if name, err = s.current(); err != nil || name == "" {
			return "", nil, err
		}
	}
	values, err = s.read(name)
	return name, values, err
}
