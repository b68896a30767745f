package metadata

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// brokerConfigTable lists the broker keys of Kafka 4, and ours. The families that have no effect here are in
// brokerConfigsInert and brokerConfigsRefused.
func brokerConfigTable() []*ConfigKey {
	keys := []*ConfigKey{
		// Who this broker is, and where it is found.
		intKey("node.id", -1, "The number of this broker.").atLeast(0).dependsOn("kept in meta.properties; 1 in a new cluster"),
		intKey("broker.id", -1, "Older name of node.id.").atLeast(-1).unset("node.id"),
		stringKey("broker.rack", "", "The rack or zone this broker stands in.").unset(""),
		listKey("process.roles", "broker,controller", "What this process does.").listOf(1, "broker", "controller").
			and(func(v string) error {
				if v == "controller" {
					return &refusedValue{why: "every millrace process serves clients; there are no processes that are only controllers", fix: "process.roles=broker,controller"}
				}
				return nil
			}),
		listKey("listeners", "PLAINTEXT://:9092", "The addresses this broker listens on, as NAME://host:port. Bound to loopback unless set.").
			that("a list of NAME://host:port", checkListeners),
		listKey("advertised.listeners", "", "The addresses clients are told to connect to.").that("a list of NAME://host:port", checkAdvertised).
			unset("derived from listeners"),
		listKey("listener.security.protocol.map", "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
			"Which protocol each listener name speaks.").that("a list of NAME:PROTOCOL", checkProtocolMap),
		stringKey("inter.broker.listener.name", "", "The listener that brokers use among themselves.").unset("the CONTROLLER listener"),
		listKey("controller.listener.names", "CONTROLLER", "The names of the listeners that carry Raft and broker calls."),
		listKey("controller.quorum.voters", "", "The brokers that form the cluster, as id@host:port; read as millrace.join and millrace.bootstrap.expect.").
			that("a list of id@host:port", checkVoters),
		listKey("controller.quorum.bootstrap.servers", "", "The brokers to join, as host:port; read as millrace.join.").
			that("a list of host:port", checkHostPorts),
		listKey("log.dirs", "./millrace-data", "The directory that holds records and metadata."),
		stringKey("log.dir", "", "Older name of log.dirs.").unset("log.dirs"),
		stringKey("metadata.log.dir", "", "The directory of the Raft log.").unset("the first of log.dirs"),

		// Topics.
		intKey("num.partitions", 1, "How many partitions a topic gets when nobody says.").atLeast(1),
		intKey("default.replication.factor", 1, "How many replicas a topic gets when nobody says.").atLeast(1).dependsOn("3, or the number of brokers when there are fewer"),
		intKey("min.insync.replicas", 1, "How many replicas must have a record before acks=all is answered.").atLeast(1).
			dependsOn("2 when the topic has 3 or more replicas, else 1").dynamic(),
		boolKey("auto.create.topics.enable", true, "Whether a topic is created when a client asks for one that is not there."),
		boolKey("delete.topic.enable", true, "Whether topics may be deleted."),
		intKey("max.request.partition.size.limit", 2000, "How many partitions one DescribeTopicPartitions answer holds.").atLeast(1),

		// The log. The first block is the broker's side of topic configs.
		listKey("log.cleanup.policy", "delete", "Default of cleanup.policy.").listOf(1, "delete", "compact").dynamic(),
		longKey("log.retention.ms", 0, "Default of retention.ms.").ms().atLeast(-1).unset("log.retention.minutes").dynamic(),
		intKey("log.retention.minutes", 0, "Default of retention.ms, in minutes.").minutes().atLeast(-1).unset("log.retention.hours").dynamic(),
		intKey("log.retention.hours", 168, "Default of retention.ms, in hours.").hours().atLeast(-1).dynamic(),
		longKey("log.retention.bytes", -1, "Default of retention.bytes.").bytes().dynamic(),
		intKey("num.recovery.threads.per.data.dir", 4, "How many partitions are recovered at once at start.").atLeast(1),
		longKey("log.retention.check.interval.ms", 300000, "How often retention is applied.").ms().atLeast(1),
		intKey("log.segment.bytes", 1073741824, "Default of segment.bytes.").bytes().atLeast(1048576).dynamic(),
		longKey("log.roll.ms", 0, "Default of segment.ms.").ms().atLeast(1).unset("log.roll.hours").dynamic(),
		intKey("log.roll.hours", 168, "Default of segment.ms, in hours.").hours().atLeast(1).dynamic(),
		longKey("log.roll.jitter.ms", 0, "Default of segment.jitter.ms.").ms().atLeast(0).unset("log.roll.jitter.hours").dynamic(),
		intKey("log.roll.jitter.hours", 0, "Default of segment.jitter.ms, in hours.").hours().atLeast(0).dynamic(),
		longKey("log.segment.delete.delay.ms", 60000, "Default of file.delete.delay.ms.").ms().atLeast(0).dynamic(),
		intKey("log.index.interval.bytes", 4096, "Default of index.interval.bytes.").bytes().atLeast(0).dynamic(),
		intKey("log.index.size.max.bytes", 10485760, "Default of segment.index.bytes.").bytes().atLeast(4).dynamic(),
		longKey("log.flush.interval.messages", 9223372036854775807, "Default of flush.messages.").atLeast(1).dynamic(),
		longKey("log.flush.interval.ms", 0, "Default of flush.ms.").ms().atLeast(0).unset("log.flush.scheduler.interval.ms").dynamic(),
		longKey("log.flush.scheduler.interval.ms", 9223372036854775807, "Default of flush.ms when log.flush.interval.ms is not set.").ms().atLeast(0),
		stringKey("compression.type", "producer", "Default of the topic config of that name.").oneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer").dynamic(),
		intKey("compression.gzip.level", -1, "Default of the topic config of that name.").that("1 to 9, or -1", gzipLevel).dynamic(),
		intKey("compression.lz4.level", 9, "Default of the topic config of that name.").between(1, 17).dynamic(),
		intKey("compression.zstd.level", 3, "Default of the topic config of that name.").between(-131072, 22).dynamic(),
		stringKey("log.message.timestamp.type", "CreateTime", "Default of message.timestamp.type.").oneOf("CreateTime", "LogAppendTime").dynamic(),
		longKey("log.message.timestamp.before.max.ms", 9223372036854775807, "Default of message.timestamp.before.max.ms.").ms().atLeast(0).dynamic(),
		longKey("log.message.timestamp.after.max.ms", 3600000, "Default of message.timestamp.after.max.ms.").ms().atLeast(0).dynamic(),
		intKey("message.max.bytes", 1048588, "Default of max.message.bytes.").bytes().atLeast(0).dynamic(),
		intKey("max.decompressed.message.bytes", 134217728, "Default of the topic key of the same name.").bytes().atLeast(1).dynamic(),
		boolKey("millrace.flush.ack", true, "Default of the topic config of that name.").dynamic(),
		stringKey("millrace.wal", "on", "Whether small durable sets go through the write-ahead log; off writes every set straight to its segment.").oneOf("on", "off"),
		intKey("producer.id.expiration.ms", 86400000, "After how long without records an idempotent producer's sequence state is forgotten.").ms().atLeast(1),
		intKey("millrace.disk.reject.percent", 95, "How full the disk may be before produce is refused; at most 1 GiB is held back.").between(1, 100),

		// Clients and their requests.
		intKey("fetch.max.bytes", 57671680, "The most bytes one fetch answer holds, whatever the client asks.").bytes().atLeast(1024),
		intKey("socket.request.max.bytes", 104857600, "The largest request that is read.").bytes().atLeast(1),
		longKey("connections.max.idle.ms", 600000, "After how long without a request a connection is closed; -1 is never.").ms(),
		intKey("max.connections", 2147483647, "How many connections this broker keeps open.").atLeast(0),
		intKey("max.connections.per.ip", 2147483647, "How many connections one address may open.").atLeast(0),
		longKey("queued.max.request.bytes", -1, "How many bytes of requests may wait for an answer; -1 lets the broker choose.").bytes(),
		intKey("max.incremental.fetch.session.cache.slots", 1000, "How many fetch sessions (KIP-227) are kept.").atLeast(0),

		// Consumer groups.
		intKey("group.min.session.timeout.ms", 6000, "The least session timeout that a member of a classic group may ask for.").ms().dynamic(),
		intKey("group.max.session.timeout.ms", 1800000, "The largest session timeout that a member of a classic group may ask for.").ms().dynamic(),
		intKey("group.initial.rebalance.delay.ms", 3000, "How long a new group waits for further members.").ms().dynamic(),
		intKey("group.max.size", 2147483647, "The most members of a group.").atLeast(1).dynamic(),
		intKey("group.consumer.session.timeout.ms", 45000, "How long a member of a consumer group (KIP-848) may be silent before it is given up.").ms().atLeast(1).dynamic(),
		intKey("group.consumer.heartbeat.interval.ms", 5000, "How often members of consumer groups (KIP-848) are told to send heartbeats.").ms().atLeast(1).dynamic(),
		intKey("group.consumer.max.size", 2147483647, "The most members of a consumer group (KIP-848).").atLeast(1).dynamic(),
		listKey("group.consumer.assignors", "uniform,range", "The server-side assignors that members of consumer groups (KIP-848) may ask for; the first is the one of those who do not ask."),
		stringKey("group.consumer.migration.policy", "bidirectional", "Whether groups change between the classic and the consumer protocol while they have members.").oneOf("disabled", "downgrade", "upgrade", "bidirectional"),
		intKey("offset.metadata.max.bytes", 4096, "The largest text that a client may store with an offset.").bytes().dynamic(),
		intKey("offsets.retention.minutes", 10080, "How long offsets are kept once their group has no members.").minutes().atLeast(1).dynamic(),
		longKey("offsets.retention.check.interval.ms", 600000, "How often offsets are looked at that may have expired.").ms().atLeast(1).dynamic(),

		// Transactions.
		intKey("transaction.max.timeout.ms", 900000, "The longest transaction timeout that a client may ask for.").ms().atLeast(1).dynamic(),
		intKey("transactional.id.expiration.ms", 604800000, "How long a transactional id is kept that nobody uses.").ms().atLeast(1).dynamic(),
		intKey("transaction.abort.timed.out.transaction.cleanup.interval.ms", 10000, "How often it is tried again to abort a transaction that has timed out, while that cannot be committed; the first time it is at once.").ms().atLeast(1).dynamic(),
		intKey("transaction.remove.expired.transaction.cleanup.interval.ms", 3600000, "How often transactional ids are looked at that may have expired.").ms().atLeast(1).dynamic(),

		// TLS listeners (PEM files, read again when they change).
		stringKey("ssl.keystore.type", "PEM", "The format of the certificate files.").that("PEM", pemOnly),
		stringKey("ssl.keystore.location", "", "The PEM file with the private key and the certificate chain.").unset(""),
		passwordKey("ssl.key.password", "The password of the private key.").
			refuse(notEmpty, "encrypted private keys are not supported", "decrypt the key (openssl pkey -in key.pem -out plain.pem), and give the file mode 0600"),
		stringKey("ssl.truststore.type", "PEM", "The format of the file of trusted certificates.").that("PEM", pemOnly),
		stringKey("ssl.truststore.location", "", "The PEM file of authorities whose client certificates are trusted.").unset(""),
		stringKey("ssl.client.auth", "none", "Whether clients must show a certificate.").oneOf("none", "requested", "required"),

		// Ours.
		stringKey("millrace.balancer.mode", "node-change", "When replicas are moved: when brokers join or die, also when they are uneven (continuous), or by order only.").
			oneOf("off", "node-change", "continuous").dynamic(),
		longKey("millrace.balancer.throttle.bytes.per.sec", 52428800, "What each broker sends and receives for moves, at most.").bytes().atLeast(1).dynamic(),
		longKey("millrace.balancer.grace.ms", 600000, "How long a dead broker's replicas wait for it before they are made anew elsewhere.").ms().atLeast(0).dynamic(),
		stringKey("millrace.group.failover", "rebalance", "What a group does when its coordinator died: begin a new generation at once, with the members it has, or carry on in the same one (resume).").
			oneOf("rebalance", "resume").dynamic(),
		stringKey("millrace.http.listener", ":9644", "The address of health, metrics and console. Bound to loopback unless a host is given.").
			that("[host]:port, or off", checkHTTPListener),
		longKey("millrace.memory.limit.bytes", -1, "Soft limit of the process's memory; -1 leaves it to GOMEMLIMIT.").bytes().atLeast(-1),
		listKey("millrace.join", "", "Brokers of the cluster to join, as host[:port].").that("a list of host[:port]", checkHosts),
		intKey("broker.heartbeat.interval.ms", 2000, "How often a broker reports to the controller.").ms(),
		boolKey("unclean.leader.election.enable", false, "Default of the topic config of that name.").dynamic(),
		longKey("unclean.leader.election.interval.ms", 300000, "How often leaderless partitions are looked at.").ms(),
		boolKey("auto.leader.rebalance.enable", true, "Whether leaders move back to the preferred replica."),
		longKey("leader.imbalance.check.interval.seconds", 300, "How often leader balance is looked at.").seconds().atLeast(1),
		intKey("leader.imbalance.per.broker.percentage", 10, "How uneven leaders may be."),
		intKey("broker.session.timeout.ms", 9000, "After how long of silence a broker is fenced.").ms(),
		intKey("millrace.quorum.size", 3, "How many brokers vote in the raft quorum.").oneOf("1", "3", "5"),
		longKey("millrace.metadata.snapshot.entries", 4096, "After how many entries the metadata log is snapshotted; as many stay behind the snapshot.").atLeast(1),
		stringKey("millrace.gossip.listener", ":9094", "The address of gossip, TCP and UDP."),
		passwordKey("millrace.gossip.key", "The key that encrypts gossip."),
		intKey("millrace.bootstrap.expect", 0, "How many empty brokers form a new cluster together; 0 only ever joins when millrace.join is set.").atLeast(0),
	}
	keys = append(keys, brokerConfigsInert()...)
	keys = append(keys, brokerConfigsRefused()...)
	// A broker key that has finer or coarser units names the whole family as its synonyms.
	families := [][]string{
		{"log.retention.ms", "log.retention.minutes", "log.retention.hours"},
		{"log.roll.ms", "log.roll.hours"}, {"log.roll.jitter.ms", "log.roll.jitter.hours"},
		{"log.flush.interval.ms", "log.flush.scheduler.interval.ms"},
	}
	for _, k := range keys {
		k.Synonyms = []string{k.Name}
		for _, f := range families {
			for _, name := range f {
				if name == k.Name {
					k.Synonyms = f
				}
			}
		}
	}
	return keys
}

