// Command millrace is the broker and the tools around it, in one binary.
//
// main.go builds the command tree; each subcommand has a file of its own: flags in, call, print. arguments.go mends the
// argument parser, env.go has the global flags, output.go the formats, failure.go the errors and exit codes, client.go
// the connection to a cluster, offsets.go the grammar of -o.
//
// Rules of every command: no flag is required that the program can find out; errors are three lines (what, why, fix);
// stdout is data and stderr is talk; what destroys prints its plan first.
package main
