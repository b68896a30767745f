package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

// version is set by the linker for released binaries (-X main.version=0.2.0).
var version = ""

// binaryVersion is what this binary calls itself.
func binaryVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// binaryCommit is the commit the binary was built from, "" when the build did not say.
func binaryCommit() (commit string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			commit += "-modified"
		}
	}
	return commit
}

type versionJSON struct {
	Version string          `json:"version" doc:"version of this binary"`
	Commit  string          `json:"commit" doc:"commit it was built from"`
	Go      string          `json:"go" doc:"Go release and platform it was built with"`
	Cluster *clusterVersion `json:"cluster" doc:"the cluster's versions; null when none was reached"`
}

type clusterVersion struct {
	Broker   string           `json:"broker" doc:"address that answered"`
	APIs     int              `json:"apis" doc:"how many APIs of the Kafka protocol it offers"`
	Features map[string]int16 `json:"features" doc:"finalized features and their levels"`
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version of this binary, and of the cluster when there is one",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "client", Usage: "only this binary; do not connect"}},
		Action: func(c *cli.Context) error {
			e := envOf(c)
			v := versionJSON{Version: binaryVersion(), Commit: binaryCommit(), Go: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH}
			if e.wantsFields(v) {
				return nil
			}
			if !c.Bool("client") {
				v.Cluster = e.clusterVersion(c.Context)
			}
			return e.emit(result{value: v, text: func(w io.Writer, _ bool) {
				fmt.Fprintf(w, "millrace %s", v.Version)
				if v.Commit != "" {
					fmt.Fprintf(w, " (%s)", v.Commit)
				}
				fmt.Fprintf(w, " %s\n", v.Go)
				if v.Cluster != nil {
					fmt.Fprintf(w, "cluster  %s, %d APIs of the Kafka protocol\n", v.Cluster.Broker, v.Cluster.APIs)
				} else if !c.Bool("client") {
					e.hint("no cluster at %s", e.brokers[0])
				}
			}})
		},
	}
}

// clusterVersion asks any broker what it speaks; nil when none answers within a second.
func (e *env) clusterVersion(ctx context.Context) *clusterVersion {
	ctx, cancel := context.WithTimeout(ctx, min(time.Second, e.timeout))
	defer cancel()
	conn, err := e.connect(ctx, kgo.RequestRetries(0))
	if err != nil {
		return nil
	}
	defer conn.Close()
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "millrace-cli", binaryVersion()
	resp, err := req.RequestWith(ctx, conn.Client)
	if err != nil {
		return nil
	}
	v := &clusterVersion{Broker: e.brokers[0], APIs: len(resp.ApiKeys), Features: map[string]int16{}}
	for _, f := range resp.FinalizedFeatures {
		v.Features[f.Name] = f.MaxVersionLevel
	}
	return v
}
