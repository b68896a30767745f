package check

// claim is one time that a member is given a partition.
func (h *history) claim(process int, key, who string, generation int32) *history {
	return h.add(Op{F: Claim, Type: OK, Process: process, Group: "g", Key: key, Text: who, Epoch: generation})
}

// commit is a whole commit; done Info leaves it open.
func (h *history) commit(process int, key string, generation int32, offset int64, done Type) *history {
	o := Op{F: Commit, Type: Invoke, Process: process, Group: "g", Key: key, Epoch: generation, Offset: offset}
	h.add(o)
	o.Type = done
	return h.add(o)
}

func (h *history) offset(process int, key string, answer int64) *history {
	o := Op{F: FetchOffset, Type: Invoke, Process: process, Group: "g", Key: key}
	h.add(o)
	o.Type, o.Offset = OK, answer
	return h.add(o)
}

// took is a poll of a member: pairs of offset and value.
func (h *history) took(process int, key string, pairs ...int64) *history {
	h.polled(Take, process, key, pairs...)
	h.ops[len(h.ops)-1].Group = "g"
	return h
}

// begin opens transaction n of a process.
func (h *history) begin(process int, n int64) *history {
	return h.add(Op{F: Begin, Type: OK, Process: process, Txn: Value(process, n), Text: "pay"})
}

// sendIn is [history.send] in transaction n of the process.
func (h *history) sendIn(process int, n int64, key string, value, offset int64) *history {
	h.send(process, key, value, offset)
	h.ops[len(h.ops)-2].Txn = Value(process, n)
	return h
}

// madeIn is sendIn of a record made from offset source of t/0.
func (h *history) madeIn(process int, n int64, key string, value, offset, source int64) *history {
	h.sendIn(process, n, key, value, offset)
	o := &h.ops[len(h.ops)-2]
	o.Source, o.SourceOffset = "t/0", source
	return h
}

func (h *history) offsetsIn(process int, n int64, key string, offset int64) *history {
	o := Op{F: TxnOffsets, Type: Invoke, Process: process, Txn: Value(process, n), Group: "g", Key: key, Offset: offset}
	h.add(o)
	o.Type = OK
	return h.add(o)
}

func (h *history) end(process int, n int64, how string, done Type) *history {
	o := Op{F: End, Type: Invoke, Process: process, Txn: Value(process, n), Text: how}
	h.add(o)
	o.Type = done
	return h.add(o)
}

// late is a history whose process 1 has aborted its transaction 1 while its record 1 was on its way to offset 1 of t/0.
func late() *history {
	return new(history).producer(1, "transactional").begin(1, 1).sendIn(1, 1, "t/0", 0, 0).
		add(Op{F: Send, Type: Invoke, Process: 1, Key: "t/0", Value: Value(1, 1), Txn: Value(1, 1)}).end(1, 1, AbortIt, OK)
}

// adopt says that a value may have come into transaction n of its process.
func (h *history) adopt(process int, n int64, value int64) *history {
	return h.add(Op{F: Adopt, Type: OK, Process: process, Key: "t/0", Txn: Value(process, n), Value: value})
}

// readBoth reads a key at the end at both levels: all of it, and the committed part.
func (h *history) readBoth(key string, all, committed []int64) *history {
	return h.polled(Reread, 800, key, all...).polled(RereadCommitted, 801, key, committed...)
}

// paid is a history whose process 1 has sent two records in its transaction 1, to offsets 0 and 1 of t/0.
func paid() *history {
	return new(history).producer(1, "transactional").begin(1, 1).sendIn(1, 1, "t/0", 0, 0).sendIn(1, 1, "t/0", 1, 1)
}

// copied is a history in which process 2 makes u/0 of t/0 in transactions: one record of each, but for what the caller adds.
// Process 1 has sent two records.
func copied() *history {
	return two().producer(2, "transactional").begin(2, 1)
}

// w is a value of process 2.
func w(n int64) int64 { return Value(2, n) }

