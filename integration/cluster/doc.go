// Package cluster runs real millrace processes and breaks them: kill -9, pauses, power cuts, partitions, failing, full,
// slow and frozen disks, bit flips.
//
// What needs root says so with [ErrNotHere], which names the reason; everything else works for anybody. With root a
// command calls [Sandbox] first: it runs again in namespaces of its own for processes, mounts and the network, so that
// the kernel itself ends and removes everything when the command ends, however it ends. Without, [Cluster.Close] does,
// and the processes die with their parent.
//
// Invariants: only processes that were started here are ever signalled, by their own handle; every wait is bounded;
// Close may be called at any time, undoes the faults that are in force, and leaves nothing mounted, running or linked.
//
// Callers are the commands and tests of integration. A goroutine waits for each process. Files are written below
// [Config.Dir] only: node-K is the data (a mount when power can be cut), node-K.img its disk, node-K.log what the
// process printed.
package cluster