func notEmpty(v string) bool { return v != "" }

func pemOnly(v string) error {
	if !strings.EqualFold(v, "PEM") {
		return &refusedValue{
			why: "certificates are read from PEM files only; " + v + " keystores are Java's",
			fix: "convert it (keytool -importkeystore … -deststoretype PKCS12, then openssl pkcs12 -nodes) and set ssl.keystore.type=PEM",
		}
	}
	return nil
}

// SplitListener splits NAME://host:port. The host may be empty (every address) and may be an IPv6 address in
// brackets, which are taken off.
func SplitListener(s string) (name, host string, port int, err error) {
	name, rest, ok := strings.Cut(s, "://")
	if !ok || name == "" {
		return "", "", 0, fmt.Errorf("%s is not of the form NAME://host:port", quoteShort(s))
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return "", "", 0, fmt.Errorf("%s has no port", quoteShort(s))
	}
	host = rest[:i]
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	} else if strings.ContainsRune(host, ':') {
		return "", "", 0, fmt.Errorf("%s: an IPv6 address needs brackets, [%s]", quoteShort(s), host)
	}
	p, err := strconv.ParseUint(rest[i+1:], 10, 16)
	if err != nil {
		return "", "", 0, fmt.Errorf("%s: %s is not a port", quoteShort(s), quoteShort(rest[i+1:]))
	}
	return strings.ToUpper(name), host, int(p), nil
}

