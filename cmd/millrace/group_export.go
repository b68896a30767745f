package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/urfave/cli/v2"
)

// groupOffset is an offset as export writes it and seek --to-file reads it.
type groupOffset struct {
	Topic       string `json:"topic" doc:"name"`
	Partition   int32  `json:"partition" doc:"number"`
	Offset      *int64 `json:"offset" doc:"next offset to read; null for none, which seek deletes"`
	LeaderEpoch *int32 `json:"leader_epoch" doc:"of the last record read; null when it is not known"`
	Metadata    string `json:"metadata" doc:"what the client stored with the offset"`
}

func groupExportCommand() *cli.Command {
	return &cli.Command{
		Name:        "export",
		Usage:       "print the offsets of a group, for seek --to-file",
		ArgsUsage:   "NAME",
		Description: "The table has what is needed to come back to these offsets; --format json keeps leader epochs and clients' texts too.",
		Action:      runGroupExport,
	}
}

func runGroupExport(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]groupOffset{}) {
		return nil
	}
	name, err := oneGroup(c)
	if err != nil {
		return err
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	fetched, err := conn.adm.FetchOffsets(ctx, name)
	if err != nil {
		return conn.fail("read the offsets of group "+name, err)
	}
	offsets := exportedOffsets(fetched)
	if len(offsets) == 0 {
		return &failure{code: exitFailed, what: "group " + name + " has no offsets", why: "it does not exist, has committed none, or they have expired", fix: "millrace group list   shows the groups"}
	}
	r := result{value: offsets, cols: columns("TOPIC", "PARTITION#", "OFFSET#")}
	for _, o := range offsets {
		r.rows = append(r.rows, []any{o.Topic, o.Partition, offsetCell(o.Offset)})
	}
	return e.emit(r)
}

func exportedOffsets(fetched kadm.OffsetResponses) []groupOffset {
	var out []groupOffset
	for _, o := range fetched.Sorted() {
		if o.Err != nil || o.At < 0 {
			continue
		}
		g := groupOffset{Topic: o.Topic, Partition: o.Partition, Offset: &o.At, Metadata: o.Metadata}
		if o.LeaderEpoch >= 0 {
			g.LeaderEpoch = &o.LeaderEpoch
		}
		out = append(out, g)
	}
	return out
}

// readOffsets reads a file that export or seek wrote: its table, or its JSON. An offset of "-" is none.
func readOffsets(file string) ([]groupOffset, error) {
	bad := func(why string, cause error) error {
		f := usageError("cannot read the offsets in "+file, "millrace group export NAME > "+file+"   writes such a file")
		f.why, f.cause = why, cause
		return f
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, bad(oneLine(err.Error()), err)
	}
	var out []groupOffset
	if text := bytes.TrimSpace(content); len(text) > 0 && text[0] == '[' {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&out); err != nil {
			return nil, bad(oneLine(err.Error()), err)
		}
	} else {
		lines := bufio.NewScanner(bytes.NewReader(content))
		for n := 1; lines.Scan(); n++ {
			words := strings.Fields(lines.Text())
			if len(words) == 0 || strings.HasPrefix(words[0], "#") || words[0] == "TOPIC" {
				continue
			}
			if len(words) != 3 {
				return nil, bad(fmt.Sprintf("line %d has %d words instead of TOPIC PARTITION OFFSET", n, len(words)), nil)
			}
			p, err := strconv.ParseInt(words[1], 10, 32)
			if err != nil {
				return nil, bad(fmt.Sprintf("line %d: %q is no partition", n, words[1]), err)
			}
			o := groupOffset{Topic: words[0], Partition: int32(p)}
			if words[2] != "-" {
				at, err := strconv.ParseInt(words[2], 10, 64)
				if err != nil {
					return nil, bad(fmt.Sprintf("line %d: %q is no offset", n, words[2]), err)
				}
				o.Offset = &at
			}
			out = append(out, o)
		}
		if err := lines.Err(); err != nil {
			return nil, bad(oneLine(err.Error()), err)
		}
	}
	seen := map[topicPartition]bool{}
	for _, o := range out {
		at := topicPartition{o.Topic, o.Partition}
		if o.Topic == "" || o.Partition < 0 || o.Offset != nil && *o.Offset < 0 || seen[at] {
			return nil, bad(fmt.Sprintf("%s-%d: a topic, partition or offset that cannot be, or one that is named twice", o.Topic, o.Partition), nil)
		}
		seen[at] = true
	}
	if len(out) == 0 {
		return nil, bad("it names no partition", nil)
	}
	return out, nil
}
