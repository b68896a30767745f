package main

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// devProfileName is the profile that a dev cluster selects while it runs, so that every other command finds it.
const devProfileName = "dev"

// Properties that only the profile of a dev cluster has: whose it is, and what was selected before.
const (
	devPortProperty     = "millrace.dev.port"
	devPreviousProperty = "millrace.dev.previous"
)

// devProfile selects the profile of one dev cluster and gives back what was selected before. The zero value selects
// none, and its methods do nothing.
type devProfile struct {
	wanted   bool
	mine     bool
	previous string
}

// errDevProfileTaken says that the name is somebody else's.
var errDevProfileTaken = errors.New("there is a profile dev that is not this cluster's")

// take writes the profile and selects it, unless the name is that of a profile which the user made, or of another dev
// cluster that runs.
func (p *devProfile) take(st devState) error {
	if p == nil || !p.wanted {
		return nil
	}
	s, err := openProfiles()
	if err != nil {
		return err
	}
	current, err := s.current()
	if err != nil {
		return err
	}
	p.previous = current
	if s.exists(devProfileName) {
		values, err := s.read(devProfileName)
		if err != nil {
			return err
		}
		owner, ok := values[devPortProperty]
		if !ok {
			return errDevProfileTaken
		}
		if port, err := strconv.Atoi(owner); err != nil || port != st.Port {
			d, err := openDevStates()
			if err != nil {
				return err
			}
			if other, err := d.read(port); err != nil || other != nil && other.running() {
				return errors.Join(errDevProfileTaken, err)
			}
		}
		if current == devProfileName { // left behind
			p.previous = values[devPreviousProperty]
		}
	}
	if err := writeDevProfile(s, st, p.previous); err != nil {
		return err
	}
	if err := s.use(devProfileName); err != nil {
		return err
	}
	p.mine = true
	return nil
}

func writeDevProfile(s *profileStore, st devState, previous string) error {
	values := map[string]string{"bootstrap.servers": st.clients(), adminProperty: st.admins(), devPortProperty: strconv.Itoa(st.Port)}
	if previous != "" {
		values[devPreviousProperty] = previous
	}
	return s.write(devProfileName, values)
}

// taken is the name of the profile that was selected, "" when none was.
func (p *devProfile) taken() string {
	if p == nil || !p.mine {
		return ""
	}
	return devProfileName
}

// update writes the profile again after the cluster has got another broker.
func (p *devProfile) update(st devState) error {
	if p == nil || !p.mine {
		return nil
	}
	s, err := openProfiles()
	if err != nil {
		return err
	}
	return writeDevProfile(s, st, p.previous)
}

// giveBack removes the profile and selects what was selected before, unless somebody has selected another meanwhile.
func (p *devProfile) giveBack() error {
	if p == nil || !p.mine {
		return nil
	}
	p.mine = false
	s, err := openProfiles()
	if err != nil {
		return err
	}
	return s.dropDev(p.previous)
}

// dropDev removes the profile dev and selects another in its place if it was the current one.
func (s *profileStore) dropDev(previous string) error {
	current, err := s.current()
	if err != nil {
		return err
	}
	if err := os.Remove(s.path(devProfileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return profileFailure("remove the profile "+devProfileName, err)
	}
	if current != devProfileName {
		return nil
	}
	if previous != "" && !s.exists(previous) {
		previous = ""
	}
	return s.use(previous)
}

// releaseDevProfile gives back what a dev cluster on that port selected and could not give back itself.
func releaseDevProfile(port int) error {
	s, err := openProfiles()
	if err != nil || !s.exists(devProfileName) {
		return err
	}
	values, err := s.read(devProfileName)
	if err != nil || values[devPortProperty] != strconv.Itoa(port) {
		return nil // somebody else's, or one that its owner has to mend
	}
	return s.dropDev(values[devPreviousProperty])
}
