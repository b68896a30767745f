# What a contributor types. `just check` is all that must be green before a push.

staticcheck := "honnef.co/go/tools/cmd/staticcheck@v0.8.2"
export CGO_ENABLED := env("CGO_ENABLED", "0")

# list the recipes
list:
    @just --list

# build the binary into ./millrace
build:
    go build -trimpath -ldflags "-s -w" -o millrace ./cmd/millrace

# format the tree
fmt:
    gofmt -w $(git ls-files '*.go')

# format, vet, staticcheck (about a minute on two cores)
lint:
    .ci/lint

# the test command of the README
test:
    go test ./...

# everything that must be green
check: lint test

# the packages with shared state under the race detector
race *packages="./log/... ./replication/... ./metadata/... ./group/... ./transport/...":
    CGO_ENABLED=1 go test -race -short {{packages}}

# more seeds through the storage models and the replication simulator: just scenario 100000
scenario seeds="100000":
    go test ./log -run 'TestModel' -timeout 0 -args -model.seeds {{seeds}}
    go test ./metadata/raftlog -run 'TestModel$' -timeout 0 -args -model.seeds {{seeds}}
    go test ./replication -run 'TestSimulation' -timeout 0 -args -sim.seeds {{seeds}}
    go test ./group/... -run 'TestSimulation' -timeout 0 -args -sim.seeds {{seeds}}

# every fuzz target for a while each: just fuzz 60s
fuzz each="60s":
    .ci/fuzz {{each}}

# micro-benchmarks beside the code
bench pattern=".":
    go test -run '^$' -bench '{{pattern}}' ./log/... ./replication/... ./transport/... ./metadata/...

# floors of the machine and the broker beside them, in one run
floor:
    go test -run '^$' -bench 'Floor|Broker' ./integration

# real binary, real clients, kill -9
integration:
    go test -count=1 ./integration/...

# rewrite the golden files, to review their diff
golden:
    go test ./... -run 'Golden|Script' -update

# one broker with throw-away data, ready for a client
dev *args:
    go run ./cmd/millrace dev {{args}}

# what is in a segment, index or snapshot file
dump +files:
    go run ./cmd/millrace log dump {{files}}

# public client suites against fresh brokers, with the lists of checks that may fail: just suites kcat
suites *names="kcat python kafkajs":
    .ci/suites {{names}}

# what a good client keeps of its rate beside bad ones: just hostile fetch-all; see integration/HOSTILE.md
hostile scenario="":
    go test -run '^$' -bench 'Hostile/{{scenario}}' -timeout 30m ./integration

# Apache Kafka beside us, rounds interleaved: just peer-bench --quick; see integration/peer/RESULTS.md
peer-bench *args:
    go run ./integration/peer/bench {{args}}

# Kafka Streams' word count and Apache Kafka's verifiable copier on three brokers, all of them killed meanwhile: just exactly-once -length 5m;
# -old runs them with clients of the first protocol of transactions, -assigned without groups
exactly-once *args:
    go run ./integration/exactlyonce {{args}}

# what three brokers and a client on this machine acknowledge: RF 3, acks=all, fsync before ack; at least 100,000 records/s
gate *args:
    go run ./integration/gate {{args}}

# real three-broker clusters, broken in every way of the fault matrix, judged by the checker: just faults 30
faults minutes="30" *args="":
    go run ./integration/faults -minutes {{minutes}} {{args}}

# that the checker notices brokers which break a rule
mutants *args="":
    go run ./integration/faults -mutants {{args}}

# a broker that stands still for 8 s, ten times: what its groups notice, and those of others
flapping stops="10" length="8s":
    go test -count=1 -timeout 0 -v ./integration -run TestBrokerFlaps -args -flap.stops {{stops}} -flap.length {{length}}

# how long partitions go without an acknowledgement when their leader is killed, stopped or paused: just failover -client java
failover *args="":
    go run ./integration/faults -failover {{args}}

# what 10,000 partitions cost, and what clients notice of a fourth broker, of planned stops and of a new cluster: just scale partitions
scale *args:
    go run ./integration/scale {{args}}