// groupRows has the rows of groups.
func groupRows() []checkRow {
	polledTwo := func() *history { return two().polled(Poll, 9, "t/0", 0, v(0), 1, v(1)) }
	return []checkRow{
		{
			"an acknowledged commit is gone", CommitRegress,
			polledTwo().claim(5, "t/0", "a", 1).took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", 1, 1, OK).commit(5, "t/0", 1, 2, OK).offset(6, "t/0", 1),
			// The owner commits lower.
			polledTwo().claim(5, "t/0", "a", 1).took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", 1, 2, OK).commit(5, "t/0", 1, 1, OK).offset(6, "t/0", 1),
		},
		{
			"no offset after a commit", CommitRegress,
			polledTwo().took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", -1, 2, OK).offset(6, "t/0", -1),
			polledTwo().took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", -1, 2, Info).offset(6, "t/0", -1).offset(6, "t/0", 2),
		},
		{
			"an unanswered commit comes and goes", NotLinearizable,
			polledTwo().took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", -1, 2, Info).offset(6, "t/0", 2).offset(6, "t/0", -1),
			polledTwo().took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", -1, 2, Info).offset(6, "t/0", -1).offset(6, "t/0", 2),
		},
		{
			"an offset that nobody committed", NotLinearizable,
			polledTwo().took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", -1, 1, OK).offset(6, "t/0", 2),
			polledTwo().took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", -1, 1, OK).commit(5, "t/0", -1, 2, Info).offset(6, "t/0", 2),
		},
		{
			"a refused commit counts", NotLinearizable,
			polledTwo().took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", 1, 1, OK).commit(7, "t/0", 0, 2, Fail).offset(6, "t/0", 1).offset(6, "t/0", 2),
			polledTwo().took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", 1, 1, OK).commit(7, "t/0", 0, 2, Fail).offset(6, "t/0", 1),
		},
		{
			"two members have a partition in one generation", DoubleOwner,
			polledTwo().claim(5, "t/0", "a", 3).claim(6, "t/0", "b", 3),
			// A static member that is started again has the name of the one before.
			polledTwo().claim(5, "t/0", "a", 3).claim(6, "t/0", "a", 3).claim(7, "t/0", "b", 4).claim(7, "t/1", "c", 4),
		},
		{
			"a commit of one that has lost the partition", DoubleOwner,
			polledTwo().claim(5, "t/0", "a", 3).took(5, "t/0", 0, v(0)).claim(6, "t/0", "b", 4).commit(5, "t/0", 3, 1, OK),
			polledTwo().claim(5, "t/0", "a", 3).took(5, "t/0", 0, v(0)).claim(6, "t/0", "b", 4).commit(5, "t/0", 3, 1, Fail).
				claim(5, "t/0", "c", 5).commit(5, "t/0", 5, 1, OK), // it has joined again, under another id
		},
		{
			"a commit in the generation of another owner", DoubleOwner,
			polledTwo().claim(5, "t/0", "a", 3).took(5, "t/0", 0, v(0)).claim(6, "t/0", "b", 4).commit(5, "t/0", 4, 1, OK),
			// Sent before the other had it.
			polledTwo().claim(5, "t/0", "a", 3).took(5, "t/0", 0, v(0)).add(Op{F: Commit, Type: Invoke, Process: 5, Group: "g", Key: "t/0", Epoch: 3, Offset: 1}).
				claim(6, "t/0", "b", 4).add(Op{F: Commit, Type: OK, Process: 5, Group: "g", Key: "t/0", Epoch: 4, Offset: 1}),
		},
		{
			"a commit passes what nobody was given", CommitAhead,
			polledTwo().claim(5, "t/0", "a", 1).took(5, "t/0", 0, v(0)).commit(5, "t/0", 1, 2, OK),
			polledTwo().claim(5, "t/0", "a", 1).took(5, "t/0", 0, v(0)).commit(5, "t/0", 1, 1, OK).claim(6, "t/0", "b", 2).took(6, "t/0", 1, v(1)).commit(6, "t/0", 2, 2, OK),
		},
		{
			"a commit comes before the records", CommitAhead,
			polledTwo().claim(5, "t/0", "a", 1).commit(5, "t/0", 1, 2, OK).took(5, "t/0", 0, v(0), 1, v(1)),
			polledTwo().claim(5, "t/0", "a", 1).took(5, "t/0", 0, v(0), 1, v(1)).commit(5, "t/0", 1, 2, OK),
		},
		{
			"a member begins behind the committed offset", PollSkip,
			polledTwo().commit(7, "t/0", -1, 0, OK).claim(5, "t/0", "a", 1).offset(5, "t/0", 0).took(5, "t/0", 1, v(1)),
			polledTwo().commit(7, "t/0", -1, 0, OK).claim(5, "t/0", "a", 1).offset(5, "t/0", 0).took(5, "t/0", 0, v(0), 1, v(1)),
		},
	}
}