func checkListeners(v string) error {
	return eachListener(v, func(string, int) error { return nil })
}

func checkAdvertised(v string) error {
	return eachListener(v, func(host string, port int) error {
		switch host {
		case "":
			return errors.New("an advertised listener needs a host: clients cannot connect to nothing")
		case "0.0.0.0", "::", "0:0:0:0:0:0:0:0":
			return fmt.Errorf("%s means every address of a machine, so clients cannot connect to it", host)
		}
		return nil
	})
}

func eachListener(v string, check func(host string, port int) error) error {
	names, ports := map[string]bool{}, map[int]string{}
	items := SplitConfigList(v)
	if len(items) == 0 && v != "" {
		return errors.New("it names no listener")
	}
	for _, item := range items {
		name, host, port, err := SplitListener(item)
		if err == nil {
			err = check(host, port)
		}
		if err != nil {
			return err
		}
		if names[name] {
			return fmt.Errorf("the listener name %s is there twice", name)
		}
		names[name] = true
		// Two listeners may share a port only on two addresses.
		if other, ok := ports[port]; ok && port != 0 && (other == host || other == "" || host == "") {
			return fmt.Errorf("two listeners have port %d", port)
		}
		ports[port] = host
	}
	return nil
}

func checkProtocolMap(v string) error {
	for _, item := range SplitConfigList(v) {
		name, protocol, ok := strings.Cut(item, ":")
		switch {
		case !ok || name == "":
			return fmt.Errorf("%s is not of the form NAME:PROTOCOL", quoteShort(item))
		case protocol != "PLAINTEXT" && protocol != "SSL" && protocol != "SASL_PLAINTEXT" && protocol != "SASL_SSL":
			return fmt.Errorf("%s is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL", quoteShort(protocol))
		}
	}
	return nil
}

