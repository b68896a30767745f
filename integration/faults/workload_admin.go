package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/check"
)

const adminPause = 150 * time.Millisecond

// administer creates, deletes and looks at topics, and changes configs, each time at a broker chosen by chance.
func (r *run) administer(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 77))
	var clients []*kgo.Client
	for _, n := range r.cluster.Nodes {
		cl, err := direct(n)
		if err != nil {
			r.fail("an admin: %v", err)
			return
		}
		defer cl.Close()
		clients = append(clients, cl)
	}
	process := r.newProcess()
	for {
		select {
		case <-r.sending.Done():
			return
		case <-time.After(adminPause + time.Duration(random.IntN(100))*time.Millisecond):
		}
		cl := clients[random.IntN(len(clients))]
		o := check.Op{Type: check.Invoke, Process: process, Key: fmt.Sprintf("admin-%d", random.IntN(4))}
		var ask func(context.Context, *kgo.Client, *check.Op) error
		switch n := random.IntN(10); {
		case n < 4:
			o.F, ask = check.CreateTopic, r.createTopic
		case n < 7:
			o.F, ask = check.DeleteTopic, deleteTopic
		case n < 9:
			o.F, ask = check.DescribeTopic, describeTopic
		default:
			o.F, o.Key, o.Value = check.AlterTopic, topics[random.IntN(len(topics))], int64(500+random.IntN(10))*1000
			ask = alterTopic
		}
		r.history.Log(o)
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		o.Type = check.OK
		if err := ask(ctx, cl, &o); err != nil {
			o.Type, o.Error = check.Info, err.Error()
		}
		cancel()
		r.history.Log(o)
		if o.Type == check.Info {
			process = r.newProcess()
		}
	}
}

// settle sets the outcome of an answer with an error code; nil when the answer is definite.
func settle(o *check.Op, code int16) error {
	err := kerr.ErrorForCode(code)
	switch err {
	case nil:
		return nil
	case kerr.RequestTimedOut, kerr.UnknownServerError, kerr.KafkaStorageError:
		return err
	case kerr.TopicAlreadyExists:
		o.Error = check.Exists
	case kerr.UnknownTopicOrPartition:
		o.Error = check.Missing
	default:
		o.Error = err.Error()
	}
	o.Type = check.Fail
	return nil
}

func (r *run) createTopic(ctx context.Context, cl *kgo.Client, o *check.Op) error {
	return create(ctx, cl, o, int16(min(3, r.brokers)), false)
}

// describeTopic asks the controller whether it would create the topic: what a broker's own view may say late.
func describeTopic(ctx context.Context, cl *kgo.Client, o *check.Op) error {
	if err := create(ctx, cl, o, 1, true); err != nil {
		return err
	}
	switch {
	case o.Type == check.OK:
		o.Type, o.Error = check.Fail, check.Missing
	case o.Error == check.Exists:
		o.Type, o.Error = check.OK, ""
	}
	o.Text = ""
	return nil
}

func create(ctx context.Context, cl *kgo.Client, o *check.Op, replicas int16, validateOnly bool) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.ValidateOnly = 5000, validateOnly
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = o.Key, 2, replicas
	req.Topics = []kmsg.CreateTopicsRequestTopic{t}
	answer, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.CreateTopicsResponse)
	if len(resp.Topics) != 1 {
		return fmt.Errorf("an answer for %d topics", len(resp.Topics))
	}
	if err := settle(o, resp.Topics[0].ErrorCode); err != nil {
		return err
	}
	if o.Type == check.OK {
		o.Text = fmt.Sprintf("%x", resp.Topics[0].TopicID)
	}
	return nil
}

func deleteTopic(ctx context.Context, cl *kgo.Client, o *check.Op) error {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = 5000
	t := kmsg.NewDeleteTopicsRequestTopic()
	t.Topic = kmsg.StringPtr(o.Key)
	req.Topics, req.TopicNames = []kmsg.DeleteTopicsRequestTopic{t}, []string{o.Key}
	answer, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.DeleteTopicsResponse)
	if len(resp.Topics) != 1 {
		return fmt.Errorf("an answer for %d topics", len(resp.Topics))
	}
	return settle(o, resp.Topics[0].ErrorCode)
}

func alterTopic(ctx context.Context, cl *kgo.Client, o *check.Op) error {
	value := fmt.Sprint(o.Value)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{
		ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: o.Key,
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "segment.bytes", Op: kmsg.IncrementalAlterConfigOpSet, Value: &value}},
	}}
	answer, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.IncrementalAlterConfigsResponse)
	if len(resp.Resources) != 1 {
		return fmt.Errorf("an answer for %d resources", len(resp.Resources))
	}
	return settle(o, resp.Resources[0].ErrorCode)
}
