package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What a broker of a dev cluster is doing.
const (
	devStarting = "starting"
	devRunning  = "running"
	devStopping = "stopping"
	devStopped  = "stopped" // asked for
	devKilled   = "killed"  // by dev kill
	devExited   = "exited"  // by itself
)

// devBroker is one broker of a dev cluster.
type devBroker struct {
	ID int `json:"id" doc:"broker id"`
	processID
	State   string    `json:"state" doc:"starting, running, stopping, stopped, killed (by dev kill), exited (by itself)"`
	Exit    string    `json:"exit" doc:"how its process ended; empty while it runs"`
	Since   time.Time `json:"since" doc:"since when it is in that state"`
	Clients string    `json:"clients" doc:"address for clients"`
	Peer    string    `json:"peer" doc:"address for other brokers"`
	Gossip  string    `json:"gossip" doc:"address of gossip, TCP and UDP"`
	HTTP    string    `json:"http" doc:"address of health, metrics and admin API"`
	Data    string    `json:"data" doc:"directory of its data"`
	Log     string    `json:"log" doc:"file with its log lines; empty for a broker inside the dev process"`
}

// devState is what a dev cluster writes down of itself, for the other dev commands. Only its supervisor writes it.
type devState struct {
	Port       int         `json:"port" doc:"client port of the first broker: names the cluster"`
	Phase      string      `json:"phase" doc:"starting, ready, stopped"`
	Supervisor processID   `json:"supervisor" doc:"the dev process"`
	Control    string      `json:"control" doc:"where the dev process takes orders"`
	Token      string      `json:"token,omitempty" doc:"proves the right to give orders"`
	InProcess  bool        `json:"in_process" doc:"true when the only broker is inside the dev process"`
	Dir        string      `json:"dir" doc:"directory of the cluster's data"`
	Temporary  bool        `json:"temporary" doc:"true when the data goes with the cluster"`
	Began      time.Time   `json:"began" doc:"when it was started"`
	Took       string      `json:"took" doc:"how long it took until all brokers were ready"`
	Profile    string      `json:"profile" doc:"the profile that it selected; empty when none"`
	Brokers    []devBroker `json:"brokers" doc:"each broker"`
}

// devStates is the directory with the states of all dev clusters of this user, one file each, named by the port.
type devStates struct{ dir string }

func openDevStates() (*devStates, error) {
	p, err := openProfiles()
	if err != nil {
		return nil, err
	}
	return &devStates{filepath.Join(p.dir, "dev")}, nil
}

func (d *devStates) path(port int) string {
	return filepath.Join(d.dir, fmt.Sprintf("%d.json", port))
}

// write replaces the state of a cluster. The file has mode 0600: it holds the token.
func (d *devStates) write(s *devState) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the state of the dev cluster: %w", err)
	}
	return writePrivate(d.path(s.Port), append(b, '\n'))
}

func (d *devStates) remove(port int) error {
	if err := os.Remove(d.path(port)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return profileFailure("remove the state of the dev cluster", err)
	}
	return nil
}

// read returns the state of the cluster on a port, nil when there is none.
func (d *devStates) read(port int) (*devState, error) {
	b, err := os.ReadFile(d.path(port))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, profileFailure("read the state of the dev cluster", err)
	}
	var s devState
	if err := json.Unmarshal(b, &s); err != nil || s.Port != port {
		return nil, &failure{code: exitFailed, what: "the state of the dev cluster on port " + fmt.Sprint(port) + " cannot be read", why: "the file " + d.path(port) + " is damaged", fix: "rm " + d.path(port) + "   its brokers end by themselves when their dev process has ended", cause: err}
	}
	return &s, nil
}

// all returns the states by port. Files that cannot be read are left out.
func (d *devStates) all() ([]*devState, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, profileFailure("list the dev clusters", err)
	}
	var states []*devState
	for _, e := range entries {
		var port int
		if name, ok := strings.CutSuffix(e.Name(), ".json"); !ok || e.IsDir() {
			continue
		} else if _, err := fmt.Sscanf(name, "%d", &port); err != nil {
			continue
		}
		if s, err := d.read(port); err == nil && s != nil {
			states = append(states, s)
		}
	}
	slices.SortFunc(states, func(a, b *devState) int { return a.Port - b.Port })
	return states, nil
}

// running says whether the cluster's dev process is there.
func (s *devState) running() bool { return s.Supervisor.alive() }

// broker returns the broker of an id, nil when there is none.
func (s *devState) broker(id int) *devBroker {
	for i := range s.Brokers {
		if s.Brokers[i].ID == id {
			return &s.Brokers[i]
		}
	}
	return nil
}

// clients are the bootstrap addresses.
func (s *devState) clients() string {
	var out []string
	for _, b := range s.Brokers {
		out = append(out, b.Clients)
	}
	return strings.Join(out, ",")
}

// admins are the addresses of the admin API.
func (s *devState) admins() string {
	var out []string
	for _, b := range s.Brokers {
		if b.HTTP != "" {
			out = append(out, b.HTTP)
		}
	}
	return strings.Join(out, ",")
}

// sweep forgets clusters whose dev process has ended without tidying up, and removes their data if it was temporary.
// Brokers of such a cluster end by themselves; those that have not yet are ended here, by their recorded identity.
func (d *devStates) sweep() error {
	states, err := d.all()
	if err != nil {
		return err
	}
	for _, s := range states {
		if s.running() || s.Phase == devStopped {
			continue
		}
		for _, b := range s.Brokers {
			if b.PID != s.Supervisor.PID && b.kill() {
				b.waitGone(5 * time.Second)
			}
		}
		if s.Profile != "" {
			if err := releaseDevProfile(s.Port); err != nil {
				return err
			}
		}
		if s.Temporary {
			if err := removeDevDir(s.Dir); err != nil {
				return err
			}
			if s.InProcess && strings.HasPrefix(filepath.Base(s.Dir), "millrace-dev-") {
				if err := os.RemoveAll(s.Dir); err != nil {
					return profileFailure("remove "+s.Dir, err)
				}
			}
		}
		if !s.Temporary && !s.InProcess {
			s.Phase, s.Control, s.Token = devStopped, "", ""
			for i := range s.Brokers {
				s.Brokers[i].State, s.Brokers[i].processID = devStopped, processID{}
			}
			if err := d.write(s); err != nil {
				return err
			}
			continue
		}
		if err := d.remove(s.Port); err != nil {
			return err
		}
	}
	return nil
}
