package main

import "github.com/urfave/cli/v2"

func logCommand() *cli.Command {
	return &cli.Command{
		Name:        "log",
		Usage:       "read segment and index files, without a broker",
		Subcommands: []*cli.Command{logDumpCommand(), logVerifyCommand()},
	}
}
