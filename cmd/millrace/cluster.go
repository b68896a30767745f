package main

import "github.com/urfave/cli/v2"

func clusterCommand() *cli.Command {
	return &cli.Command{
		Name:        "cluster",
		Usage:       "look at the cluster and its health",
		Subcommands: []*cli.Command{clusterInfoCommand(), clusterHealthCommand()},
	}
}