// transactionRows has the rows of transactions.
func transactionRows() []checkRow {
	all := []int64{0, v(0), 1, v(1)}
	return []checkRow{
		{
			"a record of an aborted transaction is read", AbortedRead,
			paid().end(1, 1, AbortIt, OK).polled(PollCommitted, 2, "t/0", 0, v(0), 1, v(1)).readBoth("t/0", all, nil),
			paid().end(1, 1, AbortIt, OK).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).readBoth("t/0", all, nil),
		},
		{
			"a record of a transaction that nobody ended is read", AbortedRead,
			paid().polled(PollCommitted, 2, "t/0", 0, v(0), 1, v(1)).readBoth("t/0", all, nil),
			paid().end(1, 1, CommitIt, Info).polled(PollCommitted, 2, "t/0", 0, v(0), 1, v(1)).readBoth("t/0", all, all),
		},
		{
			"a record is read before its transaction is committed", PrecommittedRead,
			paid().polled(PollCommitted, 2, "t/0", 0, v(0)).end(1, 1, CommitIt, OK).readBoth("t/0", all, all),
			paid().polled(Poll, 2, "t/0", 0, v(0)).end(1, 1, CommitIt, OK).polled(PollCommitted, 3, "t/0", 0, v(0)).readBoth("t/0", all, all),
		},
		{
			"half of a transaction is visible", TornTxn,
			paid().end(1, 1, CommitIt, OK).readBoth("t/0", all, []int64{0, v(0)}),
			paid().end(1, 1, CommitIt, Info).readBoth("t/0", all, nil), // it never happened
		},
		{
			"half of a transaction of which nobody knows the end", TornTxn,
			paid().sendIn(1, 1, "t/1", 2, 0).end(1, 1, CommitIt, Info).readBoth("t/0", all, all).readBoth("t/1", []int64{0, v(2)}, nil),
			paid().sendIn(1, 1, "t/1", 2, 0).end(1, 1, CommitIt, Info).readBoth("t/0", all, all).readBoth("t/1", []int64{0, v(2)}, []int64{0, v(2)}),
		},
		{
			"a committed transaction is not visible", LostWrite,
			paid().end(1, 1, CommitIt, OK).producer(3, "plain").send(3, "t/0", 0, 2).readBoth("t/0", append(all[:4:4], 2, Value(3, 0)), []int64{2, Value(3, 0)}),
			paid().end(1, 1, AbortIt, OK).producer(3, "plain").send(3, "t/0", 0, 2).readBoth("t/0", append(all[:4:4], 2, Value(3, 0)), []int64{2, Value(3, 0)}),
		},
		{
			"readers of committed records do not get to the end", Unseen,
			paid().end(1, 1, CommitIt, OK).readBoth("t/0", all, nil),
			paid().end(1, 1, CommitIt, OK).readBoth("t/0", all, all),
		},
		{
			"a reader of committed records is not given one", PollSkip,
			paid().end(1, 1, CommitIt, OK).add(Op{F: Assign, Type: OK, Process: 2, Key: "t/0"}).polled(PollCommitted, 2, "t/0", 1, v(1)).readBoth("t/0", all, all),
			paid().end(1, 1, AbortIt, OK).producer(3, "plain").send(3, "t/0", 0, 2).add(Op{F: Assign, Type: OK, Process: 2, Key: "t/0"}).polled(PollCommitted, 2, "t/0", 2, Value(3, 0)).
				readBoth("t/0", append(all[:4:4], 2, Value(3, 0)), []int64{2, Value(3, 0)}),
		},
		{
			"the last stable offset goes back", HWRegress,
			new(history).probe(LastStable, 5, "t/0", 3, 3, 10).probe(LastStable, 6, "t/0", 3, 3, 9),
			new(history).probe(LastStable, 5, "t/0", 3, 3, 9).probe(HighWatermark, 6, "t/0", 3, 3, 10).probe(LastStable, 6, "t/0", 3, 3, 9),
		},
		{
			"offsets of a transaction count without its records", TornTxn,
			copied().took(5, "t/0", 0, v(0)).madeIn(2, 1, "u/0", 0, 0, 0).offsetsIn(2, 1, "t/0", 1).end(2, 1, CommitIt, Info).offset(6, "t/0", 1).
				readBoth("t/0", all, all).readBoth("u/0", []int64{0, w(0)}, nil),
			copied().took(5, "t/0", 0, v(0)).madeIn(2, 1, "u/0", 0, 0, 0).offsetsIn(2, 1, "t/0", 1).end(2, 1, CommitIt, Info).offset(6, "t/0", 1).
				readBoth("t/0", all, all).readBoth("u/0", []int64{0, w(0)}, []int64{0, w(0)}),
		},
		{
			"records of a transaction count without its offsets", TornTxn,
			copied().took(5, "t/0", 0, v(0)).madeIn(2, 1, "u/0", 0, 0, 0).offsetsIn(2, 1, "t/0", 1).end(2, 1, CommitIt, Info).offset(6, "t/0", -1).
				readBoth("t/0", all, all).readBoth("u/0", []int64{0, w(0)}, []int64{0, w(0)}),
			copied().took(5, "t/0", 0, v(0)).madeIn(2, 1, "u/0", 0, 0, 0).offsetsIn(2, 1, "t/0", 1).end(2, 1, CommitIt, Info).offset(6, "t/0", -1).
				readBoth("t/0", all, all).readBoth("u/0", []int64{0, w(0)}, nil),
		},
		{
			"a record is worked on twice", Duplicate,
			copied().took(5, "t/0", 0, v(0), 1, v(1)).madeIn(2, 1, "u/0", 0, 0, 0).offsetsIn(2, 1, "t/0", 1).end(2, 1, CommitIt, OK).
				begin(2, 2).madeIn(2, 2, "u/0", 1, 2, 0).madeIn(2, 2, "u/0", 2, 3, 1).offsetsIn(2, 2, "t/0", 2).end(2, 2, CommitIt, OK).offset(6, "t/0", 2).
				readBoth("t/0", all, all).readBoth("u/0", []int64{0, w(0), 2, w(1), 3, w(2)}, []int64{0, w(0), 2, w(1), 3, w(2)}),
			// The first attempt was aborted.
			copied().took(5, "t/0", 0, v(0), 1, v(1)).madeIn(2, 1, "u/0", 0, 0, 0).offsetsIn(2, 1, "t/0", 1).end(2, 1, AbortIt, OK).
				begin(2, 2).madeIn(2, 2, "u/0", 1, 2, 0).madeIn(2, 2, "u/0", 2, 3, 1).offsetsIn(2, 2, "t/0", 2).end(2, 2, CommitIt, OK).offset(6, "t/0", 2).
				readBoth("t/0", all, all).readBoth("u/0", []int64{0, w(0), 2, w(1), 3, w(2)}, []int64{2, w(1), 3, w(2)}),
		},
		{
			"the offsets of an aborted transaction count", NotLinearizable,
			copied().took(5, "t/0", 0, v(0)).offsetsIn(2, 1, "t/0", 1).end(2, 1, AbortIt, OK).offset(6, "t/0", 1).polled(Poll, 9, "t/0", 0, v(0), 1, v(1)),
			copied().took(5, "t/0", 0, v(0)).offsetsIn(2, 1, "t/0", 1).end(2, 1, CommitIt, OK).offset(6, "t/0", 1).polled(Poll, 9, "t/0", 0, v(0), 1, v(1)),
		},
		{
			"the offsets of a committed transaction are gone", CommitRegress,
			copied().took(5, "t/0", 0, v(0)).offsetsIn(2, 1, "t/0", 1).end(2, 1, CommitIt, OK).offset(6, "t/0", -1).polled(Poll, 9, "t/0", 0, v(0), 1, v(1)),
			copied().took(5, "t/0", 0, v(0)).offsetsIn(2, 1, "t/0", 1).end(2, 1, CommitIt, Info).offset(6, "t/0", -1).polled(Poll, 9, "t/0", 0, v(0), 1, v(1)),
		},
		{
			"a record that came too late for its transaction is committed with the next one", AbortedRead,
			late().begin(1, 2).sendIn(1, 2, "t/0", 2, 2).end(1, 2, CommitIt, OK).readBoth("t/0", append(all[:4:4], 2, v(2)), []int64{1, v(1), 2, v(2)}),
			late().begin(1, 2).adopt(1, 2, v(1)).sendIn(1, 2, "t/0", 2, 2).end(1, 2, CommitIt, OK).readBoth("t/0", append(all[:4:4], 2, v(2)), []int64{1, v(1), 2, v(2)}),
		},
		{
			"a record that came into the next transaction is not committed with it", TornTxn,
			late().begin(1, 2).adopt(1, 2, v(1)).sendIn(1, 2, "t/0", 2, 2).end(1, 2, CommitIt, OK).readBoth("t/0", append(all[:4:4], 2, v(2)), []int64{2, v(2)}),
			late().begin(1, 2).adopt(1, 2, v(1)).sendIn(1, 2, "t/0", 2, 2).end(1, 2, CommitIt, OK).readBoth("t/0", []int64{0, v(0), 2, v(2)}, []int64{2, v(2)}), // it came nowhere
		},
		{
			"a send in a transaction that has ended", Malformed,
			paid().end(1, 1, AbortIt, OK).sendIn(1, 1, "t/0", 2, 2).readBoth("t/0", append(all[:4:4], 2, v(2)), []int64{2, v(2)}),
			paid().end(1, 1, AbortIt, OK).begin(1, 2).sendIn(1, 2, "t/0", 2, 2).readBoth("t/0", append(all[:4:4], 2, v(2)), nil),
		},
	}
}
