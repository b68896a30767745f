package broker

import (
	"strconv"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
)

// cachedSettings are a part's settings as the broker's configuration has them now. Parts ask for them with every request, so
// that they are read once in a while.
type cachedSettings[T any] struct {
	effective func() map[string]string
	read      func(values settingValues) T

	mu struct {
		sync.Mutex
		at  time.Time
		now T
	}
}

// settingsAge is how old the settings may be that a request gets.
const settingsAge = time.Second

func (s *cachedSettings[T]) get() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.at.IsZero() || time.Since(s.mu.at) > settingsAge {
		s.mu.now, s.mu.at = s.read(settingValues(s.effective())), time.Now()
	}
	return s.mu.now
}

// settingValues are values by key that have been checked; a key without a value has its default.
type settingValues map[string]string

func (v settingValues) text(name string) string {
	if value, ok := v[name]; ok {
		return value
	}
	key, ok := metadata.LookupConfig(metadata.ConfigBroker, name)
	if !ok {
		panic("broker: config " + name + " is not in the configuration table")
	}
	return key.Default
}

func (v settingValues) number(name string) int64 {
	n, err := strconv.ParseInt(v.text(name), 10, 64)
	if err != nil {
		panic("broker: config " + name + " is not a number after its check: " + err.Error())
	}
	return n
}

func (v settingValues) millis(name string) time.Duration {
	return time.Duration(v.number(name)) * time.Millisecond
}
