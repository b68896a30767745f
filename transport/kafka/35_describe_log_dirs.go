package kafka

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/replication"
)

// DescribeLogDirs (key 35), versions 0 to 4 (KIP-113).
//
//	v2    flexible
//	v3    top-level error
//	v4    size and free space of the directory's file system (KIP-827)
//
// Null topics mean all partitions of this broker, else those named are described
// as far as they are here; what is not is left out. A directory that failed is 56.

func (h *Handlers) describeLogDirs(c *call, req *kmsg.DescribeLogDirsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	asked := map[namedPartition]struct{}{}
	for i := range req.Topics {
		for _, partition := range req.Topics[i].Partitions {
			asked[namedPartition{req.Topics[i].Topic, partition}] = struct{}{}
		}
	}
	for _, dir := range h.cfg.Replicas.LogDirs() {
		rd := kmsg.NewDescribeLogDirsResponseDir()
		rd.Dir, rd.TotalBytes, rd.UsableBytes = dir.Path, dir.TotalBytes, dir.UsableBytes
		rd.ErrorCode = c.code(dir.Err)
		replicas := dir.Replicas
		if req.Topics != nil {
			replicas = slices.DeleteFunc(replicas, func(r replication.LogDirReplica) bool {
				_, ok := asked[namedPartition{r.Topic, r.Partition}]
				return !ok
			})
		}
		slices.SortFunc(replicas, func(a, b replication.LogDirReplica) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
		})
		for _, r := range replicas {
			if n := len(rd.Topics); n == 0 || rd.Topics[n-1].Topic != r.Topic {
				rt := kmsg.NewDescribeLogDirsResponseDirTopic()
				rt.Topic = r.Topic
				rd.Topics = append(rd.Topics, rt)
			}
			rp := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
			rp.Partition, rp.Size, rp.OffsetLag = r.Partition, r.SizeBytes, r.OffsetLag
			topic := &rd.Topics[len(rd.Topics)-1]
			topic.Partitions = append(topic.Partitions, rp)
		}
		resp.Dirs = append(resp.Dirs, rd)
	}
	return resp
}
