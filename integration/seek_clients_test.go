package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
)

var (
	seekRounds = flag.Int("seek.rounds", 1, "how often each group of running clients is put elsewhere")
	seekWith   = flag.String("seek.with", "", "regular expression of the clients that do it, as subtests are called; all")
)

// seekClient is a client library in a setting that changes what it does when it is put out of its group.
type seekClient struct {
	library, protocol, assignor string
	// commit is sync, async or auto: by which request it learns that it is no member.
	commit string
	// steps has the group put out and the offsets set in two steps, by the Kafka protocol alone, as where no admin API is reached.
	steps bool
}

func (c seekClient) String() string {
	name := strings.Join([]string{c.library, c.protocol, c.assignor, c.commit}, "-")
	if c.steps {
		name += "-steps"
	}
	return name
}

// seekClients are those of -seek.with, by hand; else the few that run in each run of the tests.
func seekClients() (out []seekClient) {
	for _, library := range []string{"java", "confluent-go"} {
		for _, assignor := range []string{"cooperative-sticky", "range", "-"} {
			protocol := "classic"
			if assignor == "-" {
				protocol = "consumer"
			}
			for _, commit := range []string{"sync", "async", "auto"} {
				for _, steps := range []bool{false, true} {
					often := !steps && (commit == "sync" && assignor != "range" || commit == "auto" && assignor == "range") ||
						steps && library == "java" && protocol == "consumer" && commit == "auto" // its fenced members commit where they are
					if *seekWith == "" && !often {
						continue
					}
					c := seekClient{library, protocol, assignor, commit, steps}
					if ok, _ := regexp.MatchString(*seekWith, c.String()); ok {
						out = append(out, c)
					}
				}
			}
		}
	}
	return out
}

// TestSeekForceOfClients: group seek --force of a group whose members are Java's client and librdkafka, at work, in eager and
// cooperative groups and those of KIP-848: each partition is read from where it was put, whoever has it then, and the offsets of
// before are brought back by the command that is printed. Members that keep their partitions in a rebalance would go on from
// where they are.
func TestSeekForceOfClients(t *testing.T) {
	if testing.Short() {
		t.Skip("short: starts three brokers and programs in other languages")
	}
	c, err := cluster.Open(cluster.Config{
		Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers"),
		Set: []string{"group.initial.rebalance.delay.ms=0", "group.consumer.heartbeat.interval.ms=500", "group.consumer.min.heartbeat.interval.ms=500"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	starting, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	require.NoError(t, c.Start(starting))
	b := &broker{t: t, Addr: c.Nodes[0].Addr, HTTP: c.Nodes[0].HTTP}
	open := map[string]func(*testing.T, *broker) clientLibrary{"java": openJava, "confluent-go": openConfluentGo}
	clients := map[string][]seekClient{}
	for _, s := range seekClients() {
		clients[s.library] = append(clients[s.library], s)
	}
	for library, settings := range clients {
		t.Run(library, func(t *testing.T) { // alone skipped where a library can't be had
			t.Parallel()
			p := &sharedProgram{program: open[library](t, b).(*program)}
			for _, s := range settings {
				t.Run(s.String(), func(t *testing.T) {
					t.Parallel() // they mostly wait
					r := &seekRun{t: t, client: s, program: p, b: b, seeds: c.Seeds(), group: "seek-" + s.String()}
					r.run()
				})
			}
		})
	}
}

// sharedProgram is a program that several groups are in.
type sharedProgram struct {
	mu sync.Mutex
	*program
}

func (p *sharedProgram) do(ctx context.Context, fields ...any) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.program.do(ctx, fields...)
}

// seekRun is one group of a client.
type seekRun struct {
	t       *testing.T
	client  seekClient
	program *sharedProgram
	b       *broker
	seeds   []string
	group   string
}

const seekPartitions = 4

func (r *seekRun) run() {
	t := r.t
	seekRecords := 2500 + 1000**seekRounds // in each partition: more than is read in a run
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*seekRounds+2)*patience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.ProducerBatchMaxBytes(512), kgo.ProducerBatchCompression(kgo.NoCompression())) // clients read what they have fetched of one partition before they go on with another
	require.NoError(t, err)
	defer cl.Close()
	adm := kadm.NewClient(cl)
	_, err = adm.CreateTopic(ctx, seekPartitions, 3, nil, r.group)
	require.NoError(t, err)
	for p := range int32(seekPartitions) {
		for i := range seekRecords {
			cl.Produce(ctx, &kgo.Record{Topic: r.group, Partition: p, Value: []byte(strconv.Itoa(i))}, nil)
		}
	}
	require.NoError(t, cl.Flush(ctx))
	members := []string{r.group + "-a", r.group + "-b"}
	for _, m := range members {
		_, err := r.program.do(ctx, "member", m, r.group, r.client.protocol, r.client.assignor, r.group, r.client.commit)
		require.NoError(t, err)
	}
	committed := func() []int64 {
		out := make([]int64, seekPartitions)
		got, err := adm.FetchOffsets(ctx, r.group)
		require.NoError(t, err)
		for p := range out {
			out[p] = -1
			if o, ok := got.Lookup(r.group, int32(p)); ok && o.Err == nil {
				out[p] = o.At
			}
		}
		return out
	}
	at := committed()
	for slices.Min(at) < 1 { // both have joined, and read everything
		require.NoError(t, ctx.Err())
		at = committed()
		<-time.After(20 * time.Millisecond)
	}
	var undo string
	for round := range *seekRounds {
		to := make([]int64, seekPartitions)
		for p := range to {
			// Not where it comes by itself: it is ahead of there after the first round, and before that not nearly as far.
			to[p] = int64(seekRecords/2 + rand.IntN(seekRecords/8) - round*seekRecords/2 / *seekRounds)
		}
		undo = r.seek(ctx, r.file(to))
		r.awaitAll(ctx, members, to)
	}
	// What was committed before comes back.
	text, err := os.ReadFile(undo)
	require.NoError(t, err)
	var kept []seekOffset
	require.NoError(t, json.Unmarshal(text, &kept))
	require.Len(t, kept, seekPartitions)
	to := make([]int64, seekPartitions)
	for _, o := range kept {
		to[o.Partition] = o.Offset
	}
	r.seek(ctx, undo)
	r.awaitAll(ctx, members, to)
	for _, m := range members {
		_, err := r.program.do(ctx, "leave", m)
		require.NoError(t, err)
	}
}

