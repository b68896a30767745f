// Command faults runs clusters of real millrace processes, breaks them while clients write and read, and has package
// check judge what the clients saw.
//
//	go run ./integration/faults -tier t1            # the smoke test of each merge
//	go run ./integration/faults -minutes 30         # the scenarios S1 to S7 in turn
//	go run ./integration/faults -scenarios S4 -seed 7
//	go run ./integration/faults -scenarios S10,stop # late requests of transactions in every way; stops in every state
//	go run ./integration/faults -failover           # how long a partition goes without an acknowledgement
//	go run ./integration/faults -failover -client java
//
// A run is one cluster, one workload and one scenario of faults; it ends with healing, reading everything again from
// the start, and comparing the files of all replicas, the metadata that each broker has applied (I14), and what the brokers
// hold with what they held when they were new (I20). It prints a row of the table. A run that fails prints its seed
// and keeps its history and the brokers' output; a run that passes leaves nothing.
//
// With root it works in a sandbox of namespaces (package cluster) and can cut power and links; without, those faults
// are left out, and the table says so. Files are written below -keep only.
package main
