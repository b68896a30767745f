package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// cluster asks the cluster. Without one it is a failure only when somebody named it.
func (x *examination) cluster(ctx context.Context) {
	const check = "cluster"
	ctx, cancel := context.WithTimeout(ctx, x.e.timeout)
	defer cancel()
	conn, err := x.e.connect(ctx)
	if err != nil {
		f := explain("connect", err)
		if !x.e.named && f.code == exitNoConnection {
			x.add(check, checkSkipped, "no broker answers at "+x.e.brokers[0]+", and none was named with -b", "")
		} else {
			x.add(check, checkFailed, f.what+": "+f.why, f.fix)
		}
		if x.httpAt != "" {
			x.health(ctx, "--http", x.httpAt)
		}
		return
	}
	defer conn.Close()
	m, err := conn.adm.Metadata(ctx)
	if err != nil {
		f := conn.fail("ask for the cluster", err)
		x.add(check, checkFailed, f.what+": "+f.why, f.fix)
		return
	}
	x.add(check, checkOK, fmt.Sprintf("%s answers at %s: %s, %s", m.Cluster, strings.Join(x.e.brokers, ", "), count(len(m.Brokers), "broker"), count(len(m.Topics), "topic")), "")
	reached := x.advertised(ctx, m.Brokers)
	var short []kadm.PartitionDetail
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			if len(p.ISR) < len(p.Replicas) {
				short = append(short, p)
			}
		}
	}
	underMin, err := conn.underMinISR(ctx, short)
	if err != nil {
		f := explain("ask for min.insync.replicas", err)
		x.add("min.insync.replicas", checkSkipped, f.what+": "+f.why, "")
	}
	x.partitions(m, underMin)
	if x.httpAt != "" {
		x.health(ctx, "--http", x.httpAt)
		return
	}
	for _, b := range reached {
		name := fmt.Sprintf("broker %d", b.NodeID)
		configs, err := conn.brokerConfigs(ctx, int(b.NodeID), []string{"millrace.http.listener"})
		if err != nil || len(configs) == 0 || configs[0].Value == nil {
			x.add("ready "+name, checkSkipped, "it does not say where its health port is", "")
			continue
		}
		address, why := healthAddress(*configs[0].Value, b.Host)
		if address == "" {
			x.add("ready "+name, checkSkipped, why, "")
			continue
		}
		x.health(ctx, name, address)
	}
}

// healthAddress is where a broker's health is asked from here, or why it cannot be.
func healthAddress(listener, brokerHost string) (address, why string) {
	if listener == "off" {
		return "", "its health port is off (millrace.http.listener)"
	}
	host, port, err := net.SplitHostPort(listener)
	switch ip := net.ParseIP(host); {
	case err != nil:
		return "", "millrace.http.listener=" + listener + " cannot be read"
	case port == "0":
		return "", "its health port was chosen by the system; --http HOST:PORT names it"
	case host == "" || host == "localhost" || ip != nil && ip.IsLoopback():
		if b := net.ParseIP(brokerHost); brokerHost != "localhost" && (b == nil || !b.IsLoopback()) {
			return "", "its health port answers its own machine only (millrace.http.listener=" + listener + ")"
		}
		return net.JoinHostPort("127.0.0.1", port), ""
	case ip != nil && ip.IsUnspecified():
		return net.JoinHostPort(brokerHost, port), ""
	}
	return listener, ""
}

// advertised connects to every broker where clients are told to, and returns those that could be reached.
func (x *examination) advertised(ctx context.Context, brokers []kgo.BrokerMetadata) (reached []kgo.BrokerMetadata) {
	const check = "advertised addresses"
	errs := make([]error, len(brokers))
	var wait sync.WaitGroup
	for i, b := range brokers {
		wait.Go(func() {
			dialer := net.Dialer{Timeout: min(x.e.timeout, 3*time.Second)}
			conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
			if errs[i] = err; err == nil {
				conn.Close()
			}
		})
	}
	wait.Wait()
	for i, b := range brokers {
		if errs[i] == nil {
			reached = append(reached, b)
			continue
		}
		trap := &dialFailures{}
		trap.mu.broker, trap.mu.err, trap.mu.seed = b, errs[i], x.e.brokers[0]
		f := trap.trap()
		x.add(check, checkFailed, f.what+"; "+f.why, f.fix)
	}
	if len(reached) == len(brokers) {
		x.add(check, checkOK, count(len(brokers), "broker")+" can be reached from here", "")
	}
	return reached
}

