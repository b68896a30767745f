// Command millrace is the broker and the tools around it, in one binary.
//
// main.go builds the command tree; each subcommand has a file of its own: flags in, call, print. arguments.go mends the
// argument parser, env.go has the global flags, output.go the formats, failure.go the errors and exit codes, client.go
// the connection to a cluster, admin.go that to the admin API, offsets.go the grammar of -o.
//
// dev: dev_supervisor.go runs the brokers of a cluster as child processes (dev_child.go) on the ports of dev_ports.go, and
// takes orders (dev_orders.go) over a loopback port with a token (dev_control.go). It alone writes the state that the
// other dev commands read (dev_state.go). Processes are named by pid and start (dev_process.go), so that no other is ever
// ended. Goroutines: one per child, which waits for its end, and the control port's.
//
// Rules of every command: no flag is required that the program can find out; errors are three lines (what, why, fix);
// stdout is data and stderr is talk; what destroys prints its plan first.
package main
