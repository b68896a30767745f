// Package metadata owns everything small that all brokers must agree on: brokers, topics and partitions with their
// leaders, ISRs and epochs, configs, the next producer id, tombstones of deleted topic ids, groups with their members and
// committed offsets, transactional ids with their transactions and pending offsets, the cluster's id and feature level. It
// keeps them in one Raft group (D1) and hands them out as immutable Images.
//
// # How it fits
//
//	Store.CreateTopics, …   may be called on any broker; call carries it to the controller (D15)         operations.go, forward*.go
//	        │
//	   the controller       looks at the Image, checks, decides ids and places                           controller*.go
//	        │ command                                                                                    command_*.go
//	    proposer            gathers commands into entries, up to 1000 or 256 KiB, two in flight          proposer.go
//	        │ entry
//	      Raft              hashicorp/raft over raft-log and raft.db, guarded                            raft_*.go, raftlog/
//	        │ committed entry
//	       fsm              applies each command as compare-and-set to a draft of the next state         fsm*.go
//	        │ state, published once per batch
//	      Image             what everybody reads; Watch says that there is a newer one                   image.go, watch.go
//
// Above it, replication watches the Image and opens, closes and leads partitions; transport/kafka answers Metadata
// requests from it and calls the controller operations; cmd/broker opens the Store, registers the broker and names the
// failure that must end the process. It imports nothing of ours but the generated messages in metadatapb and raftlog.
//
// Groups take another way in: their coordinators decide, and the controller only proposes (groups.go, outbox.go):
//
//	Store.ChangeGroup, CommitOffsets, …   at the group's coordinator, answered by callback          groups.go
//	        │ encoded commands and commits
//	     outbox            lanes with one call in flight; a call carries all that waits (D4)         outbox.go
//	                       a group's changes behind the commits asked for before (I18)             outbox_order.go
//	        │ one call, in a binary form (forward_batch.go)
//	   the controller      makes sure that the commands can be read, and proposes them               controller_groups.go
//	        │
//	proposer, Raft, fsm    Apply asks: does this registration coordinate the group, is the revision   command_change_group.go,
//	        │              right, may this member commit                                              command_commit_offsets.go
//	    landings           the coordinator has applied it too, and answers                           landing.go
//
// Commits are written and read by hand (commit_codec.go), in the bytes of protobuf. Of many that come at once more share an
// entry, which waits for them for up to 10 ms after the last one (proposer.go).
//
// Steps of transactions take the same way, in lanes of their own: ChangeTransaction, AddToTransaction,
// CommitTransactionOffsets and MarkersWritten (transactions.go), batches of them in the command transact
// (command_transact.go), their judgement in fsm_transactions.go and fsm_pending.go. Barrier (barrier.go) says when the Image
// holds what could be seen anywhere.
//
// The table of configuration keys (config*.go) lives here too, because Apply, handlers and the command line must agree
// on names and values.
//
// The balancer runs beside these at the controller. A step core (balancer_core.go) looks at an Image, finds a reason to move
// replicas - a broker joined, is being decommissioned, or was dead for longer than the grace time -, has a planner
// (balancer_planner.go) make a plan, and begins its moves a few at a time as reassignments. The plan, its reasons and what
// became of each move are part of the state, so that the next controller goes on with it; only how far the copies are is
// this controller's own (balancer_progress.go). balancer.go drives it and takes orders, balancer_status.go describes it.
//
// # Invariants
//
//   - An Image is never written to, and is the state after one prefix of the log (I13). Image.Version never goes back on
//     one Store.
//   - Apply is deterministic: it reads the command, the state and the position in the log, nothing else. Ids, places and
//     times are decided by the proposer (M1, I14). A test bans time, chance, files and goroutines from the files that
//     Apply consists of, and every test that opens a Store replays its log twice when it closes.
//   - A command is a compare-and-set, or recognizes its own repetition (M11), carries the term it was decided in and has
//     no effect in another (M9), and is refused without effect or applied in full.
//   - An entry that this binary does not understand, down to a field, stops the broker (M2). So does the first error of
//     the Raft log's files (M7). Both reach Config.OnFailure once; nothing is applied, published, snapshotted or
//     acknowledged afterwards.
//   - A topic id, broker epoch or producer id is never given out twice (I15, P5): the counters only grow, and a deleted
//     topic leaves a tombstone of its id (L12).
//   - Each registration of a broker raises the leader epoch of every partition it leads (R14).
//   - An operation that succeeded can be seen in the local Image when it returns (M12). One that did not, with any error
//     but ErrTimeout, has changed nothing and never will.
//   - A group changes only in the name of the broker that coordinates it in the very state that the change is applied to, and
//     on the revision that it was decided on (G5). An offset changes only by a commit that the group's members of that moment
//     allow (G1), each for itself (G2), and in the order in which the coordinator was asked (I18).
//   - A group's generation, a revision and a coordinator epoch are never used again (I15); the generation of a deleted group
//     is remembered for the retention time of offsets.
//   - The log reaches back to the older of the two snapshots that are kept. A start that would lose entries is refused,
//     never taken for an empty directory (M6). A snapshot that a leader sent takes the place of a log that ended before it.
//   - A broker whose disk hangs is no controller and keeps none: nothing waits for it for longer than a few seconds but what
//     its own Raft is at (raft_disk.go).
//   - The Image never goes back, whatever snapshot Raft is sent (I13).
//   - What Raft reads back has a checksum: entries (package raftlog), terms and what it notes beside a snapshot (raft_sums.go);
//     the pages of raft.db are walked before bbolt maps them (raft_pages.go). All of it is read once, before Raft starts (I14, I19).
//
// # Several brokers
//
// The Raft quorum (quorum*.go): a broker's server is its id and its directory. Servers enter as non-voters, one at a time,
// and raft-autopilot lets them vote up to Config.QuorumSize; a server leaves only after an operator's command has put a
// tombstone on its directory, never because it is silent (M14, M15, M17). keepQuorum does this at the controller.
//
// Every controller operation has a local half, at the controller, and an exported one that forwards (operations.go). What
// the controller knows of the brokers' liveness is in memory and begins anew with each lead (sessions.go): heartbeats renew
// sessions, a suspicion from gossip makes it ask the process itself, and silence or no answer ends in one small command
// that fences the broker. Apply then walks the partitions and gives each the ISR, the eligible replicas and the leader that
// follow (fsm_partition.go); nobody tells brokers anything but through the Image (M10).
//
//	registered ──heartbeat, caught up──▶ serving ──silent, or no answer──▶ fenced ──heartbeat, caught up──▶ serving
//	  (fenced)                              │                                            (later and later if it flaps)
//	                                        └─Heartbeat{Shutdown}─▶ leaving ─▶ stops; the next registration begins anew
//
// A broker in maintenance (Draining) keeps its replicas and leads nothing that another could. A Removing one gets no new
// replicas. Replica (replica.go) is the same FSM without Raft, for simulations.
//
// # Groups
//
// Image.Coordinator says who coordinates a group: a function of the brokers that serve, and of nothing else. When one is
// fenced as dead, or comes back without having said good-bye, Apply marks the groups with members that it coordinated; who
// comes next starts a new generation, or not (D6). A broker that leaves or is in maintenance has handed its groups over
// before it stops, unmarked.
//
// Offsets are in trees of their own, one for each group, and are no part of Group: they change a thousand times more often.
// A batch of commits names the coordinator epoch and a number in its lane: one that was held up on its way, until another
// broker has coordinated, or a later batch was applied, has no effect. Offsets of a deleted topic are invisible at once
// (M21); they go, as those do that are too old (G11), by a command that the coordinator proposes at its interval (expiry.go).
// Those of a group with members are never too old, unless no member reads their topics (KIP-211): which topics these are is
// found out by the coordinator (group_subscription.go), named in the command, and true as long as the revision is.
// Offsets that belong to a transaction which is not decided yet stand beside them, by producer id, and are moved over by the
// command that decides it; who reads committed offsets does not see them.
//
// # Transactions
//
//	Empty, Complete* ──AddToTransaction, or implicit offsets──▶ Ongoing ──ChangeTransaction──▶ Prepare* ──last MarkersWritten──▶ Complete*
//	                                                              └──────── nothing to mark ─────────────────────────────────────▶
//
// Every transition is one step, judged where it is applied (P10): the first that is applied wins, and who comes second is
// told. Nobody else is told anything: the leaders of the partitions read a prepared transaction in their own Images, write its
// markers and report them, with or without its coordinator (P9). A deleted topic is taken out of all transactions by the
// command that deletes it (P12).
//
// What makes late steps harmless: a change compares the revision, or in protocol 2 the producer's pair, which has one
// transaction; an addition and offsets compare the pair; offsets and reports of markers name the transaction by a number of
// its own, because a client of protocol 1 keeps its pair over many; and a batch that was held up until a later one of its
// lane was applied, or coordinators changed, has no effect as a whole.
//
// 2026-11-30: the offsets of a transaction and its end are one command (the question of D11). What is written is there once, in
// the offsets' own commands: the end carries none of it, and Apply moves over what is pending, so that no reader sees half
// of a transaction and no group has to be told of the end. The price is time in which Apply does nothing else: with
// 1, 10, 100, 1000, 10 000 pending offsets 11 µs, 22 µs, 93 µs, 1.0 ms, 11 ms. A Streams application commits tens per
// transaction; ten thousand hold the others up for as long as a few syncs of the log take. What we gave up: offsets
// and end can't be in two Raft groups, should design.md 4 ever shard them; they would have to be sharded alike.
//
// Offsets of one partition that are pending in several transactions count in the order of their commits, not of the ends, as
// in Kafka; so does a commit without a transaction.
//
// # Memory and cost
//
// Topics are in a persistent B+tree (tree.go), so that a change copies one path of nodes and the partitions of the topic
// it concerns; a batch copies each of them once. ChangedTopics compares two Images without entering what they share. At
// 100 000 partitions an Image takes some 250 bytes per partition, and a change of one partition some 6 KiB, in a topic of 1000
// 12 KiB: a topic's partitions are pointers, of which the list is copied. Fencing a broker with a replica of each of 100 000
// partitions, of which it leads a third, takes Apply some 50 ms; 10 000 ISR changes of a leader take 25 ms and 90 KB of entries.
// A million committed offsets take 50 MB, their snapshot 14 MB. Writing it takes 0.15 s of computing, at a quarter of the time
// (Pacer), so that it is written in 0.6 s beside Apply; reading it takes 0.2 s, and twice that when another broker sent it. A
// commit takes Apply 7 µs when no two in a batch are of one group. While three brokers on two cores take snapshots of a
// million offsets, start from one or are sent one, 500 commits a second take up to 82 ms, with p99 at 11 to 54 ms. Fencing the coordinator of 3400 among 10 000 groups
// takes 5 ms. An idle transactional id takes 340 bytes and 45 of a snapshot: 100 000 are written in 0.1 s and read in 0.16 s. A
// transaction of three additions, an end and three reports takes Apply 117 µs. Through three stores on one disk, on a machine that
// others used too, one id makes 280 to 340 transactions/s, 16 make 1100 to 1400 and 200 make 4000 to 6400 (end, p50: 0.5, 3, 8 to 11 ms);
// with the entries in bbolt, in turn with these, 110 to 170, 610 to 910 and 1500 to 5000 (1, 5 to 6, 11 to 22 ms).
//
// # Goroutines
//
// Started by Open and waited for by Close, beside Raft's own: gather and settle of the proposer, five lanes of the
// outbox, land, askBarriers, expire, followLeadership, tellSuspicions, control, keepQuorum, and with Config.Balance balance. A
// leader has two more for each follower it sends entries to (raft_announcer.go), which end with that connection; Raft's own for a
// follower that can't be reached waits until a heartbeat reaches it again, for a minute at most (raft_absence.go). Raft calls the
// FSM from one goroutine, and writes a snapshot from another one, of a state that nobody changes any more. Lock order:
// Store.publishing before watchers.mu; the other locks are leaves.
//
// # Files
//
// In Config.Dir:
//
//	raft-log/                Raft's entries, in segments (package raftlog)
//	raft.db                  bbolt: Raft's term and vote, and which segments there are. Until the first start of this version it
//	                         held the entries too; a mark in their place has earlier versions refuse it (raft_entries.go)
//	snapshots/               the two newest snapshots, in folders <term>-<index>-<ms>; format in fsm_snapshot.go
//	snapshots-damaged/       snapshots that could not be read, kept for people to look at
//	ballast                  disk space set aside for these, given up when the disk is full (L13)
package metadata