// seekOffset is an offset as group export writes it.
type seekOffset struct {
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
	Offset    int64  `json:"offset"`
}

func (r *seekRun) file(to []int64) string {
	var offsets []seekOffset
	for p, at := range to {
		offsets = append(offsets, seekOffset{r.group, p, at})
	}
	text, err := json.Marshal(offsets)
	require.NoError(r.t, err)
	name := filepath.Join(r.t.TempDir(), "to.json")
	require.NoError(r.t, os.WriteFile(name, text, 0o600))
	return name
}

var undoLine = regexp.MustCompile(`undo: millrace group seek \S+ --to-file (\S+) --force`)

// seek carries out the command, and returns the file that it says brings back what was before.
func (r *seekRun) seek(ctx context.Context, file string) string {
	admin := r.b.HTTP
	if r.client.steps {
		admin = "127.0.0.1:1"
	}
	cmd := exec.CommandContext(ctx, millraceBinary(r.t), "group", "seek", r.group, "--to-file", file, "--force", "--yes", "-b", strings.Join(r.seeds, ","), "--admin", admin, "--timeout", "40s")
	cmd.Env = append(os.Environ(), "MILLRACE_CONFIG_DIR="+r.t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(r.t, cmd.Run(), "%s", &stderr)
	require.Equal(r.t, r.client.steps, strings.Contains(stderr.String(), "no admin API"), "%s", &stderr)
	found := undoLine.FindStringSubmatch(stderr.String())
	require.NotNil(r.t, found, "%s", &stderr)
	return found[1]
}

// awaitAll waits until some member has begun to read each partition where it was put.
func (r *seekRun) awaitAll(ctx context.Context, members []string, to []int64) {
	began, missing := time.Now(), map[string]bool{}
	for p, at := range to {
		missing[fmt.Sprintf("%d:%d", p, at)] = true
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var heard []string
	for len(missing) > 0 {
		for _, m := range members {
			all, err := r.program.do(ctx, "heard", m)
			require.NoError(r.t, err, "never read from %v; members began at %v", missing, heard)
			for jump := range strings.SplitSeq(all, ",") {
				if jump != "" {
					delete(missing, jump)
					heard = append(heard, m[len(m)-1:]+":"+jump)
				}
			}
		}
		select {
		case <-ctx.Done():
			told, _ := exec.Command(millraceBinary(r.t), "group", "describe", r.group, "-b", strings.Join(r.seeds, ",")).CombinedOutput()
			r.t.Fatalf("never read from %v; members began at %v\n%s", missing, heard, told)
		case <-time.After(20 * time.Millisecond):
		}
	}
	r.t.Logf("read from all new places after %v", time.Since(began).Round(time.Millisecond))
}