func checkHostPort(s string, portNeeded bool) error {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i+1:]
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return fmt.Errorf("%s: %s is not a port", quoteShort(s), quoteShort(port))
		}
	} else if portNeeded {
		return fmt.Errorf("%s has no port", quoteShort(s))
	}
	if host == "" {
		return fmt.Errorf("%s has no host", quoteShort(s))
	}
	return nil
}

func checkHostPorts(v string) error {
	for _, item := range SplitConfigList(v) {
		if err := checkHostPort(item, true); err != nil {
			return err
		}
	}
	return nil
}

func checkHosts(v string) error {
	for _, item := range SplitConfigList(v) {
		if err := checkHostPort(item, false); err != nil {
			return err
		}
	}
	return nil
}

func checkVoters(v string) error {
	for _, item := range SplitConfigList(v) {
		id, address, ok := strings.Cut(item, "@")
		if !ok {
			return fmt.Errorf("%s is not of the form id@host:port", quoteShort(item))
		}
		if _, err := strconv.ParseUint(id, 10, 31); err != nil {
			return fmt.Errorf("%s: %s is not a node id", quoteShort(item), quoteShort(id))
		}
		if err := checkHostPort(address, true); err != nil {
			return err
		}
	}
	return nil
}

func checkHTTPListener(v string) error {
	if v == "off" {
		return nil
	}
	if host, ok := strings.CutPrefix(v, ":"); ok {
		v = "localhost:" + host
	}
	return checkHostPort(v, true)
}
