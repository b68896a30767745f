package metadata

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// killDir tells the test binary, run again as a child, where to work until it is killed.
const killDir = "METADATA_TEST_KILL_DIR"

// TestKillChild is not a test but the child of TestKilledInTheMiddle: it allocates ids, creates and deletes topics, and
// prints what was acknowledged, until it is killed.
func TestKillChild(t *testing.T) {
	dir := os.Getenv(killDir)
	if dir == "" {
		t.Skip("only as a child of TestKilledInTheMiddle")
	}
	cfg := testConfig(t, dir)
	cfg.Rand = nil // other ids in each life
	s, err := Open(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Ready(testContext(t)))
	round := s.newID()
	_, err = s.RegisterBroker(testContext(t), Registration{ID: 1, Incarnation: round, Directories: []DirectoryID{{1}}})
	require.NoError(t, err)
	for worker := range 3 {
		go func() {
			for i := 0; ; i++ {
				first, count, err := s.AllocateProducerIDs(context.Background())
				if err == nil {
					fmt.Printf("ids %d %d\n", first, count)
				}
				name := fmt.Sprintf("%x-%d-%d", round[:4], worker, i)
				if s.CreateTopics(context.Background(), []NewTopic{newTopic(name, 2)}, false)[0].Err == nil {
					fmt.Printf("created %s -\n", name)
				}
				if i%3 != 0 {
					continue
				}
				fmt.Printf("deleting %s -\n", name)
				if s.DeleteTopics(context.Background(), []TopicRef{{Name: name}})[0].Err == nil {
					fmt.Printf("deleted %s -\n", name)
				}
			}
		}()
	}
	select {} // until killed
}

// P5, M8: a process that is killed again and again in the middle of its writes keeps everything it acknowledged, and
// gives no producer id out twice.
func TestKilledInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	ids := map[int64]bool{}
	topics := map[string]string{} // the last word about each: created, deleting (outcome unknown), deleted
	for round := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKillChild$")
		cmd.Env = append(os.Environ(), killDir+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := 0
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			var first int64
			var count int
			if n, _ := fmt.Sscanf(scanner.Text(), "ids %d %d", &first, &count); n == 2 {
				require.Zero(t, first%producerIDBlock)
				require.False(t, ids[first], "block %d twice", first)
				ids[first] = true
			} else if f := strings.Fields(scanner.Text()); len(f) == 3 && f[2] == "-" {
				topics[f[1]] = f[0]
			} else {
				continue
			}
			if lines++; lines == 30+17*round {
				require.NoError(t, cmd.Process.Kill())
			}
		}
		require.Error(t, cmd.Wait(), "killed")
		require.GreaterOrEqual(t, lines, 30)

		s := openStore(t, testConfig(t, dir))
		for name, word := range topics {
			switch topic := s.Image().Topic(name); word {
			case "created":
				require.NotNil(t, topic, "topic %s was acknowledged", name)
			case "deleted":
				require.Nil(t, topic, "topic %s was deleted", name)
			}
		}
		require.NoError(t, s.Close())
	}
}
