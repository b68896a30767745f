package main

import "github.com/urfave/cli/v2"

func clusterCommand() *cli.Command {
	return &cli.Command{
		Name:  "cluster",
		Usage: "look at the cluster, its health and its configuration; move replicas, take brokers out of service",
		Subcommands: []*cli.Command{
			clusterInfoCommand(), clusterHealthCommand(), clusterMembersCommand(), clusterConfigCommand(), clusterBrokersCommand(), clusterMaintenanceCommand(), clusterQuorumCommand(),
			clusterPartitionsCommand(), clusterRebalanceCommand(), clusterLogdirsCommand(), clusterUpgradeCommand(),
		},
	}
}