// partitions judges the cluster's state: controller, leaders, replicas in sync.
func (x *examination) partitions(m kadm.Metadata, underMin []string) {
	if m.Controller < 0 {
		x.add("controller", checkFailed, "there is no controller: topics and configs cannot be changed", "start the brokers that are down; most of the cluster's voters must run")
	} else {
		x.add("controller", checkOK, fmt.Sprintf("broker %d", m.Controller), "")
	}
	var total int
	var offline, under []string
	for _, t := range m.Topics.Sorted() {
		for _, p := range t.Partitions.Sorted() {
			total++
			name := fmt.Sprintf("%s-%d", p.Topic, p.Partition)
			if p.Leader < 0 {
				offline = append(offline, name)
			}
			if len(p.ISR) < len(p.Replicas) {
				under = append(under, name)
			}
		}
	}
	if len(offline) > 0 {
		x.add("offline partitions", checkFailed, some(offline)+" without a leader: nothing can be written or read there", "start the brokers that hold them; millrace topic describe TOPIC -p shows which")
	} else {
		x.add("offline partitions", checkOK, "none of "+count(total, "partition"), "")
	}
	if len(underMin) > 0 {
		x.add("min.insync.replicas", checkFailed, some(underMin)+" with fewer replicas in sync than min.insync.replicas: produce with acks=all is refused there", "start the brokers that hold the other replicas, or look into their logs for why they lag")
	} else {
		x.add("min.insync.replicas", checkOK, "kept by every partition", "")
	}
	if len(under) > 0 {
		x.add("replicas in sync", checkWarning, some(under)+" with replicas out of sync", "start the brokers that hold them, or wait until they have caught up")
	} else {
		x.add("replicas in sync", checkOK, "all", "")
	}
}

// some says how many, and names the first few.
func some(names []string) string {
	const shown = 5
	text := count(len(names), "partition") + " (" + strings.Join(names[:min(len(names), shown)], " ")
	if len(names) > shown {
		text += " …"
	}
	return text + ")"
}

// health asks a broker whether it is ready, and compares clocks by the answer's Date, which has whole seconds.
func (x *examination) health(ctx context.Context, name, address string) {
	check := "ready " + name
	before := x.now()
	status, body, date, err := getHealth(ctx, address, "/readyz", min(x.e.timeout, 3*time.Second))
	after := x.now()
	switch {
	case err != nil:
		x.add(check, checkFailed, "no answer from http://"+address+"/readyz: "+dialReason(err), "is the broker running, and millrace.http.listener open to this machine?")
		return
	case status == 200:
		x.add(check, checkOK, "http://"+address+"/readyz says ok", "")
	default:
		reasons := strings.Split(body, "\n")
		if len(reasons) > 1 && reasons[0] == "failed" {
			reasons = reasons[1:]
		}
		x.add(check, checkFailed, fmt.Sprintf("http://%s/readyz says %d: %s", address, status, strings.Join(reasons, "; ")), "wait when it is starting; otherwise see the broker's log")
	}
	x.clock(name, date, before, after)
}

// clock compares a broker's clock with this machine's: date was written between before and after.
func (x *examination) clock(name string, date, before, after time.Time) {
	check := "clock " + name
	if date.IsZero() {
		x.add(check, checkSkipped, "the answer has no Date", "")
		return
	}
	// The truth lies in [date, date+1s): only what is outside of the request's time is skew.
	skew := time.Duration(0)
	switch late, early := date.Sub(after), before.Sub(date.Add(time.Second)); {
	case late > 0:
		skew = late
	case early > 0:
		skew = -early
	}
	direction := "ahead of"
	if skew < 0 {
		skew, direction = -skew, "behind"
	}
	const wrong, odd = time.Minute, 2 * time.Second
	message := fmt.Sprintf("its clock is %s %s this machine's", skew.Round(time.Second), direction)
	fix := "run a time service (chrony, systemd-timesyncd) on both machines"
	switch {
	case skew >= wrong:
		x.add(check, checkFailed, message+": records get wrong timestamps, retention and offsets by time go wrong", fix)
	case skew >= odd:
		x.add(check, checkWarning, message, fix)
	default:
		x.add(check, checkOK, "agrees with this machine's to a second or two", "")
	}
}
