package main

import (
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

func clusterQuorumCommand() *cli.Command {
	return &cli.Command{
		Name:  "quorum",
		Usage: "look at the Raft quorum behind the metadata, and change who votes",
		Subcommands: []*cli.Command{
			{Name: "status", Usage: "show leader, term and how far each voter is", Action: runQuorumStatus},
			{Name: "peers", Usage: "list its servers with their addresses", Flags: []cli.Flag{adminFlag()}, Action: runQuorumPeers},
			{
				Name: "add-voter", Usage: "let a broker vote", ArgsUsage: "ID", Flags: []cli.Flag{adminFlag()},
				Description: "Voters are chosen by themselves up to millrace.quorum.size; this is for more, or for another choice.",
				Action:      runQuorumAddVoter,
			},
			{
				Name: "remove-voter", Usage: "take a broker out of the quorum", ArgsUsage: "ID", Flags: []cli.Flag{adminFlag(), dryRunFlag()},
				Description: "For a server of a broker that is removed, and is to leave the quorum too: the controller does it by itself, this waits for it. A broker of the cluster\n" +
					"leaves both by   millrace cluster brokers decommission ID. Refused when the voters that are left would be no majority.",
				Action: runQuorumRemoveVoter,
			},
			{Name: "transfer", Usage: "make another voter the leader, and so the controller", ArgsUsage: "ID", Flags: []cli.Flag{adminFlag()}, Action: runQuorumTransfer},
		},
	}
}

// quorumState is the quorum as the Kafka protocol tells it (DescribeQuorum).
type quorumState struct {
	Leader        int32         `json:"leader" doc:"broker id; -1 is none"`
	Term          int32         `json:"term" doc:"Raft term, in Kafka's words the leader epoch"`
	HighWatermark int64         `json:"high_watermark" doc:"first entry that is not committed"`
	Voters        []quorumVoter `json:"voters" doc:"who votes"`
	Observers     []quorumVoter `json:"observers" doc:"who follows without a vote"`
}

type quorumVoter struct {
	Broker    int32  `json:"broker" doc:"broker id"`
	EndOffset int64  `json:"log_end_offset" doc:"up to where its log is known to reach; -1 is unknown"`
	Lag       int64  `json:"lag" doc:"entries behind the leader; -1 is unknown"`
	LastFetch *int64 `json:"last_fetch_ms" doc:"when the leader last heard of it, in milliseconds since 1970; null is unknown"`
	CaughtUp  *int64 `json:"last_caught_up_ms" doc:"when it last had everything; null is unknown"`
	Status    string `json:"status" doc:"leader, voter or observer"`
}

func runQuorumStatus(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(quorumState{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, conn.Client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return conn.fail("ask for the quorum", err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return &failure{code: exitFailed, what: "cannot ask for the quorum", why: "the answer names no __cluster_metadata", fix: "is this a cluster with a Raft quorum? millrace cluster info"}
	}
	p := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return itemFailure("ask for the quorum", err, p.ErrorMessage)
	}
	q := quorumState{Leader: p.LeaderID, Term: p.LeaderEpoch, HighWatermark: p.HighWatermark, Voters: []quorumVoter{}, Observers: []quorumVoter{}}
	end := int64(-1)
	for _, v := range p.CurrentVoters {
		if v.ReplicaID == p.LeaderID {
			end = v.LogEndOffset
		}
	}
	server := func(status string, v *kmsg.DescribeQuorumResponseTopicPartitionReplicaState) quorumVoter {
		out := quorumVoter{Broker: v.ReplicaID, EndOffset: v.LogEndOffset, Lag: -1, Status: status}
		if v.LogEndOffset >= 0 && end >= 0 {
			out.Lag = max(end-v.LogEndOffset, 0)
		}
		if v.LastFetchTimestamp > 0 {
			out.LastFetch = &v.LastFetchTimestamp
		}
		if v.LastCaughtUpTimestamp > 0 {
			out.CaughtUp = &v.LastCaughtUpTimestamp
		}
		if v.ReplicaID == p.LeaderID {
			out.Status = "leader"
		}
		return out
	}
	for i := range p.CurrentVoters {
		q.Voters = append(q.Voters, server("voter", &p.CurrentVoters[i]))
	}
	for i := range p.Observers {
		q.Observers = append(q.Observers, server("observer", &p.Observers[i]))
	}
	return e.emit(result{value: q, text: func(w io.Writer, wide bool) {
		writeTable(w, columns("LEADER#", "TERM#", "HIGH-WATERMARK#", "VOTERS#", "OBSERVERS#"), [][]any{{unknown(int64(q.Leader)), q.Term, q.HighWatermark, len(q.Voters), len(q.Observers)}}, wide, e.stdoutWidth())
		fmt.Fprintln(w)
		var rows [][]any
		for _, v := range append(q.Voters, q.Observers...) {
			rows = append(rows, []any{v.Broker, v.Status, unknown(v.EndOffset), unknown(v.Lag), since(v.LastFetch), since(v.CaughtUp)})
		}
		writeTable(w, columns("BROKER#", "STATUS", "LOG-END#", "LAG#", "+LAST-FETCH", "+CAUGHT-UP"), rows, wide, e.stdoutWidth())
	}})
}

// since says how long ago a time in milliseconds was.
func since(ms *int64) any {
	if ms == nil {
		return nil
	}
	return max(time.Since(time.UnixMilli(*ms)), 0).Round(time.Millisecond).String() + " ago"
}

func runQuorumPeers(c *cli.Context) error {
	e := envOf(c)
	_, q, err := adminAnswer[console.QuorumStatus](c, "/v1/quorum")
	if err != nil || q == nil {
		return err
	}
	return e.emitQuorum(q)
}

func (e *env) emitQuorum(q *console.QuorumStatus) error {
	r := result{value: q, cols: columns("BROKER#", "STATE", "VOTER", "HEALTHY", "ADDRESS", "LAG#", "LAST-CONTACT", "+INDEX#", "+SERVER")}
	for _, s := range q.Servers {
		state := "follower"
		if s.Leader {
			state = "leader"
		}
		if s.DiskHangMS > 0 {
			state += ", disk hangs for " + (time.Duration(s.DiskHangMS) * time.Millisecond).Round(time.Second).String()
		}
		contact := any(nil)
		if s.LastContactMS >= 0 {
			contact = (time.Duration(s.LastContactMS) * time.Millisecond).String()
		}
		r.rows = append(r.rows, []any{s.Broker, state, s.Voter, s.Healthy, s.Address, unknown(s.Lag), contact, unknown(s.LastIndex), s.Server})
	}
	return e.emit(r)
}

// quorumOrder gives an order about one broker and prints the quorum as it is then.
func quorumOrder(c *cli.Context, method, path string, body any) error {
	e := envOf(c)
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	var q console.QuorumStatus
	if err := a.do(c.Context, method, path, body, &q); err != nil {
		return err
	}
	return e.emitQuorum(&q)
}

func runQuorumAddVoter(c *cli.Context) error {
	if envOf(c).wantsFields(console.QuorumStatus{}) {
		return nil
	}
	id, err := brokerArgument(c)
	if err != nil {
		return err
	}
	return quorumOrder(c, "POST", "/v1/quorum/voters", console.QuorumOrder{Broker: id})
}

func runQuorumTransfer(c *cli.Context) error {
	if envOf(c).wantsFields(console.QuorumStatus{}) {
		return nil
	}
	id, err := brokerArgument(c)
	if err != nil {
		return err
	}
	return quorumOrder(c, "POST", "/v1/quorum/transfer", console.QuorumOrder{Broker: id})
}

func runQuorumRemoveVoter(c *cli.Context) error {
	e := envOf(c)
	_, id, q, err := brokerAnswer[console.QuorumStatus](c, "/v1/quorum")
	if err != nil || q == nil {
		return err
	}
	left := 0
	for _, s := range q.Servers {
		if s.Voter && s.Broker != id {
			left++
		}
	}
	fmt.Fprintf(e.stderr, "broker %d leaves the quorum and can come back to it only with another data directory; %s left, %d of them needed for every change\n", id, counted(left, "voter"), left/2+1)
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return e.emitQuorum(q)
	}
	if err := e.confirm(fmt.Sprintf("take broker %d out of the quorum?", id)); err != nil {
		return err
	}
	return quorumOrder(c, "DELETE", fmt.Sprintf("/v1/quorum/voters/%d", id), nil)
}
