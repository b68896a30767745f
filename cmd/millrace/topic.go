package main

import "github.com/urfave/cli/v2"

func topicCommand() *cli.Command {
	return &cli.Command{Name: "topic", Usage: "create, look at, change, fill and read topics"}
}
