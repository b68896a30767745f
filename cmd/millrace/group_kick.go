package main

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

type kickedMember struct {
	ID       string `json:"member_id" doc:"its id"`
	Instance string `json:"instance_id" doc:"of a static member; empty for others"`
	ClientID string `json:"client_id" doc:"as its program calls itself"`
	Host     string `json:"host" doc:"where it runs"`
	Status   string `json:"status" doc:"OK, or the error's name"`
}

func groupKickCommand() *cli.Command {
	return &cli.Command{
		Name:      "kick",
		Usage:     "put members out of a group, so that the others get what they had",
		ArgsUsage: "NAME MEMBER…",
		Description: "MEMBER is a member id or a group.instance.id. It is for members that are gone and whose partitions wait for their sessions to\n" +
			"end, static ones above all: one that is alive joins again by itself.",
		Flags:  []cli.Flag{dryRunFlag()},
		Action: runGroupKick,
	}
}

func runGroupKick(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]kickedMember{}) {
		return nil
	}
	args, err := groupArguments(c, 1)
	if err != nil {
		return err
	}
	if len(args) < 2 {
		f := usageError("no member was named", "millrace group kick "+args[0]+" MEMBER")
		f.why = "millrace group describe " + args[0] + " --members   shows them"
		return f
	}
	name := args[0]
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var b batch
	states, err := conn.groupStates(ctx, []string{name}, &b)
	if err != nil {
		return err
	}
	if len(states) == 0 {
		return b.finish(e)
	}
	out := []kickedMember{}
	for _, who := range args[1:] {
		i := slices.IndexFunc(states[0].Members, func(m groupMember) bool { return m.ID == who || m.Instance == who })
		if i < 0 {
			f := itemFailure(fmt.Sprintf("put %s out of group %s", who, name), kerr.UnknownMemberID, nil)
			f.why, f.fix = "the group has no member of that id or group.instance.id", "millrace group describe "+name+" --members   shows them"
			b.fail(f)
			continue
		}
		m := &states[0].Members[i]
		out = append(out, kickedMember{m.ID, m.Instance, m.ClientID, m.Host, "UNCHANGED"})
	}
	if len(out) == 0 {
		return b.finish(e)
	}
	fmt.Fprintf(e.stderr, "plan: put %s out of group %s\n", count(len(out), "member"), name)
	writeTable(e.stderr, columns("MEMBER-ID", "INSTANCE-ID", "CLIENT-ID", "HOST"), kickedRows(out, false), false, 0)
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return b.finish(e)
	}
	if err := e.confirm(fmt.Sprintf("put %s out?", count(len(out), "member"))); err != nil {
		return err
	}
	ctx, cancel = e.ctx(c) // the question took its time
	defer cancel()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = name
	for i := range out {
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID, m.Reason = out[i].ID, kmsg.StringPtr("an administrator put it out")
		if out[i].Instance != "" {
			m.InstanceID = &out[i].Instance
		}
		req.Members = append(req.Members, m)
	}
	answer, err := conn.Request(ctx, req)
	if err == nil {
		err = kerr.ErrorForCode(answer.(*kmsg.LeaveGroupResponse).ErrorCode)
	}
	if err != nil {
		return conn.fail("put members out of group "+name, err)
	}
	for i, m := range answer.(*kmsg.LeaveGroupResponse).Members {
		if i == len(out) {
			break
		}
		err := kerr.ErrorForCode(m.ErrorCode)
		if out[i].Status = status(err); err != nil {
			b.fail(itemFailure("put "+out[i].ID+" out", err, nil))
			continue
		}
		b.done++
	}
	if err := e.emit(result{value: out, cols: columns("MEMBER-ID", "INSTANCE-ID", "CLIENT-ID", "HOST", "STATUS"), rows: kickedRows(out, true)}); err != nil {
		return err
	}
	return b.finish(e)
}

func kickedRows(out []kickedMember, statuses bool) (rows [][]any) {
	for _, m := range out {
		row := []any{m.ID, m.Instance, m.ClientID, m.Host}
		if statuses {
			row = append(row, m.Status)
		}
		rows = append(rows, row)
	}
	return rows
}
