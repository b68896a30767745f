package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
)

// kept is what a file of values holds: those of each set, by its number of brokers, in the order of the rows.
type kept map[string][]keptValue

// keptValue is one measured value, one of each round.
type keptValue struct {
	Row     string    `json:"row"`
	Variant string    `json:"variant"`
	Metric  string    `json:"metric"`
	Values  []float64 `json:"values"`
}

// readKept reads the file, which need not exist.
func readKept(path string) (kept, error) {
	k := kept{}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, fmt.Errorf("read the values of earlier rounds in %s: %w", path, err)
	}
	return k, nil
}

// load takes the values of earlier rounds.
func (r *results) load() error {
	if r.keep == "" {
		return nil
	}
	k, err := readKept(r.keep)
	if err != nil {
		return err
	}
	for _, value := range k[strconv.Itoa(r.brokers)] {
		v, err := variantNamed(value.Variant)
		if err != nil {
			return err
		}
		for _, x := range value.Values {
			r.add(value.Row, v, value.Metric, x)
		}
	}
	return nil
}

// save writes all values, those of earlier rounds too.
func (r *results) save() error {
	if r.keep == "" {
		return nil
	}
	k, err := readKept(r.keep)
	if err != nil {
		return err
	}
	var set []keptValue
	for _, of := range r.order {
		set = append(set, keptValue{of.row, variants[of.variant].name, of.metric, r.values[of]})
	}
	k[strconv.Itoa(r.brokers)] = set
	b, err := json.MarshalIndent(k, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(r.keep, append(b, '\n'), 0o644)
}

func variantNamed(name string) (variant, error) {
	for v, of := range variants {
		if of.name == name {
			return variant(v), nil
		}
	}
	return 0, fmt.Errorf("no variant %q", name)
}
