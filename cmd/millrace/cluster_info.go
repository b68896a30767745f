package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/urfave/cli/v2"
)

type clusterInfo struct {
	ClusterID  string        `json:"cluster_id" doc:"made once, when the cluster was formed"`
	Controller int32         `json:"controller" doc:"broker id; -1 is none"`
	Brokers    []brokerInfo  `json:"brokers" doc:"each broker"`
	Topics     []listedTopic `json:"topics,omitempty" doc:"with -t: each topic"`
}

type brokerInfo struct {
	ID       int32  `json:"id" doc:"broker id"`
	Host     string `json:"host" doc:"where clients connect"`
	Port     int32  `json:"port" doc:"and its port"`
	Rack     string `json:"rack" doc:"empty when it has none"`
	Leaders  int    `json:"leaders" doc:"partitions it leads"`
	Replicas int    `json:"replicas" doc:"partitions it has"`
}

func clusterInfoCommand() *cli.Command {
	return &cli.Command{
		Name:  "info",
		Usage: "show the cluster's id, brokers and controller",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "topics", Aliases: []string{"t"}, Usage: "the topics too"},
			&cli.BoolFlag{Name: "detailed", Aliases: []string{"d"}, Usage: "leaders and replicas of each broker"},
		},
		Action: runClusterInfo,
	}
}

func runClusterInfo(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(clusterInfo{}) {
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
	m, err := conn.adm.Metadata(ctx)
	if err != nil {
		return conn.fail("ask for the cluster", err)
	}
	info := clusterInfo{ClusterID: m.Cluster, Controller: m.Controller}
	index := map[int32]int{}
	for i, b := range m.Brokers {
		rack := ""
		if b.Rack != nil {
			rack = *b.Rack
		}
		info.Brokers = append(info.Brokers, brokerInfo{ID: b.NodeID, Host: b.Host, Port: b.Port, Rack: rack})
		index[b.NodeID] = i
	}
	var topics [][]any
	for _, t := range m.Topics.Sorted() {
		for _, p := range t.Partitions {
			if i, ok := index[p.Leader]; ok {
				info.Brokers[i].Leaders++
			}
			for _, r := range p.Replicas {
				if i, ok := index[r]; ok {
					info.Brokers[i].Replicas++
				}
			}
		}
		if c.Bool("topics") && t.Err == nil {
			info.Topics = append(info.Topics, listedTopic{Topic: t.Topic, ID: topicID(t.ID), Internal: t.IsInternal, Partitions: len(t.Partitions), Replicas: replicas(t)})
			topics = append(topics, []any{t.Topic, len(t.Partitions), replicas(t), topicID(t.ID)})
		}
	}
	return e.emit(result{value: info, text: func(w io.Writer, wide bool) {
		writeTable(w, columns("CLUSTER", "CONTROLLER#", "BROKERS#", "TOPICS#"), [][]any{{info.ClusterID, unknown(int64(info.Controller)), len(info.Brokers), len(m.Topics)}}, wide, e.stdoutWidth())
		fmt.Fprintln(w)
		mark := "+"
		if c.Bool("detailed") {
			mark = ""
		}
		var rows [][]any
		for _, b := range info.Brokers {
			rows = append(rows, []any{b.ID, b.Host, strconv.Itoa(int(b.Port)), b.Rack, b.Leaders, b.Replicas})
		}
		writeTable(w, columns("BROKER#", "HOST", "PORT", "RACK", mark+"LEADERS#", mark+"REPLICAS#"), rows, wide, e.stdoutWidth())
		if len(topics) > 0 {
			fmt.Fprintln(w)
			writeTable(w, columns("TOPIC", "PARTITIONS#", "REPLICAS#", "+ID"), topics, wide, e.stdoutWidth())
		}
	}})
}
